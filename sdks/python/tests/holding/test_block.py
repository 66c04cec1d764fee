# ruff: noqa: PT012 - a block is entered, used and left in one statement
"""Holding a lock in a block, with both clients, over a faulty network."""

import asyncio
import logging
from collections.abc import Awaitable
from typing import TypeVar

import pytest

from volcano_locks import AsyncClient, LockOwnershipLostError, TransportError
from volcano_locks.testing import (
    Answers,
    Delay,
    DropAfterSend,
    DropBeforeSend,
    FakeLocks,
    Fault,
    FaultyTransport,
    Hang,
    ManualClock,
    Reset,
)
from volcano_locks.testing.in_memory import HttpRequest, NewWakeup, Serving

from ..client_targets import Target

BUSY = Answers(503, b'{"error": "e", "code": "lock_service_unavailable"}', {"retry-after": "1"})
SPENT = Answers(429, b'{"error": "e", "code": "lock_rate_limited"}', {"retry-after": "60"})
LOST = Answers(409, b'{"error": "e", "code": "lock_ownership_lost"}')


T = TypeVar("T")


class WorkError(Exception):
    """The body's own error."""


async def test_a_block_holds_and_renews_its_lock_until_its_end(
    target: Target, clock: ManualClock, network: FaultyTransport
) -> None:
    """SDK-3, SDK-5, case 22: renewed at a third of the TTL; the guard shows the newest lease; then released."""
    async with target.hold("k", ttl=30) as guard:
        first = guard.lease
        await clock.advance_async(300)
        assert not guard.lost
        guard.raise_if_lost()
        assert (await target.get("k")).fencing_token == guard.fencing_token == first.fencing_token
        assert guard.lease.expires_at > first.expires_at
        assert guard.key == "k"
        assert guard.lease.token not in repr(guard)
    renewals = sum(seen.method == "PATCH" for seen in network.seen)
    assert 27 <= renewals <= 34
    assert not (await target.get("k")).held
    assert guard.release_error is None
    await clock.advance_async(100)
    assert sum(seen.method == "PATCH" for seen in network.seen) == renewals


async def test_an_unexpected_exception_does_not_end_the_renewals(
    target: Target, clock: ManualClock, network: FaultyTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SDK-6, case 2: an unexpected exception counts as one failed attempt."""
    async with target.hold("k", ttl=30) as guard:
        with monkeypatch.context() as broken:

            def explode(*_: object) -> Serving:
                raise ZeroDivisionError("a bug")

            broken.setattr(network, "serve", explode)
            await clock.advance_async(15)
        await clock.advance_async(60)
        assert not guard.lost


@pytest.mark.real_time
@pytest.mark.parametrize("fault", [DropBeforeSend(), Reset(), DropAfterSend(), Hang(), BUSY, SPENT, Answers(500)])
async def test_an_outage_as_long_as_the_lease_is_a_loss_at_its_deadline(
    target: Target, clock: ManualClock, network: FaultyTransport, fault: Fault
) -> None:
    """SDK-3, SDK-4, case 3, case 5, case 6, case 11: at `sent + ttl`, whatever the kind of outage."""
    guards = []
    with pytest.raises(LockOwnershipLostError, match="not renewed within its 30 seconds"):
        async with target.hold("k", ttl=30) as guard:
            guards.append(guard)
            network.otherwise = fault
            clock.jump(29.99)
            assert not guard.lost
            clock.jump(0.01)
            assert guard.lost
            network.otherwise = DropBeforeSend()
            await asyncio.sleep(0.01)
    assert guards[0].lost
    with pytest.raises(LockOwnershipLostError):
        guards[0].raise_if_lost()


async def test_many_failures_cause_exactly_one_loss(
    target: Target, clock: ManualClock, network: FaultyTransport, caplog: pytest.LogCaptureFixture
) -> None:
    """SDK-25, case 12: many errors, then the server's report, then the deadline: one error object, one log line."""
    losses = []
    with pytest.raises(LockOwnershipLostError) as raised:
        async with target.hold("k", ttl=30) as guard:
            network.script.extend([BUSY, SPENT, Answers(500), Answers(401), Reset(), LOST, LOST])
            for _ in range(30):
                try:
                    await clock.advance_async(1)
                except asyncio.CancelledError:
                    break
            clock.jump(100)
            for _ in range(3):
                with pytest.raises(LockOwnershipLostError) as lost:
                    guard.raise_if_lost()
                losses.append(lost.value)
    assert {id(loss) for loss in losses} == {id(raised.value)}
    logged = [record.getMessage() for record in caplog.records]
    assert [line.partition(":")[0] for line in logged] == ["lock k was not renewed, trying again"] * 5 + ["lost lock k"]


@pytest.mark.real_time
async def test_wait_lost_returns_at_the_loss(target: Target, clock: ManualClock, network: FaultyTransport) -> None:
    """SDK-4: `wait_lost` returns at the deadline although a renewal hangs."""
    with pytest.raises(LockOwnershipLostError):
        async with target.hold("k", ttl=5) as guard:
            network.otherwise = Hang()
            waiting = asyncio.ensure_future(target.wait_lost(guard))
            for _ in range(5):
                await asyncio.sleep(0.002)
                assert not waiting.done()
                clock.jump(1)
            network.otherwise = DropBeforeSend()
            assert await shielded(waiting)


@pytest.mark.real_time
async def test_wait_lost_returns_at_its_timeout_and_at_the_end_of_the_block(target: Target, clock: ManualClock) -> None:
    async with target.hold("k", ttl=30) as guard:
        assert await target.wait_lost(guard, 0) is False
        waiting = asyncio.ensure_future(target.wait_lost(guard, 7))
        while not waiting.done():
            await clock.advance_async(7)
        assert waiting.result() is False
        until_left = asyncio.ensure_future(target.wait_lost(guard))
        await asyncio.sleep(0.01)
    assert await until_left is True


async def test_a_guard_that_outlives_its_block_counts_as_lost(target: Target, caplog: pytest.LogCaptureFixture) -> None:
    """SDK-5: a thread or task that outlives the block stops; the block itself succeeded."""
    async with target.hold("k", ttl=30) as guard:
        assert not guard.lost
    assert guard.lost
    assert "lost=True" in repr(guard)
    assert await target.wait_lost(guard) is True
    with pytest.raises(LockOwnershipLostError, match="the lease of 'k' is lost: its block was left"):
        guard.raise_if_lost()
    assert not caplog.records


async def test_a_guard_counts_as_lost_while_its_lock_is_being_released(
    target: Target, server: FakeLocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SDK-5: no work may continue once the release may have been served."""
    seen: list[bool] = []
    serve = server.serve

    def record_lost_and_serve(request: HttpRequest, new_wakeup: NewWakeup) -> Serving:
        if request.method == "DELETE":
            seen.append(guard.lost)
        return serve(request, new_wakeup)

    monkeypatch.setattr(server, "serve", record_lost_and_serve)
    async with target.hold("k", ttl=30) as guard:
        pass
    assert seen == [True]


async def test_a_guard_that_outlives_a_lost_block_raises_the_same_loss(target: Target, clock: ManualClock) -> None:
    """SDK-5, case 12: exactly one loss."""
    with pytest.raises(LockOwnershipLostError) as raised:
        async with target.hold("k", ttl=30) as guard:
            clock.jump(31)
    with pytest.raises(LockOwnershipLostError) as later:
        guard.raise_if_lost()
    assert later.value is raised.value


async def test_a_body_that_raises_the_loss_itself_raises_it_once(target: Target, clock: ManualClock) -> None:
    """case 21: no error is attached to itself as a note."""
    with pytest.raises(LockOwnershipLostError) as lost:
        async with target.hold("k") as guard:
            clock.jump(31)
            guard.raise_if_lost()
    assert not getattr(lost.value, "__notes__", [])


async def test_every_way_out_of_the_block_releases(target: Target) -> None:
    """SDK-5, case 17: even exceptions that `except Exception` misses."""
    for way_out in (WorkError, KeyboardInterrupt, SystemExit, GeneratorExit):
        block = target.hold("k")
        await block.__aenter__()
        await block.__aexit__(way_out, way_out(), None)
        assert not (await target.get("k")).held


@pytest.mark.real_time
async def test_a_renewal_under_way_ends_before_the_release(
    target: Target, clock: ManualClock, network: FaultyTransport, server: FakeLocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SDK-5, case 8: the renewal ends before the release is sent."""
    served: list[str] = []
    serve = server.serve

    def record_and_serve(request: HttpRequest, new_wakeup: NewWakeup) -> Serving:
        served.append(request.method)
        return serve(request, new_wakeup)

    monkeypatch.setattr(server, "serve", record_and_serve)
    async with target.hold("k", ttl=30) as guard:
        network.script.append(Delay(5))
        clock.jump(11)
        while len(network.seen) < 2:
            await asyncio.sleep(0.001)
        before = guard.lease
    assert [seen.method for seen in network.seen] == ["POST", "PATCH", "DELETE"]
    assert served == ["POST", "DELETE"]
    await clock.advance_async(60)
    assert guard.lease == before
    assert not (await target.get("k")).held
    assert served == ["POST", "DELETE", "GET"]


async def test_a_failed_release_does_not_fail_the_block(
    target: Target, network: FaultyTransport, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """SDK-5: the block succeeds; the log and the guard report the failed release."""
    with caplog.at_level(logging.WARNING, "volcano_locks"):
        async with target.hold("k", ttl=30) as guard:
            network.otherwise = DropBeforeSend()
    assert isinstance(guard.release_error, TransportError)
    assert "lock k was not released and stays held until it expires" in caplog.text
    assert guard.lease.token not in caplog.text
    network.otherwise = Answers(500)
    clock.jump(32)


async def test_a_loss_reported_by_the_release_is_raised(target: Target, rival: AsyncClient) -> None:
    """SDK-5: the body succeeded, but another holder acquired meanwhile."""
    with pytest.raises(LockOwnershipLostError):
        async with target.hold("k"):
            await rival.locks.force_release("k")
            await rival.locks.acquire("k", ttl=30)


async def test_a_lease_of_90_days_is_held_to_its_end(target: Target, clock: ManualClock) -> None:
    """SDK-7: no timer overflows. The renewals are rare, so that 90 days take few steps."""
    with pytest.raises(LockOwnershipLostError):
        async with target.hold("k", ttl=7_776_000, renew_every=1_000_000) as guard:
            await clock.advance_async(7_775_999)
            assert not guard.lost
            clock.jump(1)
            assert guard.lost


async def test_a_block_can_be_entered_only_once(target: Target) -> None:
    block = target.hold("k")
    async with block:
        pass
    with pytest.raises(RuntimeError, match="call with_lock again"):
        await block.__aenter__()


async def shielded(work: Awaitable[T]) -> T:
    """Await `work` even while the block cancels this task."""
    task = asyncio.ensure_future(work)
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            continue
    return task.result()
