"""Words for tests of what watchers are told: hubs over one memory store, and commands that are told to them."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from volcano_locks_server.events import EventHub, LockEvent, NumberedEvent, Subscriber, lock_events
from volcano_locks_server.ports.clock import Clock
from volcano_locks_server.ports.lock_store import RecordKey, Records, Stepped
from volcano_locks_server.ports.signals import Signals
from volcano_locks_server.rules.lease import Command, LockRecord, Outcome, decide
from volcano_locks_server.rules.values import LockKey
from volcano_locks_server.stores.memory import MemoryStore
from volcano_locks_server.testing import ManualClock, MemorySignals, SignalBus

PROJECT = "project"
MINE, OTHER = b"m" * 32, b"o" * 32


class FakeQueues:
    """Lines of a node, as long as the test says, which remember who looked at them."""

    def __init__(self) -> None:
        self.waiting: Counter[RecordKey] = Counter()
        self.rechecked: list[RecordKey | None] = []

    def count(self, lock: RecordKey) -> int:
        return self.waiting[lock]

    def keys(self) -> list[RecordKey]:
        return [lock for lock, count in self.waiting.items() if count]

    def recheck(self, lock: RecordKey) -> None:
        self.rechecked.append(lock)

    def recheck_all(self) -> None:
        self.rechecked.append(None)


def lock(key: str, project_id: str = PROJECT) -> RecordKey:
    return RecordKey(project_id, LockKey(key))


class Node:
    """A hub over a store, and commands that are told to it as a service would."""

    def __init__(self, store: MemoryStore, clock: Clock, signals: Signals | None = None) -> None:
        self.clock = clock
        self.store = store
        self.queues = FakeQueues()
        self.hub = EventHub(store, clock, self.queues, signals=signals)

    async def do(self, key: str, command: Command, project_id: str = PROJECT) -> Outcome:
        """One command, committed and told."""
        return (await self.do_all([(key, command)], project_id))[0]

    async def do_all(self, asked: Sequence[tuple[str, Command]], project_id: str = PROJECT) -> list[Outcome]:
        """Commands of one batch."""
        told: list[LockEvent] = []
        outcomes: list[Outcome] = []

        def step(records: Records, now_ms: int) -> Stepped:
            kept: dict[RecordKey, LockRecord | None] = dict(records)
            for key, command in asked:
                one = lock(key, project_id)
                before = kept[one]
                kept[one], outcome = decide(before, command, now_ms)
                outcomes.append(outcome)
                told.extend(lock_events(one, command, before, kept[one], outcome, now_ms=now_ms))
            return Stepped({one: record for one, record in kept.items() if record is not None}, outcomes)

        await self.store.update([lock(key, project_id) for key in {key for key, _ in asked}], step)
        if self.hub.live:
            self.hub.publish(told)
        return outcomes

    async def watch(self, *, key: str | None = None, prefix: str = "", after: str | None = None) -> Subscriber:
        watcher = Subscriber(PROJECT, key=key, prefix=prefix)
        await self.hub.subscribe(watcher, after=after)
        await turns()
        return watcher


@asynccontextmanager
async def nodes(count: int, clock: ManualClock) -> AsyncIterator[tuple[SignalBus, list[Node]]]:
    """Nodes over one memory store, joined by a bus."""
    bus, store = SignalBus(), MemoryStore(clock)
    signals = [MemorySignals(bus) for _ in range(count)]
    made = [Node(store, clock, one) for one in signals]
    for node in made:
        node.hub.start()
    for node in made:
        assert node.hub._peers is not None
        await node.hub._peers.interest_settled()
        del node.queues.rechecked[:]
    yield bus, made
    for node, one in zip(made, signals, strict=True):
        await node.hub.close()
        await one.close()


async def moved(clock: ManualClock, ms: int) -> None:
    """Move the clock, and let what is due be done."""
    clock.advance(ms)
    await turns()


def timers(clock: ManualClock) -> int:
    """How many wait for the clock."""
    return sum(timer.call is not None for timer in clock._timers)


async def turns(count: int = 20) -> None:
    """Let the loop go round: what was told is heard, what was asked of the memory store is answered."""
    for _ in range(count):
        await asyncio.sleep(0)


async def until(true: Callable[[], bool]) -> None:
    """Wait for what comes by itself within a few hundredths of a second."""
    async with asyncio.timeout(30):
        while not true():
            await asyncio.sleep(0.002)


def taken(watcher: Subscriber) -> list[NumberedEvent]:
    """All that the watcher would be given now."""
    given: list[NumberedEvent] = []
    while True:
        watcher.wake()
        coroutine = watcher.take()
        try:
            coroutine.send(None)
        except StopIteration as stop:
            if not stop.value:
                return given
            given += stop.value
        else:
            raise AssertionError("a watcher that was poked does not wait")


def words(watcher: Subscriber) -> list[str]:
    """What it would be given now, in a word each: `acquired nightly`, or `reset missed`."""
    return [
        f"reset {told.why}" if told.event is None else f"{told.event.kind} {told.event.lock.key}"
        for told in taken(watcher)
    ]
