"""Event hubs of one or more nodes over one memory store, with commands whose events they publish."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from testsupport.server_ports import MemorySignals, SignalBus

from volcano_locks_server.events import EventHub, LockEvent, NumberedEvent, Subscriber, lock_events
from volcano_locks_server.ports.clock import Clock
from volcano_locks_server.ports.lock_store import RecordKey, Records, StepResult
from volcano_locks_server.ports.signals import Signals
from volcano_locks_server.rules.lease import Command, LockRecord, Outcome, decide
from volcano_locks_server.rules.shares import Budgets
from volcano_locks_server.rules.values import LockKey
from volcano_locks_server.stores.memory import MemoryStore
from volcano_locks_server.testing import ManualClock

PROJECT = "project"
MINE, OTHER = b"m" * 32, b"o" * 32


class FakeQueues:
    """Wait queues of the lengths that a test sets; they record their rechecks, None for a recheck of all."""

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
    """A hub over a store, which publishes the events of its commands as a service does."""

    def __init__(self, store: MemoryStore, clock: Clock, signals: Signals | None = None) -> None:
        self.clock = clock
        self.store = store
        self.queues = FakeQueues()
        self.budgets = Budgets()
        self.hub = EventHub(store, clock, self.queues, signals=signals, budgets=self.budgets)

    async def perform(self, key: str, command: Command, project_id: str = PROJECT) -> Outcome:
        """Commit one command and publish its events."""
        return (await self.perform_batch([(key, command)], project_id))[0]

    async def perform_batch(self, commands: Sequence[tuple[str, Command]], project_id: str = PROJECT) -> list[Outcome]:
        """Commands of one batch."""
        events: list[LockEvent] = []
        outcomes: list[Outcome] = []

        def step(records: Records, now_ms: int) -> StepResult:
            kept: dict[RecordKey, LockRecord | None] = dict(records)
            for key, command in commands:
                record_key = lock(key, project_id)
                before = kept[record_key]
                kept[record_key], outcome = decide(before, command, now_ms)
                outcomes.append(outcome)
                events.extend(lock_events(record_key, command, before, kept[record_key], outcome, now_ms=now_ms))
            return StepResult({key: record for key, record in kept.items() if record is not None}, outcomes)

        await self.store.update([lock(key, project_id) for key in {key for key, _ in commands}], step)
        if self.hub.live:
            self.hub.publish(events)
        return outcomes

    async def subscribe(
        self, *, key: str | None = None, prefix: str = "", after: str | None = None, project_id: str = PROJECT
    ) -> Subscriber:
        watcher = Subscriber(project_id, key=key, prefix=prefix)
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


async def advance(clock: ManualClock, ms: int) -> None:
    """Move the clock and run what is due."""
    clock.advance(ms)
    await turns()


def timers(clock: ManualClock) -> int:
    """How many timers are set."""
    return sum(timer.call is not None for timer in clock._timers)


async def turns(count: int = 20) -> None:
    """Let the event loop deliver messages and complete updates of the memory store."""
    for _ in range(count):
        await asyncio.sleep(0)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition that becomes true by itself within a few hundredths of a second."""
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.002)


def taken(watcher: Subscriber) -> list[NumberedEvent]:
    """All that the subscriber would take now."""
    events: list[NumberedEvent] = []
    while True:
        watcher.wake()
        coroutine = watcher.take()
        try:
            coroutine.send(None)
        except StopIteration as stop:
            if not stop.value:
                return events
            events += stop.value
        else:
            raise AssertionError("a subscriber that was woken does not wait")


def summaries(watcher: Subscriber) -> list[str]:
    """All that the subscriber would take now, in short: `acquired nightly`, or `reset missed`."""
    return [
        f"reset {numbered.why}" if numbered.event is None else f"{numbered.event.kind} {numbered.event.lock.key}"
        for numbered in taken(watcher)
    ]
