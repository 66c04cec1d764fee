"""From settings to a process that serves, and from what goes wrong to a sentence and an exit code (CLI-4)."""

import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from volcano_locks.cli.exit_codes import UNAVAILABLE, USAGE, Stop

if TYPE_CHECKING:
    from ..runtime.server import Server
    from ..runtime.settings import Settings


def store_url(flag: str | None) -> str:
    """The store's URL from the flag, else the environment, else the default, as `serve` finds it."""
    from ..runtime.settings import Settings  # noqa: PLC0415

    variable = "VOLCANO_LOCKS_STORE"
    return Settings.load({"store": flag}, {variable: os.environ.get(variable, "")}).store


@contextmanager
def explained() -> Iterator[None]:
    """Inside, what keeps a server from starting ends the command with a sentence and no trace."""
    from ..rules.errors import LockError  # noqa: PLC0415
    from ..runtime.server import ListenError  # noqa: PLC0415
    from ..runtime.settings import SettingsError  # noqa: PLC0415

    try:
        yield
    except ListenError as error:
        raise Stop(str(error), UNAVAILABLE) from None
    except SettingsError as error:
        raise Stop(str(error), USAGE) from None
    except LockError as error:
        raise Stop(error.message, UNAVAILABLE) from None


def serve_until_asked_to_stop(settings: "Settings", announce: Callable[["Server"], Awaitable[None]]) -> None:
    """Serve with these settings until SIGTERM or SIGINT; `announce` is awaited once the server listens."""
    from ..runtime.prefork import run_workers  # noqa: PLC0415
    from ..runtime.process import run  # noqa: PLC0415
    from ..runtime.server import Server  # noqa: PLC0415

    if settings.workers > 1:
        run_workers(settings, settings.workers, announce)
    else:
        run(Server(settings), started=announce)
