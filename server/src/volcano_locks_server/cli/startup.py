"""Starts a server from its settings, and turns startup errors into a message and an exit code (CLI-4)."""

import os
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from volcano_locks.cli.event_loop import run_to_end
from volcano_locks.cli.exit_codes import UNAVAILABLE, USAGE, Exit

if TYPE_CHECKING:
    from ..runtime.server import Server
    from ..runtime.settings import Settings

T = TypeVar("T")

store_option: Final = click.option(
    "--store", metavar="URL", help="The store. Default: VOLCANO_LOCKS_STORE, else sqlite:///volcano-locks.db."
)


def run_on_store(flag: str | None, work: Callable[[str], Coroutine[Any, Any, T]]) -> tuple[str, T]:
    """Run `work` on the store, by default that of `serve`. Return the URL to show to people, and the result."""
    from ..runtime.settings import Settings  # noqa: PLC0415
    from ..stores import shown_url  # noqa: PLC0415

    variable = "VOLCANO_LOCKS_STORE"
    with exit_on_startup_error():
        url = Settings.load({"store": flag}, {variable: os.environ.get(variable, "")}).store
        try:
            return shown_url(url), run_to_end(lambda: work(url))
        except ValueError as error:
            raise Exit(f"--store: {error}", USAGE) from None


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
