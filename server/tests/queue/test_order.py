"""The order of a wait queue: grants at release, at expiry and after a rejoin (WAIT-1, WAIT-2, WAIT-4, WAIT-6)."""

import asyncio
from collections.abc import Sequence

from volcano_locks_server.ports.lock_store import RecordKey, Step
from volcano_locks_server.rules.clock_history import NO_HISTORY
from volcano_locks_server.rules.lease import (
    Acquire,
    ForceRelease,
    Granted,
    Read,
    Renew,
    State,
)

from .harness import Harness, code, digest, granted, settled, soon


async def test_an_acquire_that_need_not_wait_returns_at_once(harness: Harness) -> None:
    """WAIT-2: a free lock, a repeat, a lease in its margin, a retired token."""
    first = await harness.perform(Acquire(digest(1), 30), 20_000)
    assert isinstance(first, Granted)
    again = await harness.perform(Acquire(digest(1), 30), 20_000)
    assert isinstance(again, Granted)
    assert (again.how, again.fencing_token) == ("repeated", first.fencing_token)
    await harness.advance(29_500)
    assert code(await harness.perform(Acquire(digest(1), 30), 20_000)) == "lock_ownership_lost"
    await harness.release(1)
    assert code(await harness.perform(Acquire(digest(1), 30), 20_000)) == "lock_ownership_lost"
    assert harness.count == 0


async def test_waiters_are_granted_the_lock_in_order_of_arrival(harness: Harness) -> None:
    """WAIT-4: each release grants the next waiter, and the fencing token rises."""
    await harness.acquire(1)
    waiting = [await harness.wait(owner) for owner in (2, 3, 4)]
    assert harness.count == 3
    tokens = []
    for owner, task in zip((1, 2, 3), waiting, strict=True):
        await harness.release(owner)
        await settled()
        outcome = task.result()
        assert isinstance(outcome, Granted)
        tokens.append(outcome.fencing_token)
    assert tokens == sorted(set(tokens))
    assert harness.count == 0


async def test_a_release_and_the_next_grant_are_one_commit(harness: Harness) -> None:
    """WAIT-4."""
    await harness.acquire(1)
    waiting = await harness.wait(2)
    before = harness.store.calls["update"]
    await harness.release(1)
    assert granted(await soon(waiting))
    assert harness.store.calls["update"] == before + 1


async def test_a_force_release_grants_the_next_waiter(harness: Harness) -> None:
    """WAIT-4: and the former holder cannot renew."""
    await harness.acquire(1)
    waiting = await harness.wait(2)
    await harness.perform(ForceRelease())
    assert granted(await soon(waiting))
    assert code(await harness.perform(Renew(digest(1), 30))) == "lock_ownership_lost"


async def test_an_acquire_without_a_wait_does_not_overtake_waiters(harness: Harness) -> None:
    """WAIT-4: neither in the batch of the release nor in the next batch."""
    await harness.acquire(1)
    waiting = await harness.wait(2)
    harness.store.gate.clear()
    reading = asyncio.create_task(harness.perform(Read()))
    await settled()
    both = [asyncio.create_task(harness.release(1)), asyncio.create_task(harness.acquire(9))]
    await settled()
    harness.store.gate.set()
    await reading
    _, stranger = await asyncio.gather(*both)
    assert code(stranger) == "lock_held"
    assert granted(await soon(waiting))


async def test_the_first_waiter_gets_the_lock_when_grace_ends(harness: Harness) -> None:
    """WAIT-4, LEASE-7: by a timer that a renewal moves; no recheck runs meanwhile."""
    await harness.acquire(1, ttl_seconds=10)
    waiting = await harness.wait(2, 60_000)
    await harness.advance(5_000)
    await harness.perform(Renew(digest(1), 10))
    before = harness.store.calls["update"]
    await harness.advance(10_999)
    assert not waiting.done()
    assert harness.store.calls["update"] == before
    await harness.advance(1)
    outcome = waiting.result()
    assert isinstance(outcome, Granted)
    assert outcome.how == "taken_over"
    assert outcome.expires_at_ms == harness.clock.now_ms() + 30_000  # WAIT-3: its time begins now


async def test_a_renewal_with_a_shorter_ttl_brings_the_grant_forward(harness: Harness) -> None:
    """LEASE-8, WAIT-4."""
    await harness.acquire(1, ttl_seconds=60)
    waiting = await harness.wait(2, 50_000)
    await harness.perform(Renew(digest(1), 5))
    await harness.advance(6_000)
    assert granted(waiting.result())


async def test_a_wait_ends_in_time_and_its_waiter_is_kept(harness: Harness) -> None:
    """WAIT-1, WAIT-6: a waiter without a request is skipped; after a rejoin it is first again."""
    await harness.acquire(1)
    first = await harness.wait(2, 1_500)
    second = await harness.wait(3)
    await harness.advance(1_499)
    assert not first.done()
    await harness.advance(1)
    assert code(first.result()) == "lock_held"
    assert harness.count == 1
    await harness.advance(4_999)
    first = await harness.wait(2)
    await harness.release(1)
    assert granted(await soon(first))
    assert not second.done()
    await harness.release(2)
    assert granted(await soon(second))


async def test_a_kept_waiter_is_skipped_and_keeps_its_turn(harness: Harness) -> None:
    """WAIT-6."""
    await harness.acquire(1)
    first = await harness.wait(2, 1_000)
    second, third = await harness.wait(3), await harness.wait(4)
    await harness.advance(1_000)
    assert code(first.result()) == "lock_held"
    await harness.release(1)
    assert granted(await soon(second))
    first = await harness.wait(2)
    await harness.release(3)
    assert granted(await soon(first))
    assert not third.done()
    third.cancel()


async def test_a_kept_waiter_is_removed_after_a_while(harness: Harness) -> None:
    """WAIT-6."""
    await harness.acquire(1)
    first = await harness.wait(2, 1_000)
    second = await harness.wait(3)
    await harness.advance(1_000)
    assert code(first.result()) == "lock_held"
    await harness.advance(5_000)
    first = await harness.wait(2)
    await harness.release(1)
    assert granted(await soon(second))
    first.cancel()


async def test_a_second_request_of_a_token_takes_its_waiter_over(harness: Harness) -> None:
    """WAIT-6: the earlier request gets lock_held, and the waiter stays first."""
    await harness.acquire(1)
    earlier = await harness.wait(2)
    other = await harness.wait(3)
    later = await harness.wait(2)
    assert code(earlier.result()) == "lock_held"
    assert harness.count == 2
    await harness.release(1)
    assert granted(await soon(later))
    assert not other.done()
    other.cancel()


async def test_a_takeover_before_the_acquire_is_evaluated_keeps_the_turn(harness: Harness) -> None:
    """WAIT-4, WAIT-6."""
    asks = [asyncio.create_task(harness.perform(Acquire(digest(owner), 30), 20_000)) for owner in (1, 2, 1)]
    await settled()
    earlier, behind, later = asks
    assert code(earlier.result()) == "lock_held"
    assert granted(later.result())
    assert not behind.done()
    behind.cancel()


async def test_a_waiting_token_that_acquires_without_a_wait_is_one_owner(harness: Harness) -> None:
    """WAIT-4, LEASE-4: the token's waiter is granted first, then the acquire repeats that lease."""
    await harness.acquire(1)
    waiting = await harness.wait(2)
    assert code(await harness.acquire(2)) == "lock_held"
    harness.store.gate.clear()
    reading = asyncio.create_task(harness.perform(Read()))
    await settled()
    both = [asyncio.create_task(harness.release(1)), asyncio.create_task(harness.acquire(2))]
    await settled()
    harness.store.gate.set()
    await reading
    _, direct = await asyncio.gather(*both)
    outcome = await soon(waiting)
    assert isinstance(direct, Granted)
    assert isinstance(outcome, Granted)
    assert direct.fencing_token == outcome.fencing_token


async def test_a_retired_token_at_the_head_does_not_block_the_queue(harness: Harness) -> None:
    """WAIT-2, LEASE-11: it is refused at its turn, and the next waiter is granted the lock."""
    await harness.acquire(1)
    harness.store.gate.clear()
    forcing = asyncio.create_task(harness.perform(ForceRelease()))
    await settled()
    waiting = [await harness.wait(owner) for owner in (1, 2)]
    harness.store.gate.set()
    await forcing
    assert code(await soon(waiting[0])) == "lock_ownership_lost"
    assert granted(await soon(waiting[1]))


async def test_a_store_may_run_the_step_again(harness: Harness) -> None:
    """WAIT-4: the grants of an earlier run count for nothing."""
    await harness.acquire(1)
    first, second = await harness.wait(2), await harness.wait(3)
    plain = harness.store.update

    async def disturbed(keys: Sequence[RecordKey], step: Step) -> Sequence[object]:
        now_ms = harness.clock.now_ms()
        step(dict.fromkeys(keys), now_ms)
        step({key: harness.store.memory.records.get(key) for key in keys}, now_ms)
        return await plain(keys, step)

    harness.store.update = disturbed  # type: ignore[method-assign]
    await harness.release(1)
    assert granted(await soon(first))
    assert not second.done()
    await harness.release(2)
    assert granted(await soon(second))


async def test_reads_see_the_new_holder(harness: Harness) -> None:
    """LEASE-12."""
    await harness.acquire(1)
    waiting = await harness.wait(2)
    await harness.release(1)
    await waiting
    state = await harness.perform(Read())
    assert isinstance(state, State)
    assert state.lease is not None
    assert state.lease.owner_digest == digest(2)


async def test_waiters_stay_queued_while_takeovers_are_held(harness: Harness) -> None:
    """LEASE-17, WAIT-4: the clock jumps past the lease, and the first waiter is granted the lock when the hold ends."""
    await harness.acquire(1)
    waiting = await harness.wait(2, wait_ms=60_000)
    harness.store.memory.history = NO_HISTORY.after_jump(harness.clock.jump(3_600_000), 3_600_000)
    assert code(await harness.acquire(3)) == "lock_held"
    await harness.advance(30_999)
    assert not waiting.done()
    assert harness.count == 1
    await harness.advance(1)
    assert granted(await soon(waiting))
