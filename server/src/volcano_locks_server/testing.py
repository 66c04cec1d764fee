"""Fixtures for tests of this server and of its clients: a manual clock and a running server."""

import asyncio
import contextlib
import heapq
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Final, TextIO
from uuid import uuid4

import uvloop

from .ports.clock import Boot, Clock, Timer
from .runtime.server import Server
from .runtime.settings import Settings
from .stores import OpenStore
from .stores.memory import MemoryRegistry, MemoryStore
from .stores.memory_admin_tokens import MemoryAdminTokens
from .stores.memory_audit import MemoryAudit
from .stores.memory_sessions import MemorySessions

# 2026-07-20T14:00:00Z: a whole minute, so that a quota's window begins with the test.
START_MS: Final = 1_784_556_000_000


class ManualClock:
    """A clock that stands still until the test moves it, from any thread.

    `jump` moves it without time passing, `reboot` restarts its machine. `is_synchronised` is what the kernel reports.

    A timer (`call_in`) that is due by the new time fires soon after the move, in the loop that set it. Timers fire in
    the order of their due times.
    """

    def __init__(self, now_ms: int = START_MS) -> None:
        self._now_ms = now_ms
        self._booted_at_ms = now_ms
        self.boot_id = uuid4().hex
        self.is_synchronised = True
        self._guard: Final = threading.Lock()
        self._timers: Final[list[_ManualTimer]] = []
        self._timers_made = 0

    def call_in(self, ms: int, call: Callable[[], None], *, slack_ms: int = 0) -> Timer:  # noqa: ARG002 - never late
        with self._guard:
            self._timers_made += 1
            due = (self._now_ms + max(0, ms), self._timers_made)
            timer = _ManualTimer(due, asyncio.get_running_loop(), call)
            heapq.heappush(self._timers, timer)
            self._fire()
        return timer

    def _fire(self) -> None:
        while self._timers and self._timers[0].due[0] <= self._now_ms:
            timer = heapq.heappop(self._timers)
            with contextlib.suppress(RuntimeError):  # its loop is closed
                timer.loop.call_soon_threadsafe(timer.fire)

    def now_ms(self) -> int:
        return self._now_ms

    def next_due_ms(self) -> int | None:
        """The due time of the next timer, None if there is none; for tests that stop there."""
        with self._guard:
            while self._timers and self._timers[0].call is None:
                heapq.heappop(self._timers)
            return self._timers[0].due[0] if self._timers else None

    def advance(self, ms: int) -> int:
        """Advance by `ms` milliseconds; returns the new time."""
        if ms < 0:
            raise ValueError(f"a clock never goes back; got {ms} ms")
        with self._guard:
            self._now_ms += ms
            self._fire()
            return self._now_ms

    def jump(self, ms: int) -> int:
        """Step the wall clock by `ms` milliseconds, back if negative. No time passes, so no timer fires."""
        with self._guard:
            self._now_ms += ms
            self._booted_at_ms += ms
            for timer in self._timers:
                timer.due = timer.due[0] + ms, timer.due[1]
            return self._now_ms

    def reboot(self) -> None:
        """From now on this is another boot, or another machine."""
        self.boot_id, self._booted_at_ms = uuid4().hex, self._now_ms

    def boot(self) -> Boot:
        return Boot(self.boot_id, self._now_ms - self._booted_at_ms)

    def synchronised_ms(self) -> int | None:
        return self._now_ms if self.is_synchronised else None

    def set(self, now_ms: int) -> int:
        """Advance to `now_ms`; returns the new time."""
        with self._guard:
            if now_ms < self._now_ms:
                raise ValueError(f"a clock never goes back; it is {self._now_ms}, got {now_ms}")
            self._now_ms = now_ms
            self._fire()
            return self._now_ms


@dataclass(slots=True)
class _ManualTimer:
    due: tuple[int, int]  # due time, then order of creation
    loop: asyncio.AbstractEventLoop
    call: Callable[[], None] | None

    def __lt__(self, other: "_ManualTimer") -> bool:
        return self.due < other.due

    def cancel(self) -> None:
        self.call = None

    def fire(self) -> None:
        if self.call is not None:
            self.call()
            self.call = None


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server that listens at `url`, with a project and a service key for the test.

    `server.app` is its ASGI application, for tests in the same event loop. The repr leaves out the secrets.
    """

    server: Server
    url: str
    project_id: str
    service_key: str = field(repr=False)
    admin_token: str = field(repr=False)


def memory_store(locks: MemoryStore) -> OpenStore:
    """An open store around `locks`, for a `Server` that gets its store from the test."""
    audit = getattr(locks, "audit", None) or MemoryAudit()  # the test may have put another store in front
    return OpenStore(locks, MemoryRegistry(locks, audit), MemoryAdminTokens(audit), MemorySessions(audit), audit)


@asynccontextmanager
async def running_server_async(
    settings: Settings | None = None,
    *,
    clock: Clock | None = None,
    store: OpenStore | None = None,
    store_url: str = "memory://",
    log_stream: TextIO | None = None,
) -> AsyncIterator[RunningServer]:
    """A server in this event loop, on a free loopback port unless `settings` say otherwise.

    `store` is an open store to use in place of `store_url`, such as `memory_store(FaultyStore(…))`.
    """
    used = settings or Settings(store=store_url, port=0, log_level="warning")
    async with Server(used, clock=clock, store=store, log_stream=log_stream) as server:
        issued = await server.issue_service_key("test", "test")
        yield RunningServer(server, server.url, issued.project_id, issued.secret, server.admin_token)


@contextmanager
def running_server(
    settings: Settings | None = None,
    *,
    clock: Clock | None = None,
    store_url: str = "memory://",
    log_stream: TextIO | None = None,
) -> Iterator[RunningServer]:
    """The same server in a thread with an event loop of its own, for tests that are not asynchronous."""
    ready: Future[tuple[RunningServer, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def serve() -> None:
        stop = asyncio.Event()
        async with running_server_async(settings, clock=clock, store_url=store_url, log_stream=log_stream) as running:
            ready.set_result((running, asyncio.get_running_loop(), stop))
            await stop.wait()

    def thread() -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(serve())
        except BaseException as error:
            if ready.done():
                raise
            ready.set_exception(error)

    serving = threading.Thread(target=thread, name="running-server", daemon=True)
    serving.start()
    running, loop, stop = ready.result()
    try:
        yield running
    finally:
        loop.call_soon_threadsafe(stop.set)
        serving.join()
