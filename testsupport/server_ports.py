"""Doubles of the server's ports, for one event loop: a faulty store, shared quotas, and signals between nodes."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Final, Literal

from volcano_locks_server.ports.lock_store import (
    HistoryPage,
    HistoryQuery,
    LockPage,
    LockQuery,
    LockStore,
    RecordKey,
    Step,
    TakeoverHold,
)
from volcano_locks_server.rules.errors import StoreUnavailableError
from volcano_locks_server.stores.signal_packets import SignalOutbox, parse_packet

When = Literal["before", "after"]


class FaultyStore:
    """A lock store around `inner` whose calls fail or wait on demand.

    - While `failure` is set, `update`, `ready` and `count_held` raise it, and `inner` is not called.
    - `fail_updates` makes the next updates unavailable, before or after they are written.
    - While `gate` is cleared, updates wait at it, `gate_at` before or after they are written.

    `calls` counts calls by method, `batch_sizes` the number of results of each written update, and `at_gate` is the
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

    async def purge(self, *, limit: int, keeps_history: bool = False) -> int:
        return await self.inner.purge(limit=limit, keeps_history=keeps_history)

    async def history_page(self, query: HistoryQuery) -> HistoryPage:
        return await self.inner.history_page(query)

    async def purge_history(self, *, kept_days: int, limit: int, entries_max: int | None = None) -> int:
        return await self.inner.purge_history(kept_days=kept_days, limit=limit, entries_max=entries_max)

    async def ready(self) -> None:
        self.calls["ready"] += 1
        await asyncio.sleep(0)  # so that concurrent probes overlap, as they do with a store over a network
        self._fail()
        await self.inner.ready()

    def takeover_hold(self) -> TakeoverHold | None:
        return self.inner.takeover_hold()

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
