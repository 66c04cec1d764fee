"""SDK-11, SDK-12: waiting for a lock and holding on to it, with both clients against the fake."""

import asyncio
import contextlib
import math
from collections.abc import Callable

import pytest

from volcano_locks import AsyncClient, LockHeldError, LockOwnershipLostError, UnavailableError, VolcanoError
from volcano_locks.testing import (
    Answers,
    DropAfterSend,
    DropBeforeSend,
    FakeLocks,
    FlakyTransport,
    Hang,
    ManualClock,
    Pass,
)

from .conftest import Face, until

UNAVAILABLE = Answers(503, b'{"error": "no store", "code": "lock_service_unavailable"}', {"retry-after": "1"})


@pytest.fixture
def waits(server: FakeLocks) -> Callable[[], bool]:
    return lambda: server.waiters("k") == 1


async def test_a_waiter_gets_the_lock_when_it_is_released(
    face: Face, rival: AsyncClient, waits: Callable[[], bool], net: FlakyTransport
) -> None:
    """SDK-11: in one request."""
    held = await rival.locks.acquire("k", ttl=30)
    waiting = asyncio.create_task(face.acquire("k", ttl=30, wait=math.inf))
    await until(waits)
    await rival.locks.release("k", held)
    lease = await waiting
    assert lease.fencing_token > held.fencing_token
    assert [seen.method for seen in net.seen] == ["POST"]


async def test_a_waiter_takes_over_when_expiry_and_grace_are_over(
    face: Face, rival: AsyncClient, clock: ManualClock, waits: Callable[[], bool]
) -> None:
    await rival.locks.acquire("k", ttl=10)
    waiting = asyncio.create_task(face.acquire("k", ttl=30, wait=20))
    await until(waits)
    clock.jump(10.9)
    await until(waits)
    assert not waiting.done()
    clock.jump(0.1)
    lease = await waiting
    assert lease.deadline is not None
    assert lease.deadline <= clock.now() + 30


async def test_the_end_of_the_wait_is_contention_and_the_body_does_not_run(
    face: Face, rival: AsyncClient, clock: ManualClock, waits: Callable[[], bool]
) -> None:
    """SDK-11, case 18: also after more than one slice."""
    await rival.locks.acquire("k", ttl=600)
    ran = False

    async def work() -> None:
        nonlocal ran
        async with face.hold("k", wait=65):
            ran = True

    waiting = asyncio.create_task(work())
    await until(waits)
    clock.jump(50)
    await until(waits)
    clock.jump(15)
    with pytest.raises(LockHeldError):
        await waiting
    assert not ran


async def test_a_block_waits_and_is_renewed_like_any_other(
    face: Face, rival: AsyncClient, clock: ManualClock, waits: Callable[[], bool]
) -> None:
    """SDK-11: an answer that took longer than a third of the TTL is confirmed before the body runs."""
    held = await rival.locks.acquire("k", ttl=60)
    block = face.hold("k", ttl=30, wait=math.inf)
    waiting = asyncio.create_task(block.__aenter__())
    await until(waits)
    clock.jump(20)
    await rival.locks.release("k", held)
    guard = await waiting
    assert guard.lease.deadline == clock.now() + 30
    clock.jump(29)
    assert not guard.lost
    await block.__aexit__(None, None, None)


@pytest.mark.real_time
async def test_a_wait_outlives_restarts_and_keeps_its_token(
    face: Face, rival: AsyncClient, server: FakeLocks, clock: ManualClock, net: FlakyTransport
) -> None:
    """SDK-11: the server tells who waits to go on elsewhere, is away for a while, and is back."""
    held = await rival.locks.acquire("k", ttl=80_000)
    waiting = asyncio.create_task(face.acquire("k", ttl=30, wait=math.inf))
    await until(lambda: server.waiters("k") == 1)
    net.script.extend([DropBeforeSend(), UNAVAILABLE])
    server.restart()
    while not server.waiters("k"):
        clock.jump(1)
        await asyncio.sleep(0.002)
    await rival.locks.release("k", held)
    lease = await waiting
    assert not net.script
    assert {seen.token for seen in net.seen if seen.method == "POST"} == {lease.token}


@pytest.mark.real_time
async def test_the_end_of_an_acquisition_is_counted_from_before_the_grant(
    face: Face, net: FlakyTransport, clock: ManualClock
) -> None:
    """SDK-4, case 13: the server counts its 90 days from the grant, whose answer was lost, not from the repetition."""
    began_at = clock.now()
    net.script.extend([DropAfterSend(), UNAVAILABLE])
    block = face.hold("k", ttl=7_776_000, wait=60)
    entering = asyncio.create_task(block.__aenter__())
    await until(lambda: len(net.seen) == 2)
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


async def test_a_grant_whose_answer_is_lost_is_found_again(
    face: Face, server: FakeLocks, net: FlakyTransport, clock: ManualClock
) -> None:
    """case 13: the same token gets the same lease."""
    net.script.append(DropAfterSend())
    lease = await face.acquire("k", ttl=30, wait=10)
    assert (await face.get("k")).fencing_token == lease.fencing_token


async def test_waiters_get_the_lock_in_their_order(server: FakeLocks, clock: ManualClock) -> None:
    """SDK-10: the fake keeps a line, whichever client waits."""
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


async def test_a_cancelled_wait_leaves_the_line(
    async_client: AsyncClient, rival: AsyncClient, server: FakeLocks, waits: Callable[[], bool]
) -> None:
    """SDK-11, case 17."""
    held = await rival.locks.acquire("k", ttl=30)
    waiting = asyncio.create_task(async_client.locks.acquire("k", ttl=30, wait=math.inf))
    await until(waits)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert server.waiters("k") == 0
    await rival.locks.release("k", held)
    assert not (await rival.locks.get("k")).held


async def test_a_wait_cancelled_as_it_is_granted_leaves_no_lease(
    async_client: AsyncClient, rival: AsyncClient, waits: Callable[[], bool]
) -> None:
    """SDK-11: whether the grant or the cancellation is first, afterwards nobody holds the lock."""
    for turns in range(12):
        held = await rival.locks.acquire("k", ttl=30)
        waiting = asyncio.create_task(async_client.locks.acquire("k", ttl=30, wait=math.inf))
        await until(waits)
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


async def test_closing_a_client_ends_its_waits_and_gives_their_places_back(
    face: Face, rival: AsyncClient, server: FakeLocks, net: FlakyTransport
) -> None:
    """SDK-6, SDK-11: whoever waits is told that the client is closed."""
    held = await rival.locks.acquire("k", ttl=30)
    block = face.hold("k", wait=math.inf)
    waiting = [
        asyncio.create_task(face.acquire("k", ttl=30, wait=math.inf)),
        asyncio.create_task(block.__aenter__()),
    ]
    await until(lambda: server.waiters("k") == 2)
    await face.close()
    for task in waiting:
        with pytest.raises(VolcanoError, match="this client is closed"):
            await task
    assert server.waiters("k") == 0
    assert [seen.method for seen in net.seen].count("DELETE") == 2
    await rival.locks.release("k", held)
    assert not (await rival.locks.get("k")).held


async def test_closing_a_client_while_a_wait_rests_ends_it(face: Face, net: FlakyTransport, clock: ManualClock) -> None:
    net.otherwise = UNAVAILABLE
    waiting = asyncio.create_task(face.acquire("k", ttl=30, wait=math.inf))
    await until(lambda: len(net.seen) > 0)
    await face.close()
    with pytest.raises(VolcanoError, match="this client is closed"):
        await waiting


@pytest.mark.real_time
async def test_an_outage_as_long_as_the_wait_is_told(face: Face, net: FlakyTransport, clock: ManualClock) -> None:
    net.otherwise = UNAVAILABLE
    waiting = asyncio.create_task(face.acquire("k", ttl=30, wait=3))
    while not waiting.done():
        clock.jump(0.5)
        await asyncio.sleep(0.001)
    with pytest.raises(UnavailableError):
        await waiting


async def test_a_wait_that_is_no_number_is_refused_in_the_callers_frame(face: Face) -> None:
    with pytest.raises(ValueError, match="wait must be at least 0"):
        await face.acquire("k", ttl=30, wait=-1)
    with pytest.raises(TypeError, match="hold_at_least must be a number of seconds"):
        face.hold("k", hold_at_least="60")


async def test_a_hundred_waits_keep_no_renewal_waiting(
    server: FakeLocks, rival: AsyncClient, clock: ManualClock
) -> None:
    """SDK-11: waiting requests have a room of their own."""
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


async def test_a_short_job_leaves_the_lock_taken_for_the_rest_of_the_time(
    face: Face, rival: AsyncClient, clock: ManualClock
) -> None:
    """SDK-12: in whole seconds, rounded up; then it expires like any lease."""
    async with face.hold("k", ttl=30, hold_at_least=60):
        clock.jump(0.2)
    clock.jump(60.5)
    with pytest.raises(LockHeldError):
        await rival.locks.acquire("k", ttl=30)
    clock.jump(0.5)
    assert await rival.locks.acquire("k", ttl=30)


async def test_the_rest_is_at_least_the_shortest_ttl(face: Face, rival: AsyncClient, clock: ManualClock) -> None:
    """SDK-12."""
    async with face.hold("k", ttl=30, hold_at_least=10):
        clock.jump(9)
    clock.jump(5.9)
    with pytest.raises(LockHeldError):
        await rival.locks.acquire("k", ttl=30)
    clock.jump(0.1)
    assert await rival.locks.acquire("k", ttl=30)


async def test_a_job_that_took_longer_releases(face: Face, rival: AsyncClient, clock: ManualClock) -> None:
    async with face.hold("k", ttl=30, hold_at_least=10):
        clock.jump(10)
    assert await rival.locks.acquire("k", ttl=30)


async def test_a_job_that_failed_holds_on_too(face: Face, rival: AsyncClient) -> None:
    """SDK-12: by whatever way it ended."""
    with pytest.raises(ZeroDivisionError):
        async with face.hold("k", ttl=30, hold_at_least=60):
            raise ZeroDivisionError
    with pytest.raises(LockHeldError):
        await rival.locks.acquire("k", ttl=30)


async def test_a_hold_that_cannot_be_lengthened_is_told_like_a_release(
    face: Face, net: FlakyTransport, rival: AsyncClient, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """SDK-12: the block succeeds, and the lease expires when it would have."""
    async with face.hold("k", ttl=30, hold_at_least=60) as guard:
        net.otherwise = UNAVAILABLE
    assert isinstance(guard.release_error, UnavailableError)
    assert "lock k was not released" in caplog.text
    net.otherwise = Pass()
    clock.jump(31)
    assert await rival.locks.acquire("k", ttl=30)


async def test_a_lost_lease_is_not_held_on_to(face: Face, rival: AsyncClient, clock: ManualClock) -> None:
    with pytest.raises(LockOwnershipLostError):  # noqa: PT012
        async with face.hold("k", ttl=30, hold_at_least=60) as guard:
            clock.jump(31)
            assert guard.lost
    assert await rival.locks.acquire("k", ttl=30)


async def test_a_renewal_under_way_does_not_cut_the_hold_short(
    face: Face, net: FlakyTransport, rival: AsyncClient, clock: ManualClock
) -> None:
    """SDK-12: it has ended, or is cut off, before the one to the rest goes out."""
    async with face.hold("k", ttl=30, hold_at_least=300):
        net.script.append(Hang())
        clock.jump(12)
        await until(lambda: [seen.method for seen in net.seen] == ["POST", "PATCH"])
    assert [seen.method for seen in net.seen] == ["POST", "PATCH", "PATCH"]
    clock.jump(280)
    with pytest.raises(LockHeldError):
        await rival.locks.acquire("k", ttl=30)
