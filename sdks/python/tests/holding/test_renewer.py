"""The renewer of one hold (SDK-3, SDK-6)."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from volcano_locks import LockOwnershipLostError
from volcano_locks.errors import ConflictError
from volcano_locks.holding.hold import Hold
from volcano_locks.holding.renewer import run_renewals
from volcano_locks.protocol.lease import Lease
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


def start_renewer(
    hold: Hold, clock: ManualClock, renew: Callable[[], Lease]
) -> "tuple[asyncio.Task[None], list[float]]":
    """Start a renewer; return its task and the instants at which it reported a loss."""
    losses: list[float] = []

    async def send(lease: Lease, timeout_seconds: float) -> Lease:
        return renew()

    task = asyncio.create_task(run_renewals(hold, send, clock, lambda: losses.append(clock.now())))
    clock.watch(task)
    return task, losses


@pytest.mark.parametrize("error", [ZeroDivisionError(), RuntimeError("loop"), TimeoutError(), ConflictError("409")])
async def test_a_renewal_may_raise_anything_until_the_deadline(
    hold: Hold, clock: ManualClock, error: Exception
) -> None:
    """SDK-6, case 1, case 2, case 5: the loss is reported once, at the deadline."""
    attempts: list[float] = []

    def renew() -> Lease:
        attempts.append(clock.now())
        raise error

    task, losses = start_renewer(hold, clock, renew)
    await clock.advance_async(60)
    assert task.done()
    assert task.exception() is None
    assert losses == [1030.0]
    assert len(attempts) > 4
    assert max(attempts) < 1029


async def test_the_renewer_ends_when_the_block_is_left(hold: Hold, clock: ManualClock, lease: Lease) -> None:
    """SDK-6: without reporting a loss."""
    task, losses = start_renewer(hold, clock, lambda: later(lease, clock.now() - 1000))
    await clock.advance_async(100)
    hold.leave()
    await asyncio.wait([task])
    assert losses == []


async def test_a_loss_reported_by_the_server_ends_the_renewer(hold: Hold, clock: ManualClock) -> None:
    """SDK-3: `lock_ownership_lost` is loss."""

    def renew() -> Lease:
        raise LockOwnershipLostError("taken over", status=409)

    task, losses = start_renewer(hold, clock, renew)
    await clock.advance_async(30)
    assert task.done()
    assert losses == [1010.0]


async def test_a_failing_clock_does_not_end_the_renewer(
    hold: Hold, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SDK-6: other tasks run meanwhile, and the renewer can be ended."""
    with monkeypatch.context() as broken:

        def refuse(*_: object) -> Awaitable[None]:
            raise RuntimeError("no timers left")

        broken.setattr(clock, "wait", refuse)
        task, _ = start_renewer(hold, clock, lambda: hold.lease)
        for _ in range(10):
            await asyncio.sleep(0)
        assert not task.done()
    hold.leave()
    await asyncio.wait([task], timeout=10)
    assert task.done()
