# ruff: noqa: PT012 - a block is entered, used and left in one statement
"""What only the asyncio client promises: a loss cancels the body, as carefully as `asyncio.timeout`."""

import asyncio
import contextlib
import gc

import pytest

from volcano_locks import AsyncClient, LockOwnershipLostError, VolcanoError
from volcano_locks.holding.hold import Hold
from volcano_locks.testing import Delay, DropBeforeSend, FakeLocks, FaultyTransport, Hang, ManualClock, Pass

from ..helpers import until


def current() -> "asyncio.Task[object]":
    task = asyncio.current_task()
    assert task is not None
    return task


async def lose(clock: ManualClock, network: FaultyTransport) -> None:
    """Let the lease expire while no request reaches the server."""
    network.otherwise = DropBeforeSend()
    clock.jump(31)


async def forever() -> None:
    await asyncio.get_running_loop().create_future()


async def test_the_body_is_cancelled_and_the_loss_raised(
    async_client: AsyncClient, clock: ManualClock, network: FaultyTransport
) -> None:
    """SDK-3, SDK-4: as `asyncio.timeout` does; the task continues without a pending cancellation."""
    with pytest.raises(LockOwnershipLostError):
        async with async_client.locks.with_lock("k", ttl=30):
            await lose(clock, network)
            await forever()
    assert current().cancelling() == 0
    await asyncio.sleep(0)


async def test_a_body_that_never_awaits_raises_the_loss_at_its_end(
    async_client: AsyncClient, clock: ManualClock
) -> None:
    """SDK-4, SDK-5: the loop was starved; no cancellation is left for the next await."""
    with pytest.raises(LockOwnershipLostError):
        async with async_client.locks.with_lock("k", ttl=30) as guard:
            clock.jump(31)
            assert guard.lost
    assert current().cancelling() == 0
    await asyncio.sleep(0)


async def test_a_cancellation_from_outside_wins_over_the_loss(
    async_client: AsyncClient, clock: ManualClock, network: FaultyTransport
) -> None:
    """Both arrive before the task runs again; the task ends cancelled."""
    loop = asyncio.get_running_loop()
    entered = asyncio.Event()

    async def work() -> None:
        async with async_client.locks.with_lock("k", ttl=30):
            entered.set()
            await forever()

    def cancel_with_the_guard() -> None:
        if task.cancelling():
            task.cancel()
        else:
            loop.call_soon(cancel_with_the_guard)

    task = asyncio.ensure_future(work())
    await entered.wait()
    cancel_with_the_guard()
    await lose(clock, network)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def test_a_loss_inside_a_timeout_is_a_loss_and_a_timeout_inside_a_block_is_a_timeout(
    async_client: AsyncClient, clock: ManualClock, network: FaultyTransport
) -> None:
    """Nested cancellations are distinguished."""
    with pytest.raises(LockOwnershipLostError):
        async with asyncio.timeout(60), async_client.locks.with_lock("k", ttl=30):
            await lose(clock, network)
            await forever()
    network.otherwise = Pass()
    with pytest.raises(TimeoutError):
        async with async_client.locks.with_lock("other", ttl=30), asyncio.timeout(0):
            await forever()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01), async_client.locks.with_lock("third", ttl=30):
            await forever()
    assert not (await async_client.locks.get("other")).held
    assert not (await async_client.locks.get("third")).held


async def test_of_two_nested_blocks_only_the_lost_one_raises(
    async_client: AsyncClient, clock: ManualClock, network: FaultyTransport, server: FakeLocks
) -> None:
    """case 12: one loss per hold; the outer hold continues."""
    async with async_client.locks.with_lock("outer", ttl=30) as outer, server.async_client() as rival:
        with pytest.raises(LockOwnershipLostError):
            async with async_client.locks.with_lock("inner", ttl=30):
                await rival.locks.force_release("inner")
                await clock.advance_async(12)
                await forever()
        assert not outer.lost
        await clock.advance_async(60)
        assert not outer.lost


async def test_a_task_group_in_the_body_is_cancelled_as_a_whole(
    async_client: AsyncClient, clock: ManualClock, network: FaultyTransport
) -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            await forever()
        finally:
            ended.append("child")

    with pytest.raises(LockOwnershipLostError):
        async with async_client.locks.with_lock("k", ttl=30), asyncio.TaskGroup() as group:
            group.create_task(work())
            await asyncio.sleep(0)
            await lose(clock, network)
    assert ended == ["child"]


async def test_a_body_that_swallows_the_cancellation_still_raises_the_loss(
    async_client: AsyncClient, clock: ManualClock, network: FaultyTransport
) -> None:
    with pytest.raises(LockOwnershipLostError):
        async with async_client.locks.with_lock("k", ttl=30):
            await lose(clock, network)
            with contextlib.suppress(asyncio.CancelledError):
                await forever()
    assert current().cancelling() == 0


async def test_a_body_that_converts_the_cancellation_raises_its_own_error(
    async_client: AsyncClient, clock: ManualClock, network: FaultyTransport
) -> None:
    """case 21: its error wins; the loss is attached."""
    with pytest.raises(ValueError, match="half done") as failed:
        async with async_client.locks.with_lock("k", ttl=30):
            await lose(clock, network)
            try:
                await forever()
            except asyncio.CancelledError:
                raise ValueError("half done") from None
    assert any(note.startswith("LockOwnershipLostError") for note in failed.value.__notes__)
    assert current().cancelling() == 0


async def test_a_task_cancelled_in_its_body_releases(async_client: AsyncClient) -> None:
    """SDK-5, case 17."""
    entered = asyncio.Event()

    async def work() -> None:
        async with async_client.locks.with_lock("k", ttl=30):
            entered.set()
            await forever()

    task = asyncio.ensure_future(work())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not (await async_client.locks.get("k")).held


async def test_a_task_cancelled_inside_its_release_still_releases(
    async_client: AsyncClient, network: FaultyTransport, clock: ManualClock
) -> None:
    """case 16: the release is shielded from repeated cancellation, which is raised after it."""
    network.script.extend([Pass(), Delay(3)])

    async def work() -> None:
        async with async_client.locks.with_lock("k", ttl=30):
            pass

    task = asyncio.ensure_future(work())
    await until(lambda: len(network.seen) == 2)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
    assert not task.done()
    clock.jump(3)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not (await async_client.locks.get("k")).held


@pytest.mark.parametrize("steps", range(4))
async def test_a_cancelled_release_is_carried_out(
    async_client: AsyncClient, network: FaultyTransport, rival: AsyncClient, steps: int
) -> None:
    """SDK-23, case 49: whether it was cancelled before or after it was sent, and however often."""
    lease = await async_client.locks.acquire("k", ttl=30)
    network.script.append(Delay(100))
    task = asyncio.ensure_future(async_client.locks.release("k", lease))
    await asyncio.sleep(0)  # a task that never ran cannot release
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not (await rival.locks.get("k")).held


async def test_a_release_inside_a_timeout_is_carried_out(
    async_client: AsyncClient, network: FaultyTransport, rival: AsyncClient
) -> None:
    """SDK-23, case 49."""
    lease = await async_client.locks.acquire("k", ttl=30)
    network.script.append(Delay(100))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await async_client.locks.release("k", lease)
    assert not (await rival.locks.get("k")).held


@pytest.mark.real_time
async def test_a_shielded_release_is_bounded(
    async_client: AsyncClient, network: FaultyTransport, clock: ManualClock
) -> None:
    """case 16: a server that never responds delays a cancelled task for seconds only."""
    entered = asyncio.Event()

    async def work() -> None:
        async with async_client.locks.with_lock("k", ttl=30):
            entered.set()
            await forever()

    task = asyncio.ensure_future(work())
    await entered.wait()
    network.otherwise = Hang()
    task.cancel()
    started = clock.now()
    while not task.done():
        await asyncio.sleep(0.001)
        if network.seen[-1].method == "DELETE" and clock.next_due() < float("inf"):
            clock.jump(clock.next_due() - clock.now())
        assert clock.now() - started <= 5
    assert task.cancelled()


@pytest.mark.real_time
async def test_a_cancelled_acquire_releases_its_grant(
    async_client: AsyncClient, network: FaultyTransport, server: FakeLocks
) -> None:
    """SDK-2, case 13: granted, but cancelled before the response arrived."""
    network.script.append(Hang())
    task = asyncio.ensure_future(async_client.locks.acquire("k", ttl=30))
    while not network.seen:
        await asyncio.sleep(0)
    await asyncio.sleep(0.01)
    async with server.async_client() as rival:
        assert (await rival.locks.get("k")).held
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not (await rival.locks.get("k")).held


@pytest.mark.real_time
async def test_a_second_cancellation_does_not_interrupt_the_release(
    async_client: AsyncClient, network: FaultyTransport, clock: ManualClock
) -> None:
    """SDK-2, case 16."""
    network.script.extend([Hang(), Delay(1)])
    task = asyncio.ensure_future(async_client.locks.acquire("k", ttl=30))
    for requests in (1, 2):
        while len(network.seen) < requests:
            await asyncio.sleep(0)
        await asyncio.sleep(0.001)
        task.cancel()
    await asyncio.sleep(0.001)
    assert not task.done()
    clock.jump(1)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not (await async_client.locks.get("k")).held


async def test_a_dropped_block_is_not_renewed(
    async_client: AsyncClient, clock: ManualClock, network: FaultyTransport
) -> None:
    await async_client.locks.with_lock("k", ttl=30).__aenter__()
    gc.collect()
    await clock.advance_async(100)
    assert [seen.method for seen in network.seen] == ["POST"]


async def test_a_block_that_was_left_has_no_pending_finalizer(
    async_client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """case 17: Python ignores a Ctrl-C inside a finalizer, so none may be pending."""
    leave = Hold.leave
    calls: list[Hold] = []

    def counted(hold: Hold) -> None:
        calls.append(hold)
        leave(hold)

    monkeypatch.setattr(Hold, "leave", counted)
    block = async_client.locks.with_lock("k", ttl=30)
    async with block:
        pass
    while_leaving = len(calls)
    del block
    gc.collect()
    assert len(calls) == while_leaving > 0


@pytest.mark.usefixtures("dropped_sockets")
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_a_client_serves_one_event_loop_after_another(server_url: str) -> None:
    """Connections belong to one loop and end with it; the client does not."""

    async def once(client: AsyncClient, *, close: bool) -> None:
        lease = await client.locks.acquire("k", ttl=30)
        await client.locks.release("k", lease)
        assert not (await client.locks.get("k")).held
        if close:
            await client.close()

    def twice(client: AsyncClient) -> None:
        asyncio.run(once(client, close=False))
        asyncio.run(once(client, close=True))

    twice(AsyncClient(server_url, "sk-x"))
    gc.collect()


async def test_closing_a_client_under_an_open_block_ends_its_renewal(
    server: FakeLocks, clock: ManualClock, network: FaultyTransport, caplog: pytest.LogCaptureFixture
) -> None:
    """SDK-6: nothing more is sent, and the guard reports the missing release."""
    client = server.async_client(transport=network)
    async with client.locks.with_lock("k", ttl=30) as guard:
        await client.close()
        await clock.advance_async(20)
    assert [seen.method for seen in network.seen] == ["POST"]
    assert isinstance(guard.release_error, VolcanoError)
    assert "lock k was not released" in caplog.text


async def test_no_task_outlives_its_block(
    async_client: AsyncClient, clock: ManualClock, network: FaultyTransport
) -> None:
    """SDK-6: no task of the client outlives its block."""
    before = asyncio.all_tasks()
    async with async_client.locks.with_lock("k", ttl=30):
        await clock.advance_async(100)
    with pytest.raises(LockOwnershipLostError):
        async with async_client.locks.with_lock("k", ttl=30):
            await lose(clock, network)
            await forever()
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before


async def test_nothing_but_a_loss_cancels_the_body(
    async_client: AsyncClient, clock: ManualClock, network: FaultyTransport
) -> None:
    """SDK-20, case 46: neither a failed renewal, nor closing the client, nor the end of the block."""
    async with async_client.locks.with_lock("k", ttl=30) as guard:
        network.script.append(DropBeforeSend())
        await clock.advance_async(15)
        assert not network.script, "the renewal was sent, and failed"
        await async_client.close()
        await asyncio.sleep(0)
        assert not guard.lost
    await asyncio.sleep(0)
    assert guard.lost
    assert current().cancelling() == 0
