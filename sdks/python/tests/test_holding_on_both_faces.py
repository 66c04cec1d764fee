# ruff: noqa: PT012 - a block is entered, used and left in one statement
"""Holding a lock through the block form, threaded and asyncio, over a network that fails by script."""

import asyncio
import logging
from collections.abc import Awaitable
from typing import TypeVar

import httpx2
import pytest

from volcano_locks import AsyncClient, LockHeldError, LockOwnershipLostError, TransportError
from volcano_locks.testing import (
    Answers,
    Delay,
    DropAfterSend,
    DropBeforeSend,
    Duplicate,
    FakeLocks,
    Fault,
    FlakyTransport,
    Hang,
    ManualClock,
    Pass,
    Reset,
)

from .conftest import Face

BUSY = Answers(503, b'{"error": "e", "code": "lock_service_unavailable"}', {"retry-after": "1"})
SPENT = Answers(429, b'{"error": "e", "code": "lock_rate_limited"}', {"retry-after": "60"})
LOST = Answers(409, b'{"error": "e", "code": "lock_ownership_lost"}')


T = TypeVar("T")


class WorkError(Exception):
    """What the body raises."""


async def test_a_block_holds_the_lock_for_as_long_as_it_lasts(
    face: Face, clock: ManualClock, net: FlakyTransport
) -> None:
    """SDK-3, SDK-5, case 22: renewed at a third of the TTL, the guard shows the newest lease, then released."""
    async with face.hold("k", ttl=30) as guard:
        first = guard.lease
        await clock.advance_async(300)
        assert not guard.lost
        guard.raise_if_lost()
        assert (await face.get("k")).fencing_token == guard.fencing_token == first.fencing_token
        assert guard.lease.expires_at > first.expires_at
        assert guard.key == "k"
        assert guard.lease.token not in repr(guard)
    renewals = sum(seen.method == "PATCH" for seen in net.seen)
    assert 27 <= renewals <= 34
    assert not (await face.get("k")).held
    assert guard.release_error is None
    await clock.advance_async(100)
    assert sum(seen.method == "PATCH" for seen in net.seen) == renewals


async def test_the_body_never_runs_without_the_lock(face: Face, rival: AsyncClient) -> None:
    """case 18: contention is raised on entering."""
    await rival.locks.acquire("k", ttl=30)
    with pytest.raises(LockHeldError):
        async with face.hold("k"):
            pytest.fail("ran without the lock")


@pytest.mark.parametrize(
    "fault", [DropBeforeSend(), DropAfterSend(), Reset(), Hang(), BUSY, SPENT, Duplicate(), Answers(502), Answers(409)]
)
async def test_one_failed_renewal_costs_nothing(
    face: Face, clock: ManualClock, net: FlakyTransport, fault: Fault
) -> None:
    """SDK-3, case 1, case 4: tried again within the lease, and regularly from then on."""
    async with face.hold("k", ttl=30) as guard:
        net.script.append(fault)
        await clock.advance_async(300)
        assert not guard.lost
    async with face.hold("k", ttl=30) as again:
        await clock.advance_async(300)
        assert not again.lost


async def test_a_renewal_that_raises_whatever_it_likes_does_not_end_the_loop(
    face: Face, clock: ManualClock, net: FlakyTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SDK-6, case 2: an exception nobody foresaw is one failed try."""
    async with face.hold("k", ttl=30) as guard:
        with monkeypatch.context() as broken:

            async def explode(_: httpx2.Request) -> httpx2.Response:
                raise ZeroDivisionError("a bug")

            broken.setattr(net, "handle_async_request", explode)
            await clock.advance_async(15)
        await clock.advance_async(60)
        assert not guard.lost


@pytest.mark.real_time
@pytest.mark.parametrize("fault", [DropBeforeSend(), Reset(), DropAfterSend(), Hang(), BUSY, SPENT, Answers(500)])
async def test_an_outage_as_long_as_the_lease_is_a_loss_at_its_deadline(
    face: Face, clock: ManualClock, net: FlakyTransport, fault: Fault
) -> None:
    """SDK-3, SDK-4, case 3, case 5, case 6, case 11: told at `sent + ttl`, whatever kind of outage."""
    guards = []
    with pytest.raises(LockOwnershipLostError, match="not renewed within its 30 seconds"):
        async with face.hold("k", ttl=30) as guard:
            guards.append(guard)
            net.otherwise = fault
            clock.jump(29.99)
            assert not guard.lost
            clock.jump(0.01)
            assert guard.lost
            net.otherwise = DropBeforeSend()
            await asyncio.sleep(0.01)
    assert guards[0].lost
    with pytest.raises(LockOwnershipLostError):
        guards[0].raise_if_lost()


async def test_a_suspended_machine_wakes_without_its_lock(face: Face, clock: ManualClock, rival: AsyncClient) -> None:
    """case 11: lost before any of the body's code runs on, though no timer had a chance."""
    with pytest.raises(LockOwnershipLostError):
        async with face.hold("k", ttl=30) as guard:
            clock.jump(3600)
            assert guard.lost
            taken_over = await shielded(rival.locks.acquire("k", ttl=30))
    assert taken_over.fencing_token > guard.fencing_token
    assert (await rival.locks.get("k")).fencing_token == taken_over.fencing_token, "the loser must not release it"


@pytest.mark.real_time
async def test_a_loss_is_final_even_if_the_server_comes_back(
    face: Face, clock: ManualClock, net: FlakyTransport
) -> None:
    """case 3, case 11, case 12: a renewal confirmed after the deadline is not believed."""
    with pytest.raises(LockOwnershipLostError):
        async with face.hold("k", ttl=30) as guard:
            net.script.append(Delay(18.8))
            clock.jump(11.1)
            while len(net.seen) < 2:
                await asyncio.sleep(0.001)
            clock.jump(18.9)
            assert guard.lost
            await shielded(asyncio.sleep(0.01))
            assert guard.lost


async def test_being_forced_out_is_told_at_the_next_renewal(face: Face, clock: ManualClock, rival: AsyncClient) -> None:
    """case 12: the server's word is a loss at once."""
    with pytest.raises(LockOwnershipLostError) as lost:
        async with face.hold("k", ttl=30) as guard:
            await rival.locks.force_release("k")
            assert not guard.lost
            await clock.advance_async(11.1)
            assert guard.lost
    assert lost.value.status == 409


async def test_exactly_one_loss_whatever_comes_together(
    face: Face, clock: ManualClock, net: FlakyTransport, caplog: pytest.LogCaptureFixture
) -> None:
    """case 12: displaced in a storm of errors, then told by the server, then past the deadline: one error object."""
    losses = []
    with pytest.raises(LockOwnershipLostError) as raised:
        async with face.hold("k", ttl=30) as guard:
            net.script.extend([BUSY, SPENT, Answers(500), Answers(401), Reset(), LOST, LOST])
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
    assert not caplog.records


@pytest.mark.real_time
async def test_waiting_for_the_loss_ends_with_it(face: Face, clock: ManualClock, net: FlakyTransport) -> None:
    """SDK-4: `wait_lost` returns at the deadline although a renewal hangs for longer."""
    with pytest.raises(LockOwnershipLostError):
        async with face.hold("k", ttl=5) as guard:
            net.otherwise = Hang()
            waiting = asyncio.ensure_future(face.wait_lost(guard))
            for _ in range(5):
                await asyncio.sleep(0.002)
                assert not waiting.done()
                clock.jump(1)
            net.otherwise = DropBeforeSend()
            assert await shielded(waiting)


@pytest.mark.real_time
async def test_waiting_for_the_loss_ends_with_its_timeout_or_the_block(face: Face, clock: ManualClock) -> None:
    async with face.hold("k", ttl=30) as guard:
        assert await face.wait_lost(guard, 0) is False
        waiting = asyncio.ensure_future(face.wait_lost(guard, 7))
        while not waiting.done():
            await clock.advance_async(7)
        assert waiting.result() is False
        until_left = asyncio.ensure_future(face.wait_lost(guard))
        await asyncio.sleep(0.01)
    assert await until_left is True


async def test_a_guard_that_outlives_its_block_counts_as_lost(face: Face, caplog: pytest.LogCaptureFixture) -> None:
    """SDK-5: so that a thread or task that was forgotten stops; the block itself succeeded."""
    async with face.hold("k", ttl=30) as guard:
        assert not guard.lost
    assert guard.lost
    assert "lost=True" in repr(guard)
    assert await face.wait_lost(guard) is True
    with pytest.raises(LockOwnershipLostError, match="the lease of 'k' is lost: its block was left"):
        guard.raise_if_lost()
    assert not caplog.records


async def test_a_guard_counts_as_lost_while_its_lock_is_being_released(
    face: Face, server: FakeLocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SDK-5: nobody writes any more once the release may have been served."""
    seen: list[bool] = []
    serve = server.handle_async_request

    async def look_and_serve(request: httpx2.Request) -> httpx2.Response:
        if request.method == "DELETE":
            seen.append(guard.lost)
        return await serve(request)

    monkeypatch.setattr(server, "handle_async_request", look_and_serve)
    async with face.hold("k", ttl=30) as guard:
        pass
    assert seen == [True]


async def test_a_guard_that_outlives_a_lost_block_tells_that_loss(face: Face, clock: ManualClock) -> None:
    """SDK-5, case 12: exactly one loss."""
    with pytest.raises(LockOwnershipLostError) as raised:
        async with face.hold("k", ttl=30) as guard:
            clock.jump(31)
    with pytest.raises(LockOwnershipLostError) as told:
        guard.raise_if_lost()
    assert told.value is raised.value


async def test_the_bodys_error_wins_and_others_are_attached(
    face: Face, clock: ManualClock, net: FlakyTransport
) -> None:
    """SDK-5, case 21: neither a failing release nor a loss hides what went wrong first."""
    with pytest.raises(WorkError) as failed:
        async with face.hold("k"):
            net.otherwise = DropBeforeSend()
            raise WorkError
    assert any(note.startswith("TransportError: ") for note in failed.value.__notes__)
    net.otherwise = Pass()
    with pytest.raises(WorkError) as failed:
        async with face.hold("other"):
            clock.jump(31)
            raise WorkError
    assert any(note.startswith("LockOwnershipLostError: ") for note in failed.value.__notes__)


async def test_a_body_that_raises_the_loss_itself_raises_it_once(face: Face, clock: ManualClock) -> None:
    """case 21: no error is a note on itself."""
    with pytest.raises(LockOwnershipLostError) as lost:
        async with face.hold("k") as guard:
            clock.jump(31)
            guard.raise_if_lost()
    assert not getattr(lost.value, "__notes__", [])


async def test_every_way_out_of_the_block_releases(face: Face) -> None:
    """SDK-5, case 17: also those `except Exception` would miss."""
    for way_out in (WorkError, KeyboardInterrupt, SystemExit, GeneratorExit):
        block = face.hold("k")
        await block.__aenter__()
        await block.__aexit__(way_out, way_out(), None)
        assert not (await face.get("k")).held


@pytest.mark.real_time
async def test_the_release_is_sent_after_the_last_renewal_has_ended(
    face: Face, clock: ManualClock, net: FlakyTransport, server: FakeLocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SDK-5, case 8: a renewal under way is cut off; its late answer re-arms nothing."""
    served: list[str] = []
    serve = server.handle_async_request

    async def note_and_serve(request: httpx2.Request) -> httpx2.Response:
        served.append(request.method)
        return await serve(request)

    monkeypatch.setattr(server, "handle_async_request", note_and_serve)
    async with face.hold("k", ttl=30) as guard:
        net.script.append(Delay(5))
        clock.jump(11)
        while len(net.seen) < 2:
            await asyncio.sleep(0.001)
        before = guard.lease
    assert [seen.method for seen in net.seen] == ["POST", "PATCH", "DELETE"]
    assert served == ["POST", "DELETE"]
    await clock.advance_async(60)
    assert guard.lease == before
    assert not (await face.get("k")).held
    assert served == ["POST", "DELETE", "GET"]


async def test_a_late_renewal_after_the_release_does_not_hold_the_lock_again(face: Face, net: FlakyTransport) -> None:
    """case 8: the server refuses a PATCH that arrives after the DELETE."""
    lease = await face.acquire("k", ttl=30)
    await face.release("k", lease)
    with pytest.raises(LockOwnershipLostError):
        await face.renew("k", lease)
    assert not (await face.get("k")).held


async def test_a_release_whose_answer_is_lost_never_frees_the_next_lease(
    face: Face, net: FlakyTransport, rival: AsyncClient
) -> None:
    """case 19: the repeated release carries the old token."""
    async with face.hold("k"):
        net.script.append(DropAfterSend())
    old = next(seen.token for seen in net.seen if seen.method == "DELETE" and seen.token is not None)
    async with face.hold("k") as guard:
        assert guard.lease.token != old
        assert (await rival.locks.get("k")).held
        with pytest.raises(LockOwnershipLostError):
            await rival.locks.release("k", type(guard.lease)("k", old, 30, guard.lease.expires_at, 1))
        assert (await rival.locks.get("k")).held


async def test_work_done_under_the_lock_is_done_though_the_release_fails(
    face: Face, net: FlakyTransport, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """SDK-5: the block succeeds, says so in the log and on the guard, and the lock frees itself."""
    with caplog.at_level(logging.WARNING, "volcano_locks"):
        async with face.hold("k", ttl=30) as guard:
            net.otherwise = DropBeforeSend()
    assert isinstance(guard.release_error, TransportError)
    assert "lock k was not released and frees itself at its expiry" in caplog.text
    assert guard.lease.token not in caplog.text
    net.otherwise = Answers(500)
    clock.jump(32)


async def test_being_told_of_the_loss_by_the_release_is_a_loss(face: Face, rival: AsyncClient) -> None:
    """SDK-5: the body succeeded, but somebody had been let in meanwhile."""
    with pytest.raises(LockOwnershipLostError):
        async with face.hold("k"):
            await rival.locks.force_release("k")
            await rival.locks.acquire("k", ttl=30)


@pytest.mark.real_time
async def test_a_stuck_renewal_delays_no_other(face: Face, clock: ManualClock, net: FlakyTransport) -> None:
    """SDK-6: renewals wait side by side, so one that hangs costs the others nothing."""
    with pytest.raises(LockOwnershipLostError):
        async with face.hold("first", ttl=30) as first, face.hold("second", ttl=90) as second:
            stuck = net.handle_async_request

            async def only_first_hangs(request: httpx2.Request) -> httpx2.Response:
                if "first" in request.url.path:
                    await clock.wait(float("inf"))
                return await stuck(request)

            net.handle_async_request = only_first_hangs  # type: ignore[method-assign]
            clock.jump(29.9)
            await asyncio.sleep(0.01)
            assert not first.lost
            clock.jump(0.1)
            assert first.lost
            net.handle_async_request = stuck  # type: ignore[method-assign]
            assert not second.lost


async def test_a_lease_of_90_days_is_held_to_its_end(face: Face, clock: ManualClock) -> None:
    """SDK-7: nothing overflows, nothing fires at once."""
    with pytest.raises(LockOwnershipLostError):
        async with face.hold("k", ttl=7_776_000) as guard:
            await clock.advance_async(7_775_999)
            assert not guard.lost
            clock.jump(1)
            assert guard.lost


async def test_a_block_is_good_for_one_use(face: Face) -> None:
    block = face.hold("k")
    async with block:
        pass
    with pytest.raises(RuntimeError, match="call with_lock again"):
        await block.__aenter__()


async def shielded(work: Awaitable[T]) -> T:
    """The work's result, also while the block's own cancellation is on its way."""
    task = asyncio.ensure_future(work)
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            continue
    return task.result()
