"""Starts a server from its settings, and turns startup errors into a message and an exit code (CLI-4)."""

import os
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import click

from volcano_locks.cli.event_loop import run_to_end
from volcano_locks.cli.exit_codes import UNAVAILABLE, USAGE, Exit
from volcano_locks.cli.streams import use_plain_stderr

if TYPE_CHECKING:
    from ..runtime.server import Server
    from ..runtime.settings import Settings

R = TypeVar("R")
T = TypeVar("T")

_STORE_OPTIONS: Final = (
    click.option(
        "--store", metavar="URL", help="The store. Default: VOLCANO_LOCKS_STORE, else sqlite:///volcano-locks.db."
    ),
    click.option("--store-url-file", metavar="FILE", help="A file with the URL of the store."),
    click.option(
        "--allow-plaintext-store/--no-allow-plaintext-store",
        default=None,
        help="Connect to a store beyond this machine without TLS.",
    ),
)


class StoreOptions(NamedTuple):
    """The options that name a store, as given on the command line."""

    store: str | None
    store_url_file: str | None
    allow_plaintext_store: bool | None

    @property
    def is_given(self) -> bool:
        """Whether one of them names a store."""
        return self.store is not None or self.store_url_file is not None

    def url(self) -> str:
        """The URL of the store, by default that of `serve`. Raises SettingsError."""
        from ..runtime.settings import Settings  # noqa: PLC0415

        names = ("VOLCANO_LOCKS_STORE", "VOLCANO_LOCKS_STORE_URL_FILE", "VOLCANO_LOCKS_ALLOW_PLAINTEXT_STORE")
        environ = {name: value for name, value in os.environ.items() if name in names or name.startswith("PG")}
        return Settings.load(self._asdict(), environ).store


def store_options(command: Callable[..., R]) -> Callable[..., R]:
    """Adds the options that name a store; the command gets them as `store`, a StoreOptions."""

    @wraps(command)
    def with_options(**parameters: Any) -> R:
        given = {name: parameters.pop(name) for name in StoreOptions._fields}
        return command(store=StoreOptions(**given), **parameters)

    for option in reversed(_STORE_OPTIONS):
        with_options = option(with_options)
    return with_options


def run_on_store(store: StoreOptions, work: Callable[[str], Coroutine[Any, Any, T]]) -> tuple[str, T]:
    """Run `work` on the store. Return the URL to show to people, and the result."""
    from ..stores import shown_url  # noqa: PLC0415

    with exit_on_startup_error():
        url = store.url()
        try:
            return shown_url(url), run_to_end(lambda: work(url))
        except ValueError as error:
            raise Exit(f"--store: {error}", USAGE) from None


@contextmanager
def exit_on_startup_error() -> Iterator[None]:
    """Inside the block, an error that prevents a server from starting ends the command with a message."""
    from ..rules.errors import LockError  # noqa: PLC0415
    from ..runtime.listen_errors import ListenError  # noqa: PLC0415
    from ..runtime.settings import SettingsError  # noqa: PLC0415

    try:
        yield
    except ListenError as error:
        raise Exit(str(error), UNAVAILABLE) from None
    except SettingsError as error:
        raise Exit(str(error), USAGE) from None
    except LockError as error:
        raise Exit(error.message, UNAVAILABLE) from None


def serve_until_stopped(
    settings: "Settings", announce: Callable[["Server"], Awaitable[None]], *, ends_with_terminal: bool = False
) -> None:
    """Serves until SIGTERM or SIGINT, or SIGHUP if `ends_with_terminal`. Awaits `announce` once the server listens."""
    from ..runtime.prefork import run_workers  # noqa: PLC0415
    from ..runtime.process import run  # noqa: PLC0415
    from ..runtime.server import Server  # noqa: PLC0415
    from ..runtime.service_manager import ServiceManager  # noqa: PLC0415

    use_plain_stderr()
    if settings.workers > 1:
        run_workers(settings, settings.workers, announce, os.environ)
        return
    server = Server(settings)
    manager = ServiceManager(os.environ, server.log)
    run(server, started=announce, supervisor=manager, ends_with_terminal=ends_with_terminal)
