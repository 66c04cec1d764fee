"""A server for the faces that speak HTTP, in a thread of its own, under a clock that the scenario moves.

Two kinds. A listening house is the very `Server` that `serve` starts, with its listener on a loopback port. A house
that does not listen is the same ASGI application put together by hand over a store that can be told to fail.
"""

import asyncio
import io
from collections.abc import Callable
from pathlib import Path
from typing import Final

import httpx2

from volcano_locks_server.http.app import App
from volcano_locks_server.http.auth import Access
from volcano_locks_server.ports.registry import Registry
from volcano_locks_server.rules.errors import LockError
from volcano_locks_server.runtime.server import Server
from volcano_locks_server.runtime.service_keys import issue_service_key
from volcano_locks_server.runtime.settings import Settings
from volcano_locks_server.service.lock_service import LockService
from volcano_locks_server.stores import OpenStore, open_store
from volcano_locks_server.telemetry import Metrics, new_log
from volcano_locks_server.testing import FaultyStore, ManualClock

from ..scenario.parser import Quota
from .event_loop import LoopThread
from .failures import failure
from .faulty_store import store_failures
from .quiescence import come_to_rest
from .service import PURGE_LIMIT
from .store_search import kept_by, search
from .target import Answer

SOON_SECONDS: Final = 0.02
ADMIN_TOKEN: Final = "conformance-admin-token"


class House:
    """A server with one project, its quota, and one service key, which outlive `restart`."""

    def __init__(self, quota: Quota, store_url: str, folder: Path, *, listening: bool = True) -> None:
        self._quota: Final = quota
        self._store_url: Final = store_url
        self._folder: Final = folder
        self._listening: Final = listening
        self._log: Final = io.StringIO()
        self._port = 0
        self._up = False
        self.clock = ManualClock()
        self._start_ms: Final = self.clock.now_ms()
        self._moved_seconds = 0.0
        self.loop: Final = LoopThread("server")
        self.loop.run(self._start())
        self.service_key: Final = self.loop.run(self._furnish())

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self._port}" if self._listening else "http://in.process"

    def transport(self) -> httpx2.AsyncBaseTransport:
        """The way to it, good until the next restart. A house that does not listen is reached in its own loop."""
        return httpx2.AsyncHTTPTransport() if self._listening else httpx2.ASGITransport(app=self._app)

    def restart(self, clock_behind_ms: int = 0) -> Answer:
        """Stop and start over the same store, with the clock set back by so much."""
        self.loop.run(self._stop())
        self.clock = ManualClock(self.clock.now_ms() - clock_behind_ms)
        try:
            self.loop.run(self._start())
        except LockError as error:
            return failure(error.code, error.retry_after_seconds)
        return {}

    def follow(self, seconds: float) -> None:
        """Move the clock on with a client's, which tells each move; only their sum is rounded to milliseconds."""
        self._moved_seconds += seconds
        self.clock.set(self._start_ms + round(self._moved_seconds * 1_000))

    def due_in_seconds(self) -> float | None:
        """How long until something is to be done by its clock, to the instant of the clock that it follows; None if
        nothing is.
        """
        due_ms = self.clock.next_due_ms()
        return None if due_ms is None else (due_ms - self._start_ms) / 1_000 - self._moved_seconds

    def is_at_rest(self, under_way: int) -> bool:
        """Whether all that it does is to keep `under_way` requests waiting in lines, which is all that is under way."""
        if not self._up:
            return under_way == 0
        return (self._server.app if self._listening else self._app).rests_with(under_way)

    def settle(self, under_way: Callable[[], int]) -> None:
        """Return once it is at rest. `under_way` tells how many requests its clients have."""
        self.loop.run(come_to_rest(lambda: self.is_at_rest(under_way())))

    def soon_rests(self, under_way: int) -> bool:
        """Whether it comes to rest within a moment: an answer may be on its way to a client that is asking this."""

        async def soon() -> bool:
            try:
                async with asyncio.timeout(SOON_SECONDS):
                    await come_to_rest(lambda: self.is_at_rest(under_way))
            except TimeoutError:
                return False
            return True

        return self.loop.run(soon())

    def fail(self, kind: str, count: int) -> None:
        """Have the store of a house that does not listen fail, see `FaultyStore.fail_updates`."""
        self._faults.recover()
        self._faults.fail_updates(store_failures(kind, count))

    def purge(self) -> Answer:
        """Forget what is old enough."""
        return {"purged": self.loop.run(self._store.locks.purge(limit=PURGE_LIMIT))}

    def search(self, text: str) -> Answer:
        """Look for an owner token in the store and in the log, which is at its most talkative."""
        return search(text, [self._log.getvalue().encode(), *kept_by(self._store, self._folder)])

    def close(self) -> None:
        self.loop.run(self._stop())
        self.loop.close()

    async def _start(self) -> None:
        if self._listening:
            await self._start_listening()
        else:
            await self._put_together()
        self._up = True

    async def _start_listening(self) -> None:
        settings = Settings(
            store=self._store_url,
            port=self._port,
            admin_token=ADMIN_TOKEN,
            owner_reserve=self._quota.owner_reserve,
            log_level="debug",
        )
        self._server = Server(settings, clock=self.clock, log_stream=self._log)
        await self._server.start()
        self._port = int(self._server.url.rpartition(":")[2])
        self._store: OpenStore = self._server.store

    async def _put_together(self) -> None:
        self._store = await open_store(self._store_url, self.clock)
        self._faults = FaultyStore(self._store.locks)
        self._service = LockService(self._faults, self.clock, owner_reserve=self._quota.owner_reserve)
        self._own_log = new_log("debug", self._log)
        self._app = App(
            service=self._service,
            store=self._faults,
            registry=self._store.registry,
            access=Access(self._store.registry, self.clock, ADMIN_TOKEN),
            clock=self.clock,
            log=self._own_log,
            metrics=Metrics(),
        )

    async def _furnish(self) -> str:
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
