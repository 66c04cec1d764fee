"""The state of one held lock, without a renewer (SDK-3 to SDK-5)."""

import asyncio

import pytest

from volcano_locks import AsyncLockGuard, LockGuard, LockOwnershipLostError, TransportError
from volcano_locks.holding.hold import Hold
from volcano_locks.protocol.lease import Lease
from volcano_locks.testing import FakeLocks, ManualClock

from ..helpers import until


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


async def test_a_renewal_confirmed_after_leaving_is_ignored(hold: Hold, clock: ManualClock) -> None:
    """case 8: a late response checks whether the hold was left."""
    before = hold.lease, hold.deadline()
    hold.leave()
    hold.renewed(later(hold.lease, 30))
    assert (hold.lease, hold.deadline()) == before
    clock.jump(100)
    assert hold.loss() is None


async def test_a_hold_that_was_left_counts_as_lost(hold: Hold) -> None:
    """SDK-5: it counts as lost, but its outcome is no loss."""
    assert hold.not_held_error() is None
    hold.leave()
    error = hold.not_held_error()
    assert error is not None
    assert (str(error), error.code) == ("the lease of 'k' is lost: its block was left", "lock_ownership_lost")
    assert hold.loss() is None


async def test_leaving_after_a_loss_keeps_that_loss(hold: Hold, clock: ManualClock) -> None:
    """case 12: leaving is not a second loss."""
    clock.jump(30)
    loss = hold.loss()
    assert loss is not None
    hold.leave()
    assert hold.not_held_error() is hold.loss() is loss


async def test_a_renewal_confirmed_after_a_loss_is_ignored(hold: Hold) -> None:
    """case 8, case 12."""
    hold.lose(LockOwnershipLostError("error"))
    hold.renewed(later(hold.lease, 30))
    assert hold.loss() is not None


async def test_only_the_first_loss_counts(hold: Hold, clock: ManualClock) -> None:
    """case 12."""
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


async def test_a_local_loss_names_the_last_failure(hold: Hold, clock: ManualClock) -> None:
    """case 5: the clock alone decides; the last failure is the cause."""
    hold.failed(TransportError("the cable"))
    clock.jump(30)
    loss = hold.loss()
    assert loss is not None
    assert str(loss.__cause__) == "the cable"


@pytest.mark.parametrize("kind", [AsyncLockGuard, LockGuard])
async def test_wait_lost_needs_no_renewer(
    hold: Hold, clock: ManualClock, kind: type[AsyncLockGuard] | type[LockGuard]
) -> None:
    """case 2, case 6: without a renewer, waiting still ends at the deadline."""
    guard = kind(hold, clock)
    waiting = asyncio.ensure_future(
        guard.wait_lost() if isinstance(guard, AsyncLockGuard) else asyncio.to_thread(guard.wait_lost)
    )
    await until(lambda: clock.next_due() == hold.deadline())
    clock.jump(30)
    assert await waiting is True
