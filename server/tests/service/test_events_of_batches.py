"""The events of a batch are derived on the event loop after its commit: from the committed run, as it saw the locks."""

import asyncio
from collections.abc import Sequence

from volcano_locks_server.events import LockEvent, Subscriber
from volcano_locks_server.ports.lock_store import RecordKey, Step
from volcano_locks_server.rules.lease import Granted, Refused
from volcano_locks_server.service.lock_service import LockService
from volcano_locks_server.stores.memory import MemoryStore
from volcano_locks_server.testing import ManualClock

from ..events.hub_nodes import taken
from ..queue.harness import KEY, Harness, settled


def events(subscriber: Subscriber) -> list[LockEvent]:
    """Those that were published and not taken yet."""
    return [numbered.event for numbered in taken(subscriber) if numbered.event is not None]


async def subscribed(service: LockService) -> Subscriber:
    subscriber = Subscriber("p", key=KEY)
    await service.hub.subscribe(subscriber)
    return subscriber


class RepeatingStore(MemoryStore):
    """Runs each step twice, first over records that another writer then replaces."""

    async def update(self, keys: Sequence[RecordKey], step: Step) -> Sequence[object]:
        step(dict.fromkeys(keys), 1)
        return await super().update(keys, step)


async def test_only_the_committed_run_of_a_repeated_step_makes_events() -> None:
    """EVENT-2: what a discarded run would have done is not published."""
    harness = Harness(ManualClock())
    harness.service = service = LockService(RepeatingStore(harness.clock), harness.clock)
    subscriber = await subscribed(service)
    assert isinstance(await harness.acquire(1), Granted)
    assert isinstance(await harness.acquire(2), Refused)  # the discarded run granted it
    assert [event.kind for event in events(subscriber)] == ["acquired"]
    await service.close()


async def test_a_late_event_loop_changes_neither_order_nor_instants_nor_reasons() -> None:
    """EVENT-2: an acquire that joins and is granted in one batch never waited, and its events follow the release."""
    harness = Harness(ManualClock())
    subscriber = await subscribed(harness.service)
    began_ms = harness.clock.now_ms()
    harness.store.gate.clear()
    first = asyncio.create_task(harness.acquire(1))
    await settled()
    assert events(subscriber) == []
    harness.clock.advance(40)
    waiting = await harness.wait(2)
    released = asyncio.create_task(harness.release(1))
    await settled()
    harness.store.let_through(1)
    await settled()
    harness.clock.advance(500)  # the second batch is written, and the loop comes to it late
    harness.store.gate.set()
    assert isinstance(await waiting, Granted)
    await asyncio.gather(first, released)
    assert [(event.kind, event.why, event.at_ms - began_ms) for event in events(subscriber)] == [
        ("acquired", "free", 0),
        ("released", "released", 40),
        ("acquired", "free", 40),
    ]
    await harness.service.close()
