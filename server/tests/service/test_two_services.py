"""Two services over one memory store, joined by a signal bus."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from testsupport.server_ports import MemorySignals, SignalBus
from testsupport.service_requests import Reply, perform

from volcano_locks_server.events import Subscriber
from volcano_locks_server.queue.fairness import YIELD_MS
from volcano_locks_server.queue.node_turn import HANDOFFS_IN_A_ROW_MAX
from volcano_locks_server.queue.recheck import RECHECK_EVERY_SECONDS
from volcano_locks_server.rules.lease import Acquire, Command, Granted, Refused, Release
from volcano_locks_server.rules.values import LockKey
from volcano_locks_server.service.lock_service import LockService
from volcano_locks_server.stores.memory import MemoryStore
from volcano_locks_server.testing import ManualClock

from ..events.hub_nodes import PROJECT, advance, lock, summaries, turns, until

KEY = LockKey("nightly")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@asynccontextmanager
async def services(clock: ManualClock) -> AsyncIterator[tuple[SignalBus, LockService, LockService]]:
    bus, store = SignalBus(), MemoryStore(clock)
    signals = [MemorySignals(bus) for _ in range(2)]
    a, b = (LockService(store, clock, several_nodes=True, signals=each) for each in signals)
    for service in (a, b):
        service.hub.start()
    await turns()
    yield bus, a, b
    for service, each in zip((a, b), signals, strict=True):
        await service.close()
        await each.close()


async def do(service: LockService, command: Command, wait_ms: int = 0) -> Reply:
    return await perform(service, PROJECT, 0, KEY, command, wait_ms=wait_ms)


def wait(service: LockService, owner: bytes, wait_ms: int = 60_000) -> "asyncio.Task[Reply]":
    return asyncio.create_task(do(service, Acquire(owner, 30), wait_ms), name="waiter")


def granted(waiting: "asyncio.Task[Reply]") -> bool:
    return waiting.done() and isinstance(waiting.result().outcome, Granted)


def owner(number: int) -> bytes:
    return number.to_bytes(32, "big")


async def test_a_release_on_one_node_grants_a_waiter_of_another(clock: ManualClock) -> None:
    """WAIT-10, EVENT-4: without a timer; subscribers of both nodes get the same events."""
    async with services(clock) as (_, a, b):
        subscribers = [Subscriber(PROJECT, key=KEY) for _ in range(2)]
        for service, watcher in zip((a, b), subscribers, strict=True):
            await service.hub.subscribe(watcher)
        await do(a, Acquire(owner(1), 30))
        waiting = wait(b, owner(2))
        await until(lambda: a.hub.waiters(lock(KEY)) == 1)
        await do(a, Release(owner(1)))
        await turns()
        assert granted(waiting)
        expected = ["acquired nightly", "waiting nightly", "released nightly", "acquired nightly"]
        assert [summaries(watcher) for watcher in subscribers] == [expected, expected]
        await until(lambda: a.hub.waiters(lock(KEY)) == 0)


async def test_a_lost_message_only_delays_the_grant(clock: ManualClock) -> None:
    """WAIT-10: until a recheck within two seconds, or at once if the loss is known."""
    async with services(clock) as (bus, a, b):
        await do(a, Acquire(owner(1), 30))
        first, second = wait(b, owner(2)), wait(b, owner(3))
        await until(lambda: a.hub.waiters(lock(KEY)) == 2)
        bus.loses = True
        await do(a, Release(owner(1)))
        await turns()
        assert not first.done()
        await advance(clock, RECHECK_EVERY_SECONDS * 1_000)
        assert granted(first)
        await do(a, Release(owner(2)))
        await turns()
        assert not second.done()
        bus.loses = False
        bus.miss()
        await turns()
        assert granted(second)


async def test_a_release_withdraws_waiters_of_its_token_on_other_nodes_at_once(clock: ManualClock) -> None:
    """WAIT-13, case 70: by a message, without a timer."""
    async with services(clock) as (_, a, b):
        await do(a, Acquire(owner(1), 300))
        waiting = wait(a, owner(2))
        await until(lambda: b.hub.waiters(lock(KEY)) == 1)
        await do(b, Release(owner(2)))
        await until(waiting.done)
        assert isinstance(waiting.result().outcome, Refused)


async def test_no_node_starves_another(clock: ManualClock) -> None:
    """WAIT-10: with a long queue on one node, the waiter of the other gets its turn after eight grants."""
    async with services(clock) as (_, a, b):
        await do(a, Acquire(owner(1), 30))
        waiters = [wait(a, owner(number)) for number in range(2, 40)]
        await turns()
        lone_waiter = wait(b, owner(1_000))
        await until(lambda: a.hub.others_wait(lock(KEY)))
        holder, handoffs = 1, 0
        while not granted(lone_waiter):
            await do(a, Release(owner(holder)))
            await turns()
            if granted(lone_waiter):
                break
            if granted(waiters[holder - 1]):
                holder, handoffs = holder + 1, handoffs + 1
            else:
                await advance(clock, YIELD_MS)
            assert handoffs <= 2 * HANDOFFS_IN_A_ROW_MAX
        assert handoffs == HANDOFFS_IN_A_ROW_MAX
        for one in waiters:
            one.cancel()
        await asyncio.wait(waiters)


async def test_events_cost_nothing_without_subscribers(clock: ManualClock) -> None:
    """EVENT-6: batches record none and nodes send none; the same after the last subscriber left."""
    async with services(clock) as (bus, a, _):
        sent: list[bytes] = []
        bus.nodes[0].on_message = sent.append
        await do(a, Acquire(owner(1), 30))
        await do(a, Release(owner(1)))
        await turns()
        assert (sent, a.queues.on_changes, a.queues.begin_batch([lock(KEY)])) == ([], None, None)
        watcher = Subscriber(PROJECT)
        await a.hub.subscribe(watcher)
        assert a.queues.on_changes is not None
        a.hub.unsubscribe(watcher)
        await advance(clock, 60_000)
        assert a.queues.on_changes is None
