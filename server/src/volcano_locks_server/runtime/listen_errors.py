"""Explains why an address cannot be listened on."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from .settings import Settings, SettingsError

_LISTEN_ADVICE: Final = {
    errno.EADDRINUSE: "another program listens there; stop it, or choose another --port",
    errno.EADDRNOTAVAIL: "this machine has no such address; choose one of its own with --host",
    errno.EACCES: "this user may not listen on ports below 1024; choose a higher --port",
}


class ListenError(SettingsError):
    """The address cannot be listened on: it is in use, not of this machine, or needs more privileges."""


@contextmanager
def listen_errors(settings: Settings) -> Iterator[None]:
    """Turns the OSError of a listen attempt into a ListenError that says what to do."""
    try:
        yield
    except OSError as error:
        where = f"{settings.host} port {settings.port}"
        advice = _LISTEN_ADVICE.get(error.errno or 0, error.strerror or str(error))
        raise ListenError(f"cannot listen on {where}: {advice}") from None
