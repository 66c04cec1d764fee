"""A server for the HTTP targets, in a thread of its own, under a clock that the scenario moves.

A listening harness runs the `Server` that `serve` starts, on a loopback port. One that does not listen runs the same
ASGI application over a store that fails on demand.
"""

import asyncio
import io
from collections.abc import Callable
from pathlib import Path
from typing import Final

import httpx2
from testsupport.server_ports import FaultyStore

from volcano_locks_server.http.app import App
from volcano_locks_server.http.auth import Authenticator
from volcano_locks_server.ports.registry import Registry
from volcano_locks_server.rules.errors import LockError
from volcano_locks_server.rules.shares import Budgets
from volcano_locks_server.runtime.issue_service_key import issue_service_key
from volcano_locks_server.runtime.server import Server
from volcano_locks_server.runtime.settings import Settings
from volcano_locks_server.service.lock_service import LockService
from volcano_locks_server.stores import OpenStore, open_store
from volcano_locks_server.telemetry import LineWriter, Log, Metrics
from volcano_locks_server.testing import ManualClock

from ..scenario.parser import Quota
from .advance_clock import settle
from .lock_service import PURGE_LIMIT
from .loop_thread import LoopThread
from .results import failure
from .store_failures import store_failures
from .store_search import search, stored_bytes
from .target import Result

MESSAGES_SECONDS_MAX: Final = 60
SOON_SECONDS: Final = 0.02
ADMIN_TOKEN: Final = "conformance-admin-token"


class ServerHarness:
    """A server with one project, its quota, and one service key, which survive `restart`."""

    def __init__(self, quota: Quota, store_url: str, folder: Path, *, listening: bool = True) -> None:
        self._quota: Final = quota
        self._store_url: Final = store_url
        self._folder: Final = folder
        self._listening: Final = listening
        self._log: Final = io.StringIO()
        self.port = 0
        self._up = False
        self.clock = ManualClock()
        self._start_ms: Final = self.clock.now_ms()
        self._moved_seconds = 0.0
        self.loop: Final = LoopThread("server")
        self.loop.run(self._start())
        self.service_key: Final = self.loop.run(self._create_service_key())

    @property
    def url(self) -> str:
        """The base URL of the API."""
        return f"http://127.0.0.1:{self.port}" if self._listening else "http://in.process"

    def transport(self) -> httpx2.AsyncBaseTransport:
        """A transport to the server, valid until the next restart. Without a listener it works in `loop` only."""
        return httpx2.AsyncHTTPTransport() if self._listening else httpx2.ASGITransport(app=self._app)

    def restart(self, clock_behind_ms: int = 0) -> Result:
        """Stop and start over the same store, with the clock set back by `clock_behind_ms`."""
        self.loop.run(self._stop())
        self.clock = ManualClock(self.clock.now_ms() - clock_behind_ms)
        try:
            self.loop.run(self._start())
        except LockError as error:
            return failure(error.code, error.retry_after_seconds)
        return {}

    def follow(self, seconds: float) -> None:
        """Advance the clock with a client's clock. Only the sum of all moves is rounded to milliseconds."""
        self._moved_seconds += seconds
        self.clock.set(self._start_ms + round(self._moved_seconds * 1_000))

    def due_in_seconds(self) -> float | None:
        """Seconds of the client's clock until something is due by the server's clock; None if nothing is."""
        due_ms = self.clock.next_due_ms()
        return None if due_ms is None else (due_ms - self._start_ms) / 1_000 - self._moved_seconds

    def is_idle(self, in_flight: int) -> bool:
        """Whether all `in_flight` requests of the clients wait in the server's queues, and it is otherwise idle."""
        if not self._up:
            return in_flight == 0
        return (self._server.app if self._listening else self._app).is_idle_but_for(in_flight)

    def settle(self, in_flight: Callable[[], int]) -> None:
        """Return when the server is idle. `in_flight` returns the number of requests that its clients have."""
        self.loop.run(settle(lambda: self.is_idle(in_flight())))

    def is_idle_soon(self, in_flight: Callable[[], int]) -> bool:
        """Whether the server becomes idle within SOON_SECONDS. If not, a response may be on its way to the client."""

        async def soon() -> bool:
            try:
                async with asyncio.timeout(SOON_SECONDS):
                    await settle(lambda: self.is_idle(in_flight()))
            except TimeoutError:
                return False
            return True

        return self.loop.run(soon())

    def fail(self, kind: str, count: int) -> None:
        """Make the store fail, see `FaultyStore.fail_updates`. For a harness that does not listen."""
        self._faults.recover()
        self._faults.fail_updates(store_failures(kind, count))

    def purge(self) -> Result:
        """Purge the records that are old enough."""
        return {"purged": self.loop.run(self._store.locks.purge(limit=PURGE_LIMIT))}

    def search(self, token: str) -> Result:
        """Search the store and the log, at level debug, for an owner token."""
        return search(token, [self._log.getvalue().encode(), *stored_bytes(self._store, self._folder)])

    def close(self) -> None:
        self.loop.run(self._stop())
        self.loop.close()

    async def _start(self) -> None:
        if self._listening:
            await self._start_listening()
        else:
            await self._start_in_process()
        self._up = True

    async def _start_listening(self) -> None:
        settings = Settings(
            store=self._store_url,
            port=self.port,
            admin_token=ADMIN_TOKEN,
            owner_reserve=self._quota.owner_reserve,
            log_level="debug",
        )
        self._server = Server(settings, clock=self.clock, log_stream=self._log, budgets=Budgets(self._quota.budgets))
        await self._server.start()
        self.port = int(self._server.url.rpartition(":")[2])
        self._store: OpenStore = self._server.store
        if (signals := self._store.signals) is not None:  # a node that begins to receive messages resets its streams
            async with asyncio.timeout(MESSAGES_SECONDS_MAX):
                await settle(lambda: signals.working)

    async def _start_in_process(self) -> None:
        self._store = await open_store(self._store_url, self.clock)
        self._faults = FaultyStore(self._store.locks)
        self._service = LockService(
            self._faults,
            self.clock,
            owner_reserve=self._quota.owner_reserve,
            budgets=Budgets(self._quota.budgets),
        )
        self._own_log = Log(LineWriter(self._log), "debug")
        self._app = App(
            service=self._service,
            store=self._faults,
            registry=self._store.registry,
            admin_tokens=self._store.admin_tokens,
            audit=self._store.audit,
            authenticator=Authenticator(self._store.registry, self.clock, ADMIN_TOKEN, self._store.admin_tokens),
            clock=self.clock,
            log=self._own_log,
            metrics=Metrics(),
        )

    async def _create_service_key(self) -> str:
        registry: Registry = self._store.registry
        issued = await issue_service_key(registry, self.clock.now_ms(), "conformance", "conformance")
        limit = self._quota.requests_per_minute
        await registry.change_project(issued.project_id, name=None, requests_per_minute=limit)
        return issued.secret

    async def _stop(self) -> None:
        if not self._up:
            return
        self._up = False
        if self._listening:
            await self._server.close()
            return
        await self._service.close()
        await self._store.close()
        self._own_log.writer.close()
