"""The composition: settings in, a running server out. The command line and the tests start the same object.

    async with Server(Settings(port=0, store="memory://")) as server:
        print(server.url)

A `Server` owns its store, its listener and its chores, and takes no signal: `process.run` does, for a process that
is nothing but a server. A `Server` is an ASGI application too, for those who bring their own listener.
"""

import asyncio
import contextlib
import dataclasses
import errno
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator
from types import TracebackType
from typing import Final, Self, TextIO

from ..http.app import App
from ..http.auth import Access
from ..http.codec import Receive, Scope, Send
from ..http.server.listener import Listener, tls_context
from ..ports.clock import Clock, SystemClock
from ..rules.errors import LockError, StoreUnavailableError
from ..service.lock_service import LockService
from ..stores import OpenStore, open_store, shown_url, sqlite_path
from ..telemetry import Log, Metrics, new_log
from .admin_token import admin_token
from .service_keys import IssuedKey, issue_service_key
from .settings import Settings, SettingsError

DRAIN_SECONDS_MAX: Final = 15.0
PURGE_EVERY_SECONDS: Final = 60.0
PURGE_MAX: Final = 1_000
PURGES_MAX: Final = 1_000
LAST_USED_EVERY_SECONDS: Final = 10.0
STORE_CLOSE_SECONDS_MAX: Final = 10.0


class ListenError(SettingsError):
    """The address cannot be listened on: it is in use, or not this machine's, or not ours to take."""


class Server:
    """One server. `start`, then `close`; or `async with`. Not to be started twice.

    `bound` is a socket that has the settings' address already, and `worker` the number of this one among several
    processes that share it.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Clock | None = None,
        log_stream: TextIO | None = None,
        bound: socket.socket | None = None,
        worker: int | None = None,
    ) -> None:
        self.settings: Final = settings
        self.clock: Final[Clock] = clock if clock is not None else SystemClock()
        self.log: Final[Log] = new_log(settings.log_level, log_stream, worker=worker)
        self.metrics: Final = Metrics(log_lines_dropped=lambda: self.log.writer.dropped, worker=worker)
        self._bound: Final = bound
        self.admin_token = ""
        self._store: OpenStore | None = None
        self._service: LockService | None = None
        self._access: Access | None = None
        self._app: App | None = None
        self._listener: Listener | None = None
        self._chores: list[asyncio.Task[None]] = []

    @property
    def app(self) -> App:
        """The ASGI application of an open server."""
        if self._app is None:
            raise RuntimeError("this server is not open")
        return self._app

    @property
    def store(self) -> OpenStore:
        """The store of an open server."""
        if self._store is None:
            raise RuntimeError("this server is not open")
        return self._store

    @property
    def url(self) -> str:
        """Where a started server listens."""
        if self._listener is None:
            raise RuntimeError("this server does not listen")
        return self._listener.url

    async def open(self) -> None:
        """Open the store and begin the chores, without listening.

        Raises SettingsError, and StoreUnavailableError where the store cannot be used.
        """
        try:
            database = sqlite_path(self.settings.store)
            self._store = store = await open_store(self.settings.store, self.clock)
        except SettingsError:
            raise
        except ValueError as error:
            refused = str(error).removeprefix("store ")
            raise SettingsError(f"store (--store, VOLCANO_LOCKS_STORE) {refused}") from None
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
        self.metrics.waiters = lambda: service.queues.request_count
        self.metrics.watchers = lambda: service.hub.subscriber_count
        if (counts := store.counts) is not None:
            self.metrics.store_counts = lambda: dataclasses.asdict(counts)
        self._access = access = Access(store.registry, self.clock, self.admin_token)
        self._app = App(
            service=service,
            store=store.locks,
            registry=store.registry,
            access=access,
            clock=self.clock,
            log=self.log,
            metrics=self.metrics,
            backups=store.backups,
        )
        self._chores = [
            asyncio.create_task(self._every(PURGE_EVERY_SECONDS, self.purge), name="purge"),
            asyncio.create_task(self._every(LAST_USED_EVERY_SECONDS, self.remember_last_used), name="last-used"),
        ]

    async def start(self) -> None:
        """Take the address, `open`, then listen. Raises SettingsError too where the address or the certificate
        cannot be used, mostly before the store is touched.
        """
        settings = self.settings
        try:
            listener = Listener(host=settings.host, port=settings.port, tls=_tls(settings), bound=self._bound)
            with listening_on(settings):
                listener.bind()
            self._listener = listener
            await self.open()
            self.metrics.connections = lambda: listener.connections
            with listening_on(settings):
                await listener.start(self.app)
        except BaseException:
            await self._close()
            raise
        self.log.event("started", url=self.url, store=shown_url(self.settings.store))

    async def close(self) -> None:
        """Answer what is in flight, turn the rest away, let go of everything; within about DRAIN_SECONDS_MAX."""
        if self._app is not None:
            self.log.event("stopping")
        await self._close(last_event="stopped")

    async def _close(self, last_event: str | None = None) -> None:
        if self._app is not None and not await self._app.drain(DRAIN_SECONDS_MAX):
            self.log.trouble("drain_cut_short", seconds=DRAIN_SECONDS_MAX)
        if self._listener is not None:
            await self._listener.close()
        for chore in self._chores:
            chore.cancel()
        if self._chores:
            await asyncio.wait(self._chores)
        if self._service is not None:
            await self._service.close()
        if self._store is not None:
            await self._close_store(self._store)
        if self._app is not None and last_event is not None:
            self.log.event(last_event)
        self._app = self._listener = self._service = self._store = self._access = None
        self._chores = []
        await asyncio.to_thread(self.log.writer.close)

    async def _close_store(self, store: OpenStore) -> None:
        """Bounded: a disk that hangs must not keep the process. What was acknowledged is durable already."""
        try:
            async with asyncio.timeout(STORE_CLOSE_SECONDS_MAX):
                with contextlib.suppress(LockError):
                    await self.remember_last_used()
                await store.close()
        except TimeoutError:
            self.log.trouble("store_close_cut_short", seconds=STORE_CLOSE_SECONDS_MAX)

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
        """A service key of that name in a project of that name; what is missing is made.

        A key that is there already gets a new secret, and its old one ends. Raises LockError.
        """
        issued = await issue_service_key(self.store.registry, self.clock.now_ms(), project_name, key_name)
        if self._access is not None:
            self._access.forget()
        return issued

    async def purge(self) -> None:
        """Forget what is old enough to be forgotten (LEASE-13), in bites."""
        for _ in range(PURGES_MAX):
            if await self.store.locks.purge(limit=PURGE_MAX) < PURGE_MAX:
                return

    async def remember_last_used(self) -> None:
        """Write down when service keys were last used."""
        if self._access is not None and (last_used_at_ms := self._access.take_last_used()):
            await self.store.registry.touch_service_keys(last_used_at_ms)

    async def _every(self, seconds: float, chore: Callable[[], Awaitable[None]]) -> None:
        """Do the chore again and again; one that fails is told and tried again next time."""
        while True:
            await asyncio.sleep(seconds)
            try:
                await chore()
            except StoreUnavailableError as error:
                about = {"cause": error.cause_code, "message": error.message}
                self.log.trouble("store_unavailable", chore=chore.__name__, **about)
            except Exception as error:  # noqa: BLE001 - a chore with a bug must not end silently, nor end the others
                self.log.bug("chore_failed", error, chore=chore.__name__)


@contextlib.contextmanager
def listening_on(settings: Settings) -> Iterator[None]:
    """Inside, the settings' address may turn out not to be had: ListenError."""
    try:
        yield
    except OSError as error:
        where = f"{settings.host} port {settings.port}"
        raise ListenError(f"cannot listen on {where} (--host, --port): {_why_not(error)}") from None


def _why_not(error: OSError) -> str:
    """The loop's own words repeat the address; these say what to do where that is known."""
    match error.errno:
        case errno.EADDRINUSE:
            return "another program listens there; stop it, or choose another port"
        case errno.EADDRNOTAVAIL:
            return "this machine has no such address"
        case errno.EACCES:
            return "this user may not listen on a port below 1024"
    return error.strerror or str(error)


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
