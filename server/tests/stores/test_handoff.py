"""Waiting on every store, with two services that share it but no signals."""

import asyncio

import pytest
from testsupport.service_requests import Reply, perform

from volcano_locks_server.ports.lock_store import RecordKey
from volcano_locks_server.queue import recheck
from volcano_locks_server.rules.lease import Acquire, Granted, Release
from volcano_locks_server.rules.values import LockKey
from volcano_locks_server.service.lock_service import LockService
from volcano_locks_server.stores import OpenStore
from volcano_locks_server.testing import ManualClock

KEY = LockKey("a")
LOCK = RecordKey("p", KEY)
SECONDS_MAX = 10


def digest(owner: int) -> bytes:
    return bytes([owner]) * 32


def service_over(store: OpenStore, clock: ManualClock) -> LockService:
    return LockService(
        store.locks,
        clock,
        batches_in_flight=store.batches_in_flight,
        batch_max=store.batch_max,
        several_nodes=True,
    )


async def waiting(service: LockService, owner: int) -> "asyncio.Task[Reply]":
    before = service.queues.count(LOCK)
    shown: list[str | None] = []
    service.queues.table.on_waiting = lambda _key, holder: shown.append(holder)
    task = asyncio.create_task(perform(service, "p", 0, KEY, Acquire(digest(owner), 30), wait_ms=60_000))
    async with asyncio.timeout(SECONDS_MAX):
        while not shown:
            await asyncio.sleep(0.001)
    assert service.queues.count(LOCK) == before + 1
    return task


async def granted(task: "asyncio.Task[Reply]") -> Granted:
    outcome = (await asyncio.wait_for(task, SECONDS_MAX)).outcome
    assert isinstance(outcome, Granted)
    return outcome


@pytest.mark.real_time
async def test_a_lock_is_handed_to_each_waiter_in_turn(store: OpenStore, clock: ManualClock) -> None:
    """WAIT-4: after a release and after an expiry, with rising fencing tokens."""
    service = service_over(store, clock)
    first = (await perform(service, "p", 0, KEY, Acquire(digest(1), 30))).outcome
    assert isinstance(first, Granted)
    tasks = [await waiting(service, owner) for owner in (2, 3)]
    await perform(service, "p", 0, KEY, Release(digest(1)))
    second = await granted(tasks[0])
    assert not tasks[1].done()
    clock.advance(31_000)
    third = await granted(tasks[1])
    assert third.how == "taken_over"
    assert first.fencing_token < second.fencing_token < third.fencing_token
    await service.close()


@pytest.mark.real_time
async def test_a_recheck_finds_a_lock_that_another_node_freed(store: OpenStore, clock: ManualClock) -> None:
    """WAIT-10: at the next recheck."""
    here, there = service_over(store, clock), service_over(store, clock)
    await perform(there, "p", 0, KEY, Acquire(digest(1), 30))
    task = await waiting(here, 2)
    await perform(there, "p", 0, KEY, Release(digest(1)))
    clock.advance(recheck.RECHECK_EVERY_SECONDS * 1_000)
    await granted(task)
    await here.close()
    await there.close()


@pytest.mark.real_time
async def test_a_waiter_that_disconnects_leaves_no_lease(store: OpenStore, clock: ManualClock) -> None:
    """WAIT-5: at any moment."""
    service = service_over(store, clock)
    for later in range(8):
        await perform(service, "p", 0, KEY, Acquire(digest(100 + later), 30))
        gone, stays = await waiting(service, 50 + later), await waiting(service, 3 + later)
        releasing = asyncio.create_task(perform(service, "p", 0, KEY, Release(digest(100 + later))))
        for _ in range(later):
            await asyncio.sleep(0)
        if not gone.cancel():  # it was granted already
            await perform(service, "p", 0, KEY, Release(digest(50 + later)))
        await releasing
        await granted(stays)
        await perform(service, "p", 0, KEY, Release(digest(3 + later)))
    await service.close()
