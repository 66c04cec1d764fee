"""Waiting for a lock with both clients, against the fake (SDK-11)."""

import asyncio
import contextlib
import math
from collections.abc import Callable

import pytest

from volcano_locks import AsyncClient, LockOwnershipLostError, ServerError, VolcanoError
from volcano_locks.testing import (
    Answers,
    DropAfterSend,
    FakeLocks,
    FaultyTransport,
    ManualClock,
)

from .client_targets import Target
from .helpers import until

UNAVAILABLE = Answers(503, b'{"error": "no store", "code": "lock_service_unavailable"}', {"retry-after": "1"})


@pytest.fixture
def is_waiting(server: FakeLocks) -> Callable[[], bool]:
    return lambda: server.waiters("k") == 1


async def test_a_waiter_takes_over_when_expiry_and_grace_are_over(
    target: Target, rival: AsyncClient, clock: ManualClock, is_waiting: Callable[[], bool]
) -> None:
    await rival.locks.acquire("k", ttl=10)
    waiting = asyncio.create_task(target.acquire("k", ttl=30, wait=20))
    await until(is_waiting)
    clock.jump(10.9)
    await until(is_waiting)
    assert not waiting.done()
    clock.jump(0.1)
    lease = await waiting
    assert lease.deadline is not None
    assert lease.deadline <= clock.now() + 30


@pytest.mark.real_time
async def test_the_end_of_an_acquisition_is_counted_from_before_the_grant(
    target: Target, network: FaultyTransport, clock: ManualClock
) -> None:
    """SDK-4, case 13: the server counts its 90 days from the grant, whose response was lost."""
    began_at = clock.now()
    network.script.extend([DropAfterSend(), UNAVAILABLE])
    block = target.hold("k", ttl=7_776_000, wait=60)
    entering = asyncio.create_task(block.__aenter__())
    await until(lambda: len(network.seen) == 2)
    while not entering.done():
        clock.jump(1)
        await asyncio.sleep(0.002)
    guard = await entering
    clock.jump(began_at + 7_776_000 - clock.now() - 1)
    assert not guard.lost
    clock.jump(1)
    assert guard.lost
    with contextlib.suppress(LockOwnershipLostError):
        await block.__aexit__(None, None, None)


@pytest.mark.parametrize("wait", [0, 60])
async def test_a_damaged_record_ends_an_acquire_at_once(target: Target, network: FaultyTransport, wait: float) -> None:
    """SDK-2, SDK-11, LEASE-18, case 63: no retry cures it."""
    damaged = Answers(503, b'{"error": "damaged", "code": "lock_record_damaged"}')
    network.script.extend([damaged] * 3)
    with pytest.raises(ServerError) as caught:
        await target.acquire("k", ttl=30, wait=wait)
    assert (type(caught.value), caught.value.code) == (ServerError, "lock_record_damaged")
    assert [request.method for request in network.seen].count("POST") == 1


async def test_a_grant_with_a_lost_response_is_recovered(
    target: Target, server: FakeLocks, network: FaultyTransport, clock: ManualClock
) -> None:
    """case 13: the same token returns the same lease."""
    network.script.append(DropAfterSend())
    lease = await target.acquire("k", ttl=30, wait=10)
    assert (await target.get("k")).fencing_token == lease.fencing_token


async def test_waiters_are_granted_in_order(server: FakeLocks, clock: ManualClock) -> None:
    """SDK-10: the fake has a wait queue for all clients."""
    order: list[int] = []
    async with server.async_client() as one, server.async_client() as other:
        held = await one.locks.acquire("k", ttl=30)

        async def wait(number: int, client: AsyncClient) -> None:
            async with client.locks.with_lock("k", ttl=30, wait=math.inf):
                order.append(number)

        tasks = []
        for number in range(6):
            tasks.append(asyncio.create_task(wait(number, [one, other][number % 2])))
            await until(lambda: server.waiters("k") == len(tasks))
        await one.locks.release("k", held)
        await asyncio.gather(*tasks)
    assert order == [0, 1, 2, 3, 4, 5]


async def test_a_cancelled_wait_leaves_the_queue(
    async_client: AsyncClient, rival: AsyncClient, server: FakeLocks, is_waiting: Callable[[], bool]
) -> None:
    """SDK-11, case 17."""
    held = await rival.locks.acquire("k", ttl=30)
    waiting = asyncio.create_task(async_client.locks.acquire("k", ttl=30, wait=math.inf))
    await until(is_waiting)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert server.waiters("k") == 0
    await rival.locks.release("k", held)
    assert not (await rival.locks.get("k")).held


async def test_a_wait_cancelled_as_it_is_granted_leaves_no_lease(
    async_client: AsyncClient, rival: AsyncClient, is_waiting: Callable[[], bool]
) -> None:
    """SDK-11: whether the grant or the cancellation comes first, the lock is free afterwards."""
    for turns in range(12):
        held = await rival.locks.acquire("k", ttl=30)
        waiting = asyncio.create_task(async_client.locks.acquire("k", ttl=30, wait=math.inf))
        await until(is_waiting)
        await rival.locks.release("k", held)
        for _ in range(turns):
            await asyncio.sleep(0)
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await async_client.locks.release("k", await waiting)
        assert not (await rival.locks.get("k")).held, turns


async def test_a_timeout_around_a_wait_is_a_timeout(async_client: AsyncClient, rival: AsyncClient) -> None:
    await rival.locks.acquire("k", ttl=30)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await async_client.locks.acquire("k", ttl=30, wait=math.inf)


async def test_closing_a_client_cancels_its_waits_and_releases_their_waiters(
    target: Target, rival: AsyncClient, server: FakeLocks, network: FaultyTransport
) -> None:
    """SDK-6, SDK-11: each waiting call raises that the client is closed."""
    held = await rival.locks.acquire("k", ttl=30)
    block = target.hold("k", wait=math.inf)
    waiting = [
        asyncio.create_task(target.acquire("k", ttl=30, wait=math.inf)),
        asyncio.create_task(block.__aenter__()),
    ]
    await until(lambda: server.waiters("k") == 2)
    await target.close()
    for task in waiting:
        with pytest.raises(VolcanoError, match="this client is closed"):
            await task
    assert server.waiters("k") == 0
    assert [seen.method for seen in network.seen].count("DELETE") == 2
    await rival.locks.release("k", held)
    assert not (await rival.locks.get("k")).held


async def test_closing_a_client_ends_a_wait_in_its_pause(
    target: Target, network: FaultyTransport, clock: ManualClock
) -> None:
    network.otherwise = UNAVAILABLE
    waiting = asyncio.create_task(target.acquire("k", ttl=30, wait=math.inf))
    await until(lambda: len(network.seen) > 0)
    await target.close()
    with pytest.raises(VolcanoError, match="this client is closed"):
        await waiting


async def test_an_invalid_wait_raises_in_the_callers_frame(target: Target) -> None:
    with pytest.raises(ValueError, match="wait must be at least 0"):
        await target.acquire("k", ttl=30, wait=-1)
    with pytest.raises(TypeError, match="hold_at_least must be a number of seconds"):
        target.hold("k", hold_at_least="60")


async def test_many_waits_do_not_delay_a_renewal(server: FakeLocks, rival: AsyncClient, clock: ManualClock) -> None:
    """SDK-11: waiting requests have a connection limit of their own."""
    held = await rival.locks.acquire("k", ttl=600)
    async with server.async_client() as client:
        waiting = [asyncio.create_task(client.locks.acquire("k", ttl=30, wait=math.inf)) for _ in range(150)]
        await until(lambda: server.waiters("k") == 150)
        async with client.locks.with_lock("mine", ttl=5) as guard:
            await clock.advance_async(20)
            assert not guard.lost
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    await rival.locks.release("k", held)
