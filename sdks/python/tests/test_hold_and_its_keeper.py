"""One acquisition's state and the loop that renews it, by themselves (SDK-3 to SDK-6)."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from volcano_locks import LockOwnershipLostError, TransportError
from volcano_locks.holding.guard import Hold, keep
from volcano_locks.protocol.messages import Lease
from volcano_locks.testing import FakeLocks, ManualClock


@pytest.fixture
async def lease(server: FakeLocks) -> Lease:
    return await server.async_client().locks.acquire("k", ttl=30)


@pytest.fixture
async def hold(lease: Lease, clock: ManualClock) -> Hold:
    return Hold(lease, clock, timeout_seconds=10, jitter=0.5)


def later(lease: Lease, seconds: float) -> Lease:
    assert lease.deadline is not None
    return Lease(
        lease.key, lease.token, lease.ttl_seconds, lease.expires_at, lease.fencing_token, lease.deadline + seconds
    )


def keeping(hold: Hold, clock: ManualClock, renew: Callable[[], Lease]) -> "tuple[asyncio.Task[None], list[float]]":
    """The keeper at work, and the instants it told of a loss."""
    told: list[float] = []

    async def ask(lease: Lease, timeout_seconds: float) -> Lease:
        return renew()

    task = asyncio.create_task(keep(hold, ask, clock, lambda: told.append(clock.now())))
    clock.watch(task)
    return task, told


async def test_an_answer_after_leaving_re_arms_nothing(hold: Hold, clock: ManualClock) -> None:
    """case 8: after each answer the hold looks whether it was left."""
    before = hold.lease, hold.deadline()
    hold.leave()
    hold.renewed(later(hold.lease, 30))
    assert (hold.lease, hold.deadline()) == before
    clock.jump(100)
    assert hold.loss() is None


async def test_a_hold_that_was_left_is_not_to_be_relied_on(hold: Hold) -> None:
    """SDK-5: for whoever still asks; its outcome is no loss."""
    assert hold.held_no_more() is None
    hold.leave()
    told = hold.held_no_more()
    assert told is not None
    assert (str(told), told.code) == ("the lease of 'k' is lost: its block was left", "lock_ownership_lost")
    assert await hold.wait_lost(None)
    assert hold.loss() is None


async def test_leaving_after_a_loss_goes_on_telling_that_loss(hold: Hold, clock: ManualClock) -> None:
    """case 12: the leaving is no second one."""
    clock.jump(30)
    loss = hold.loss()
    assert loss is not None
    hold.leave()
    assert hold.held_no_more() is hold.loss() is loss


async def test_an_answer_after_a_loss_is_not_believed(hold: Hold) -> None:
    """case 8, case 12."""
    hold.lose(LockOwnershipLostError("told"))
    hold.renewed(later(hold.lease, 30))
    assert hold.loss() is not None


async def test_the_first_loss_is_the_only_one(hold: Hold, clock: ManualClock) -> None:
    """case 12: whatever is said afterwards."""
    hold.lose(LockOwnershipLostError("first"))
    hold.lose(LockOwnershipLostError("second"))
    clock.jump(100)
    assert str(hold.loss()) == "first"


async def test_only_a_confirmed_renewal_moves_the_deadline(hold: Hold, clock: ManualClock) -> None:
    """case 3."""
    deadline = hold.deadline()
    hold.failed(TransportError("no"))
    assert hold.deadline() == deadline
    hold.renewed(later(hold.lease, 10))
    assert hold.deadline() == deadline + 10


async def test_a_local_loss_says_what_went_wrong_last(hold: Hold, clock: ManualClock) -> None:
    """case 5: the clock alone makes it lost; the last failure is its cause."""
    hold.failed(TransportError("the cable"))
    clock.jump(30)
    loss = hold.loss()
    assert loss is not None
    assert str(loss.__cause__) == "the cable"


async def test_waiting_needs_no_keeper(hold: Hold, clock: ManualClock) -> None:
    """case 2, case 6: with the renewal loop dead, the waiter still wakes at the deadline."""
    waiting = asyncio.create_task(hold.wait_lost(None))
    await asyncio.sleep(0)
    assert clock.next_due() == hold.deadline()
    clock.jump(30)
    assert await waiting is True


@pytest.mark.parametrize("error", [ZeroDivisionError(), RuntimeError("loop"), TimeoutError(), MemoryError()])
async def test_a_renewal_may_raise_anything_until_the_deadline(
    hold: Hold, clock: ManualClock, error: Exception
) -> None:
    """SDK-6, case 1, case 2, case 5: never silent, never early; told once, at the deadline."""
    tries: list[float] = []

    def renew() -> Lease:
        tries.append(clock.now())
        raise error

    task, told = keeping(hold, clock, renew)
    await clock.advance_async(60)
    assert task.done()
    assert task.exception() is None
    assert told == [1030.0]
    assert len(tries) > 4
    assert max(tries) < 1029


async def test_the_keeper_ends_when_the_block_is_left(hold: Hold, clock: ManualClock, lease: Lease) -> None:
    """SDK-6: and tells of no loss."""
    task, told = keeping(hold, clock, lambda: later(lease, clock.now() - 1000))
    await clock.advance_async(100)
    hold.leave()
    await asyncio.wait([task])
    assert told == []


async def test_a_refusal_by_the_server_ends_the_keeper_at_once(hold: Hold, clock: ManualClock) -> None:
    """SDK-3: `lock_ownership_lost` is loss."""

    def renew() -> Lease:
        raise LockOwnershipLostError("taken over", status=409)

    task, told = keeping(hold, clock, renew)
    await clock.advance_async(30)
    assert task.done()
    assert told == [1010.0]


async def test_the_clock_itself_may_fail_for_a_while(
    hold: Hold, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SDK-6: the loop lets others run meanwhile, and can be ended."""
    with monkeypatch.context() as broken:

        def refuse(*_: object) -> Awaitable[None]:
            raise RuntimeError("no timers left")

        broken.setattr(clock, "wait", refuse)
        task, _ = keeping(hold, clock, lambda: hold.lease)
        for _ in range(10):
            await asyncio.sleep(0)
        assert not task.done()
    hold.leave()
    await asyncio.wait([task], timeout=10)
    assert task.done()
