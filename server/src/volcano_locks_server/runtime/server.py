"""Composes a running server from its settings. The command line and the tests start the same object.

    async with Server(Settings(port=0, store="memory://")) as server:
        print(server.url)

A `Server` owns its store, its listener and its background tasks. It handles no signals; `process.run` does, for a
process that runs only a server. A `Server` is also an ASGI application, for use under another listener.
"""

import asyncio
import contextlib
import dataclasses
import errno
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TextIO, TypeVar

from ..http.app import App
from ..http.auth import Authenticator
from ..http.codec import Receive, Scope, Send
from ..http.server.listener import Listener, tls_context
from ..ports.clock import Clock, SystemClock
from ..rules.errors import LockError, StoreUnavailableError
from ..service.lock_service import LockService
from ..stores import OpenStore, open_store, shown_url, sqlite_path
from ..telemetry import LineWriter, Log, Metrics
from .admin_token import admin_token
from .issue_service_key import IssuedKey, issue_service_key
from .settings import Settings, SettingsError

T = TypeVar("T")

DRAIN_SECONDS_MAX: Final = 15.0
PURGE_EVERY_SECONDS: Final = 60.0
PURGE_MAX: Final = 1_000
PURGES_MAX: Final = 1_000
LAST_USED_EVERY_SECONDS: Final = 10.0
STORE_CLOSE_SECONDS_MAX: Final = 10.0
_LISTEN_ADVICE: Final = {
    errno.EADDRINUSE: "another program listens there; stop it, or choose another --port",
    errno.EADDRNOTAVAIL: "this machine has no such address; choose one of its own with --host",
    errno.EACCES: "this user may not listen on ports below 1024; choose a higher --port",
}


class ListenError(SettingsError):
    """The address cannot be listened on: it is in use, not of this machine, or needs more privileges."""


class Server:
    """One server: call `start`, then `close`, or use `async with`. It can be started once.

    `store` is an open store to use in place of the settings' one; the server closes it. `bound` is a socket that
    already has the settings' address. `worker` is this server's number among the processes that share it.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Clock | None = None,
        store: OpenStore | None = None,
        log_stream: TextIO | None = None,
        bound: socket.socket | None = None,
        worker: int | None = None,
    ) -> None:
        self.settings: Final = settings
        self.clock: Final[Clock] = clock if clock is not None else SystemClock()
        self.log: Final[Log] = Log(LineWriter(log_stream), settings.log_level, worker=worker)
        self.metrics: Final = Metrics(log_lines_dropped=lambda: self.log.writer.dropped, worker=worker)
        self._bound: Final = bound
        self.admin_token = ""
        self._store = store
        self._service: LockService | None = None
        self._authenticator: Authenticator | None = None
        self._app: App | None = None
        self._listener: Listener | None = None
        self._background_tasks: list[asyncio.Task[None]] = []

    @property
    def app(self) -> App:
        """The ASGI application of an open server."""
        return _required(self._app)

    @property
    def store(self) -> OpenStore:
        """The store of an open server."""
        return _required(self._store)

    @property
    def service(self) -> LockService:
        """The lock service of an open server."""
        return _required(self._service)

    @property
    def listener(self) -> Listener:
        """The listener of a started server."""
        return _required(self._listener)

    @property
    def url(self) -> str:
        """The base URL of a started server."""
        return self.listener.url

    async def open(self) -> None:
        """Open the store and start the background tasks, without listening.

        Raises SettingsError, and StoreUnavailableError if the store cannot be used.
        """
        database: Path | None = None
        if self._store is None:
            database, self._store = await self._open_store()
        store = self._store
        self.admin_token = admin_token(self.settings, database)
        self._service = service = LockService(
            store.locks,
            self.clock,
            quotas=store.quotas,
            owner_reserve=self.settings.owner_reserve,
            batches_in_flight=store.batches_in_flight,
            batch_max=store.batch_max,
            several_nodes=store.quotas is not None,
            signals=store.signals,
            on_batch=self.metrics.batch,
        )
        service.hub.start()
        self.metrics.waiters = lambda: service.queues.table.request_count
        self.metrics.watchers = lambda: service.hub.subscriber_count
        if (counts := store.counts) is not None:
            self.metrics.store_counts = lambda: dataclasses.asdict(counts)
        self._authenticator = authenticator = Authenticator(store.registry, self.clock, self.admin_token)
        self._app = App(
            service=service,
            store=store.locks,
            registry=store.registry,
            authenticator=authenticator,
            clock=self.clock,
            log=self.log,
            metrics=self.metrics,
            backups=store.backups,
        )
        self._background_tasks = [
            asyncio.create_task(self._repeat(PURGE_EVERY_SECONDS, self.purge), name="purge"),
            asyncio.create_task(self._repeat(LAST_USED_EVERY_SECONDS, self.remember_last_used), name="last-used"),
        ]

    async def _open_store(self) -> tuple[Path | None, OpenStore]:
        """The store of the settings, and the file of a SQLite store."""
        try:
            return sqlite_path(self.settings.store), await open_store(self.settings.store, self.clock)
        except SettingsError:
            raise
        except ValueError as error:
            refused = str(error).removeprefix("store ")
            raise SettingsError(f"store (--store, VOLCANO_LOCKS_STORE) {refused}") from None

    async def start(self) -> None:
        """Take the address, `open`, then listen.

        Raises as `open`, and SettingsError if the address or the certificate cannot be used; it tries these first.
        """
        settings = self.settings
        try:
            listener = Listener(host=settings.host, port=settings.port, tls=_tls(settings), bound=self._bound)
            with listen_errors(settings):
                listener.bind()
            self._listener = listener
            await self.open()
            self.metrics.connections = lambda: listener.connections
            with listen_errors(settings):
                await listener.start(self.app)
        except BaseException:
            await self._close()
            raise
        self.log.info("started", url=self.url, store=shown_url(self.settings.store))

    async def close(self) -> None:
        """Complete the requests in flight, refuse new ones, close everything; takes about DRAIN_SECONDS_MAX at most."""
        if self._app is not None:
            self.log.info("stopping")
        await self._close(last_event="stopped")

    async def _close(self, last_event: str | None = None) -> None:
        if self._app is not None and not await self._app.drain(DRAIN_SECONDS_MAX):
            self.log.warning("drain_cut_short", seconds=DRAIN_SECONDS_MAX)
        if self._listener is not None:
            await self._listener.close()
        for task in self._background_tasks:
            task.cancel()
        if self._background_tasks:
            await asyncio.wait(self._background_tasks)
        if self._service is not None:
            await self._service.close()
        if self._store is not None:
            await self._close_store(self._store)
        if self._app is not None and last_event is not None:
            self.log.info(last_event)
        self._app = self._listener = self._service = self._store = self._authenticator = None
        self._background_tasks = []
        await asyncio.to_thread(self.log.writer.close)

    async def _close_store(self, store: OpenStore) -> None:
        """Give up after STORE_CLOSE_SECONDS_MAX, so that a hanging disk does not keep the process running.

        What was acknowledged is durable already.
        """
        try:
            async with asyncio.timeout(STORE_CLOSE_SECONDS_MAX):
                with contextlib.suppress(LockError):
                    await self.remember_last_used()
                await store.close()
        except TimeoutError:
            self.log.warning("store_close_cut_short", seconds=STORE_CLOSE_SECONDS_MAX)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI, with its lifespan: opens at startup, closes at shutdown."""
        if scope["type"] != "lifespan":
            await self.app(scope, receive, send)
            return
        await receive()
        try:
            await self.open()
        except (SettingsError, LockError) as error:
            await self.close()
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.close()
        await send({"type": "lifespan.shutdown.complete"})

    async def issue_service_key(self, project_name: str, key_name: str) -> IssuedKey:
        """A new secret for this key of this project; creates the key and the project if missing. Raises LockError.

        The old secret of a key that exists becomes invalid.
        """
        issued = await issue_service_key(self.store.registry, self.clock.now_ms(), project_name, key_name)
        if self._authenticator is not None:
            self._authenticator.invalidate()
        return issued

    async def purge(self) -> None:
        """Delete the records that may be forgotten (LEASE-13), PURGE_MAX at a time."""
        for _ in range(PURGES_MAX):
            if await self.store.locks.purge(limit=PURGE_MAX) < PURGE_MAX:
                return

    async def remember_last_used(self) -> None:
        """Store when service keys were last used."""
        if self._authenticator is not None and (last_used_at_ms := self._authenticator.take_last_used()):
            await self.store.registry.touch_service_keys(last_used_at_ms)

    async def _repeat(self, seconds: float, task: Callable[[], Awaitable[None]]) -> None:
        """Run the task every `seconds`. A failure is logged, and the task runs again next time."""
        while True:
            await asyncio.sleep(seconds)
            try:
                await task()
            except StoreUnavailableError as error:
                about = {"cause": error.cause_code, "message": error.message}
                self.log.warning("store_unavailable", chore=task.__name__, **about)
            except Exception as error:  # noqa: BLE001 - a bug in one task ends neither it nor the others
                self.log.unexpected_error("chore_failed", error, chore=task.__name__)


def _required(part: T | None) -> T:
    if part is None:
        raise RuntimeError("this server is not running: start it first")
    return part


@contextlib.contextmanager
def listen_errors(settings: Settings) -> Iterator[None]:
    """Turns the OSError of a listen attempt into a ListenError that says what to do."""
    try:
        yield
    except OSError as error:
        where = f"{settings.host} port {settings.port}"
        advice = _LISTEN_ADVICE.get(error.errno or 0, error.strerror or str(error))
        raise ListenError(f"cannot listen on {where}: {advice}") from None


def _tls(settings: Settings) -> ssl.SSLContext | None:
    if settings.tls_certificate is None or settings.tls_key is None:
        return None
    try:
        return tls_context(str(settings.tls_certificate), str(settings.tls_key))
    except (OSError, ssl.SSLError) as error:
        files = f"{settings.tls_certificate} and {settings.tls_key}"
        raise SettingsError(
            f"TLS (--tls-certificate, --tls-key) cannot use {files}: {error.strerror or error}"
        ) from None
