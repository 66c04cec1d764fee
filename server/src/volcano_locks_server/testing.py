"""Fixtures for tests of this server and of its clients: a manual clock, in-memory ports and a running server."""

import asyncio
import contextlib
import heapq
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, Literal, TextIO

import uvloop

from .ports.clock import Clock, Timer
from .ports.lock_store import LockPage, LockQuery, LockStore, RecordKey, Step
from .rules.errors import StoreUnavailableError
from .runtime.server import Server
from .runtime.settings import Settings
from .stores import OpenStore
from .stores.memory import MemoryRegistry, MemoryStore
from .stores.signal_packets import SignalOutbox, parse_packet

# 2026-07-20T14:00:00Z: a whole minute, so that a quota's window begins with the test.
START_MS: Final = 1_784_556_000_000


class ManualClock:
    """A clock that stands still until the test moves it, from any thread.

    A timer (`call_in`) that is due by the new time fires soon after the move, in the loop that set it. Timers fire in
    the order of their due times.
    """

    def __init__(self, now_ms: int = START_MS) -> None:
        self._now_ms = now_ms
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


When = Literal["before", "after"]


class FaultyStore:
    """A lock store around `inner` whose calls fail or wait on demand.

    - While `failure` is set, `update`, `ready` and `count_held` raise it, and `inner` is not called.
    - `fail_updates` makes the next updates unavailable, before or after they are written.
    - While `gate` is cleared, updates wait at it, `gate_at` before or after they are written.

    `calls` counts calls by method, `batch_sizes` has the results of each update that was written, and `at_gate` is the
    number of updates at the gate. `entered` is released once for each update that begins.
    """

    def __init__(self, inner: LockStore, *, gate_at: When = "before") -> None:
        self.inner: Final = inner
        self.failure: Exception | None = None
        self.gate: Final = asyncio.Event()
        self.gate.set()
        self.gate_at: Final = gate_at
        self.entered: Final = asyncio.Semaphore(0)
        self.at_gate = 0
        self.calls: Final[Counter[str]] = Counter()
        self.batch_sizes: Final[list[int]] = []
        self._failures: Iterator[When] = iter(())
        self._passes: Final[asyncio.Queue[None]] = asyncio.Queue()

    def fail_updates(self, moments: Iterable[When]) -> None:
        """Let the next updates fail, each at its moment: before or after it is written."""
        self._failures = chain(self._failures, moments)

    def recover(self) -> None:
        """End all failures."""
        self.failure = None
        self._failures = iter(())

    def let_through(self, count: int) -> None:
        """Let `count` updates pass the closed gate."""
        for _ in range(count):
            self._passes.put_nowait(None)

    async def update(self, keys: Sequence[RecordKey], step: Step) -> Sequence[object]:
        self.calls["update"] += 1
        self.entered.release()
        fails = next(self._failures, None)
        if self.gate_at == "before":
            await self._pass_gate()
        self._fail()
        if fails == "before":
            raise StoreUnavailableError("store_error", "the test let this update fail before it was written")
        results = await self.inner.update(keys, step)
        self.batch_sizes.append(len(results))
        if self.gate_at == "after":
            await self._pass_gate()
        if fails == "after":
            raise StoreUnavailableError("store_error", "the test let this update fail after it was written")
        return results

    async def list_locks(self, query: LockQuery) -> LockPage:
        return await self.inner.list_locks(query)

    async def count_held(self) -> int:
        self.calls["count_held"] += 1
        self._fail()
        return await self.inner.count_held()

    async def purge(self, *, limit: int) -> int:
        return await self.inner.purge(limit=limit)

    async def ready(self) -> None:
        self.calls["ready"] += 1
        await asyncio.sleep(0)  # so that concurrent probes overlap, as they do with a store over a network
        self._fail()
        await self.inner.ready()

    def _fail(self) -> None:
        if self.failure is not None:
            raise self.failure

    async def _pass_gate(self) -> None:
        if self.gate.is_set():
            return
        self.at_gate += 1
        passages = [asyncio.create_task(self.gate.wait()), asyncio.create_task(self._passes.get())]
        try:
            await asyncio.wait(passages, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.at_gate -= 1
            for passage in passages:
                passage.cancel()


class MemoryQuotas:
    """A `QuotaStore` for several services in one event loop. `gone` counts draws by project and minute."""

    def __init__(self) -> None:
        self.gone: Final[Counter[tuple[str, int]]] = Counter()

    async def take(self, project_id: str, window_started_at_ms: int, *, limit: int, wanted: int) -> int:
        drawn = max(0, min(wanted, limit - self.gone[project_id, window_started_at_ms]))
        self.gone[project_id, window_started_at_ms] += drawn
        return drawn


class SignalBus:
    """Connects several services in one event loop, each through its `MemorySignals(bus)`.

    While `loses` is true, messages are lost silently.
    """

    def __init__(self) -> None:
        self.nodes: Final[list[MemorySignals]] = []
        self.loses = False

    def miss(self) -> None:
        """Notify every node that it may have missed messages."""
        for node in list(self.nodes):
            node.on_missed()


class MemorySignals:
    """The `Signals` of one service on a bus. A message arrives in the next turn of the loop."""

    def __init__(self, bus: SignalBus) -> None:
        self._bus: Final = bus
        self._outbox: Final = SignalOutbox(100_000)
        self._is_sending = False
        self.on_message: Callable[[bytes], None]
        self.on_missed: Callable[[], None]

    @property
    def working(self) -> bool:
        return self in self._bus.nodes

    def start(self, on_message: Callable[[bytes], None], on_missed: Callable[[], None]) -> None:
        self.on_message, self.on_missed = on_message, on_missed
        self._bus.nodes.append(self)
        asyncio.get_running_loop().call_soon(self._send)
        on_missed()

    def publish(self, message: bytes) -> None:
        self._outbox.put(message)
        if self.working and not self._is_sending:
            self._is_sending = True
            asyncio.get_running_loop().call_soon(self._send)

    async def close(self) -> None:
        if self.working:
            self._send()
            self._bus.nodes.remove(self)

    def _send(self) -> None:
        self._is_sending = False
        packets = []
        while self._outbox:
            packets.append(parse_packet(self._outbox.packet()))
        for packet in packets:
            for node in list(self._bus.nodes):
                if packet is not None and not self._bus.loses:
                    packet.deliver(node.on_message, node.on_missed)


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
    return OpenStore(locks, MemoryRegistry(locks))


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
