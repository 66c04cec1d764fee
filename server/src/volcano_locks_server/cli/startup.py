"""Starts a server from its settings, and turns startup errors into a message and an exit code (CLI-4)."""

import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from volcano_locks.cli.exit_codes import UNAVAILABLE, USAGE, Exit

if TYPE_CHECKING:
    from ..runtime.server import Server
    from ..runtime.settings import Settings


def store_url(flag: str | None) -> str:
    """The store's URL from the flag, else the environment, else the default, as in `serve`."""
    from ..runtime.settings import Settings  # noqa: PLC0415

    variable = "VOLCANO_LOCKS_STORE"
    return Settings.load({"store": flag}, {variable: os.environ.get(variable, "")}).store


@contextmanager
def exit_on_startup_error() -> Iterator[None]:
    """Inside the block, an error that prevents a server from starting ends the command with a message."""
    from ..rules.errors import LockError  # noqa: PLC0415
    from ..runtime.server import ListenError  # noqa: PLC0415
    from ..runtime.settings import SettingsError  # noqa: PLC0415

    try:
        yield
    except ListenError as error:
        raise Exit(str(error), UNAVAILABLE) from None
    except SettingsError as error:
        raise Exit(str(error), USAGE) from None
    except LockError as error:
        raise Exit(error.message, UNAVAILABLE) from None


def serve_until_stopped(settings: "Settings", announce: Callable[["Server"], Awaitable[None]]) -> None:
    """Serves until SIGTERM or SIGINT. Awaits `announce` once the server listens."""
    from ..runtime.prefork import run_workers  # noqa: PLC0415
    from ..runtime.process import run  # noqa: PLC0415
    from ..runtime.server import Server  # noqa: PLC0415

    if settings.workers > 1:
        run_workers(settings, settings.workers, announce)
    else:
        run(Server(settings), started=announce)
