"""Composes a running server from its settings. The command line and the tests start the same object.

    async with Server(Settings(port=0, store="memory://")) as server:
        print(server.url)

A `Server` owns its store, its listener and its background tasks. It handles no signals; `process.run` does, for a
process that runs only a server. A `Server` is also an ASGI application, for use under another listener.
"""

import asyncio
import contextlib
import dataclasses
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TextIO, TypeVar

from ..dashboard.pages import Pages
from ..http.app import App
from ..http.auth import Authenticator
from ..http.codec import Receive, Scope, Send
from ..http.dashboard_access import DashboardAccess
from ..http.dashboard_routes import DashboardRoutes
from ..http.node_routes import ThisNode
from ..http.server.client_address import TrustedProxies
from ..http.server.connection_limits import ConnectionLimits
from ..http.server.listener import Listener
from ..http.sessions import Sessions
from ..ports.clock import Clock, SystemClock
from ..rules.errors import LockError, StoreUnavailableError
from ..rules.shares import Budgets
from ..service.lock_service import LockService
from ..stores import OpenStore, open_store, shown_url, sqlite_path
from ..telemetry import LineWriter, Log, Metrics
from .admin_token import admin_token
from .certificate import CertificateWatch, certificate_watch
from .file_watch import WATCH_FILE_SECONDS, FileWatch
from .hold_report import CHECK_EVERY_SECONDS, HoldReport
from .issue_service_key import IssuedKey, issue_service_key
from .listen_errors import listen_errors
from .settings import Settings, SettingsError, read_token

T = TypeVar("T")

DRAIN_SECONDS_MAX: Final = 15.0
PURGE_EVERY_SECONDS: Final = 60.0
PURGE_AUDIT_EVERY_SECONDS: Final = 3_600.0
PURGE_MAX: Final = 1_000
PURGES_MAX: Final = 1_000
LAST_USED_EVERY_SECONDS: Final = 10.0
STORE_CLOSE_SECONDS_MAX: Final = 10.0


class Server:
    """One server: call `start`, then `close`, or use `async with`. It can be started once.

    `store` is an open store to use in place of the settings' one; the server closes it. `bound` is a socket that
    already has the settings' address. `worker` is this server's number among the processes that share it. `budgets`
    are for tests that need other limits.
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
        budgets: Budgets | None = None,
    ) -> None:
        self.settings: Final = settings
        self.clock: Final[Clock] = clock if clock is not None else SystemClock()
        self.budgets: Final = budgets or Budgets()
        self.log: Final[Log] = Log(
            LineWriter(log_stream, self.budgets.log_lines_waiting),
            settings.log_level,
            worker=worker,
            log_grants=settings.log_grants,
            rate=self.budgets.log_lines_per_second,
        )
        self.metrics: Final = Metrics(
            log_lines_dropped=lambda: self.log.writer.dropped,
            budgets=self._current_budgets,
            worker=worker,
            per_project=settings.metrics_per_project,
        )
        self._bound: Final = bound
        self._worker: Final = worker
        self.admin_token = ""
        file = settings.metrics_token_file
        self._metrics_token: Final = None if file is None else read_token("metrics_token_file", file)
        self._store = store
        self._service: LockService | None = None
        self._authenticator: Authenticator | None = None
        self._sessions: Sessions | None = None
        self._app: App | None = None
        self._listener: Listener | None = None
        self._certificate: CertificateWatch | None = None
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
        if store.is_new:
            self.log.warning("store_created", store=shown_url(self.settings.store))
        self.admin_token = admin_token(self.settings, database)
        self._service = service = LockService(
            store.locks,
            self.clock,
            quotas=store.quotas,
            owner_reserve=self.settings.owner_reserve,
            keeps_history=self.settings.history_days > 0,
            batches_in_flight=store.batches_in_flight,
            batch_max=store.batch_max,
            several_nodes=store.quotas is not None,
            signals=store.signals,
            budgets=self.budgets,
            on_batch=self.metrics.batch,
        )
        service.hub.start()
        self.metrics.waiters = lambda: service.queues.table.request_count
        self.metrics.watchers = lambda: service.hub.subscriber_count
        if (counts := store.counts) is not None:
            self.metrics.store_counts = lambda: dataclasses.asdict(counts)
        self.metrics.file = store.file
        self._authenticator = authenticator = Authenticator(
            store.registry, self.clock, self.admin_token, store.admin_tokens, self._metrics_token
        )
        self._app = App(
            service=service,
            store=store.locks,
            registry=store.registry,
            admin_tokens=store.admin_tokens,
            audit=store.audit,
            authenticator=authenticator,
            clock=self.clock,
            log=self.log,
            metrics=self.metrics,
            backups=store.backups,
            node=ThisNode(
                self.settings.store.partition("://")[0],
                self._worker,
                self.clock.now_ms(),
                store.nodes,
                self._connection_count,
            ),
            dashboard=self._dashboard_routes(store, authenticator) if self.settings.dashboard else None,
        )
        hold_report = HoldReport(store.locks, self.log)
        await hold_report.check()
        self._background_tasks = [
            asyncio.create_task(self._repeat(CHECK_EVERY_SECONDS, hold_report.check), name="hold-report"),
            asyncio.create_task(self._repeat(PURGE_EVERY_SECONDS, self.purge), name="purge"),
            asyncio.create_task(self._repeat(PURGE_AUDIT_EVERY_SECONDS, self.purge_audit), name="purge-audit"),
            asyncio.create_task(self._repeat(LAST_USED_EVERY_SECONDS, self.remember_last_used), name="last-used"),
        ]
        if store.file is not None:
            watch = self._repeat(WATCH_FILE_SECONDS, FileWatch(store.file, self.log).check)
            self._background_tasks.append(asyncio.create_task(watch, name="watch-file"))

    def _dashboard_routes(self, store: OpenStore, authenticator: Authenticator) -> DashboardRoutes:
        access = DashboardAccess(self.settings.dashboard_hosts or "", self.settings.host)
        self._sessions = sessions = Sessions(store.sessions, authenticator, access, self.clock)
        return DashboardRoutes(sessions, authenticator, self.clock, self.log, Pages().serve)

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
            self._certificate = certificate_watch(settings, self.clock, self.log, self.metrics)
            proxies = TrustedProxies(settings.trusted_proxies or "")
            listener = Listener(
                host=settings.host,
                port=settings.port,
                tls=None if self._certificate is None else self._certificate.context,
                log=self.log,
                limits=ConnectionLimits(per_address=settings.connections_per_address, is_exempt=proxies.trusts),
                proxies=proxies,
                bound=self._bound,
            )
            with listen_errors(settings):
                listener.bind()
            self._listener = listener
            await self.open()
            self.metrics.connections = lambda: listener.connections
            with listen_errors(settings):
                await listener.start(self.app)
            if self._certificate is not None:
                self._certificate.start(listener.use_tls)
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
        if self._certificate is not None:
            self._certificate.stop()
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
        self._app = self._listener = self._service = self._store = self._authenticator = self._sessions = None
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

    async def dashboard_link(self, credential: str) -> str:
        """A link that signs in to the dashboard of a started server with this service key or admin token (UI-2).

        It works once, within a minute. Raises LockError.
        """
        principal = await _required(self._authenticator).any_principal(f"Bearer {credential}".encode())
        code, _good_until_ms = await _required(self._sessions).new_code(principal)
        return f"{self.url}/ui#code={code}"

    async def probe_store(self) -> None:
        """Return if the store can write (OPS-10), raise StoreUnavailableError if not. Has no time limit."""
        await self.app.probe_store()

    def reload_certificate(self) -> None:
        """Load the certificate again, for new handshakes (OPS-7). The log has the outcome."""
        if self._certificate is None:
            self.log.info("reload_ignored", why="TLS is off, so there is no certificate to reload")
        else:
            self._certificate.reload()

    def _connection_count(self) -> int:
        return 0 if self._listener is None else self._listener.connections

    def _current_budgets(self) -> Budgets:
        self.log.settle()
        return self.budgets

    async def purge(self) -> None:
        """Delete the records that may be forgotten (LEASE-13) and old history (HISTORY-4), PURGE_MAX at a time."""
        locks, days = self.store.locks, self.settings.history_days
        await _repeat_purge(lambda: locks.purge(limit=PURGE_MAX, keeps_history=days > 0))
        await _repeat_purge(lambda: locks.purge_history(kept_days=days, limit=PURGE_MAX))

    async def purge_audit(self) -> None:
        """Delete the entries of the audit past its bounds (AUDIT-3)."""
        await self.store.audit.purge(self.clock.now_ms())

    async def remember_last_used(self) -> None:
        """Store when service keys and admin tokens were last used."""
        if self._authenticator is None:
            return
        if last_used_at_ms := self._authenticator.take_last_used():
            await self.store.registry.touch_service_keys(last_used_at_ms)
        if last_used_at_ms := self._authenticator.take_admin_last_used():
            await self.store.admin_tokens.touch(last_used_at_ms)

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


async def _repeat_purge(purge: Callable[[], Awaitable[int]]) -> None:
    for _ in range(PURGES_MAX):
        if await purge() < PURGE_MAX:
            return


def _required(part: T | None) -> T:
    if part is None:
        raise RuntimeError("this server is not running: start it first")
    return part
