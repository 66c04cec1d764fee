"""What every store promises of lock records: one atomic step over them, and time that never goes back."""

import asyncio

import pytest

from volcano_locks_server.ports.lock_store import RecordKey, Records, Stepped
from volcano_locks_server.rules.errors import StoreUnavailableError
from volcano_locks_server.rules.lease import GRACE_MS, RETENTION_MS, Acquire, Free, Granted, Held, Refused
from volcano_locks_server.stores import OpenStore
from volcano_locks_server.testing import ManualClock

from .deeds import act, counted, digest, found, held, key, put


async def test_a_record_comes_back_as_it_was_written(store: OpenStore, clock: ManualClock) -> None:
    records = {
        key("held"): held("a", clock.now_ms(), holder="host-1/4711"),
        key("nameless"): held("b", clock.now_ms()),
        key("free"): Free(7, clock.now_ms()),
        key("zero"): Free(0, 0),
        key("retired"): Free(2**53 - 1, clock.now_ms(), tuple(digest(str(number)) for number in range(16))),
    }
    await put(store.locks, *records.items())
    assert list(await found(store.locks, *records, key("never"))) == [*records.values(), None]


async def test_a_held_record_becomes_free_and_held_again_without_a_trace(store: OpenStore, clock: ManualClock) -> None:
    lock = key("a")
    for record in (held("a", clock.now_ms(), holder="h"), Free(8, clock.now_ms(), (digest("a"),)), held("b", 9)):
        await put(store.locks, (lock, record))
        assert await found(store.locks, lock) == [record]


async def test_the_same_key_in_another_project_is_another_lock(store: OpenStore, clock: ManualClock) -> None:
    mine, theirs = key("a", "p-1"), key("a", "p-2")
    await put(store.locks, (mine, Free(1, 1)), (theirs, Free(2, 2)))
    assert await found(store.locks, theirs, mine) == [Free(2, 2), Free(1, 1)]


@pytest.mark.parametrize("size", [1, 2, 3, 63, 64, 65, 511, 512, 513, 1025])
async def test_a_batch_of_any_size_is_read_and_written_whole(store: OpenStore, clock: ManualClock, size: int) -> None:
    records = {key(f"k{number}"): held(f"o{number}", clock.now_ms() - number) for number in range(size)}
    await put(store.locks, *records.items())
    assert list(await found(store.locks, *records)) == list(records.values())


async def test_a_step_over_no_keys_is_a_step(store: OpenStore) -> None:
    assert list(await found(store.locks)) == []


async def test_a_step_that_raises_leaves_nothing_behind_and_the_store_usable(store: OpenStore) -> None:
    def broken(_records: Records, _now_ms: int) -> Stepped:
        raise RuntimeError("a bug in a rule")

    with pytest.raises(RuntimeError, match="a bug in a rule"):
        await store.locks.update([key("a")], broken)
    await put(store.locks, (key("b"), Free(1, 1)))
    assert await found(store.locks, key("a"), key("b")) == [None, Free(1, 1)]


async def test_concurrent_steps_on_one_key_lose_no_update(store: OpenStore) -> None:
    """case 20: read and write are one unit, so nobody acts on what another has changed meanwhile."""
    numbers = await asyncio.gather(*(counted(store.locks, key("a")) for _ in range(100)))
    assert sorted(numbers) == list(range(1, 101))


async def test_of_64_racing_acquires_one_wins(store: OpenStore) -> None:
    """case 20, LEASE-2, LEASE-6."""
    races = (act(store.locks, (key("a"), Acquire(digest(str(number)), 30))) for number in range(64))
    outcomes = [outcome for (outcome,) in await asyncio.gather(*races)]
    assert sum(isinstance(outcome, Granted) for outcome in outcomes) == 1
    assert sum(isinstance(outcome, Refused) for outcome in outcomes) == 63


async def test_of_64_racing_takeovers_of_a_lapsed_lock_one_wins(store: OpenStore, clock: ManualClock) -> None:
    """case 20: taking over is not "delete the expired one, then insert mine"; LEASE-3, LEASE-7."""
    ((first,),) = [await act(store.locks, (key("a"), Acquire(digest("dead"), 5)))]
    clock.advance(5_000 + GRACE_MS)
    races = (act(store.locks, (key("a"), Acquire(digest(str(number)), 30))) for number in range(64))
    granted = [outcome for (outcome,) in await asyncio.gather(*races) if isinstance(outcome, Granted)]
    assert isinstance(first, Granted)
    assert [one.fencing_token > first.fencing_token for one in granted] == [True]


async def test_now_is_read_when_the_step_is_served(store: OpenStore, clock: ManualClock) -> None:
    """case 30: the instant that judges a step is read in its unit, not when the caller came."""
    waiting = store.locks.update([], lambda _records, now_ms: Stepped({}, [now_ms]))
    clock.advance(7_000)
    assert list(await waiting) == [clock.now_ms()]


async def test_an_instant_before_the_newest_is_not_judged_by(path: object, store: OpenStore) -> None:
    """LEASE-1, LEASE-16: a clock that went back is `clock_behind` until it has caught up."""
    locks = store.locks
    clock = locks._clock  # type: ignore[attr-defined]  # a ManualClock refuses to go back, so it is forced
    newest_ms = clock.now_ms()
    await put(locks, (key("a"), Free(1, 1)))
    clock._now_ms = newest_ms - 1
    for refused in (lambda: found(locks, key("a")), locks.ready, locks.count_held, lambda: locks.purge(limit=1)):
        with pytest.raises(StoreUnavailableError) as caught:
            await refused()
        assert caught.value.cause_code == "clock_behind"
        assert "2026-07-20T13:59:59.999+00:00" in caught.value.message
        assert "2026-07-20T14:00:00.000+00:00" in caught.value.message
    clock._now_ms = newest_ms
    await locks.ready()
    assert await found(locks, key("a")) == [Free(1, 1)]


async def test_held_counts_until_the_grace_is_over(store: OpenStore, clock: ManualClock) -> None:
    """LEASE-12."""
    await put(store.locks, (key("a"), held("a", clock.now_ms(), ttl_seconds=5)), (key("b"), Free(1, clock.now_ms())))
    await put(store.locks, (key("c", "another-project"), held("c", clock.now_ms(), ttl_seconds=6)))
    assert await store.locks.count_held() == 2
    clock.advance(5_000 + GRACE_MS - 1)
    assert await store.locks.count_held() == 2
    clock.advance(1)
    assert await store.locks.count_held() == 1


@pytest.mark.parametrize("was_held", [True, False])
async def test_a_record_is_kept_for_a_day_and_may_then_go(store: OpenStore, clock: ManualClock, was_held: bool) -> None:
    """LEASE-13."""
    record: Held | Free = held("a", clock.now_ms(), ttl_seconds=5) if was_held else Free(9, clock.now_ms())
    await put(store.locks, (key("a"), record))
    clock.advance(RETENTION_MS + (5_000 + GRACE_MS if was_held else 0) - 1)
    assert await store.locks.purge(limit=10) == 0
    assert await found(store.locks, key("a")) == [record]
    clock.advance(1)
    assert await store.locks.purge(limit=10) == 1
    assert await found(store.locks, key("a")) == [None]


async def test_a_purge_takes_no_more_than_it_may(store: OpenStore, clock: ManualClock) -> None:
    """LEASE-13."""
    now_ms = clock.now_ms()
    await put(store.locks, *((key(f"k{number}"), Free(1, now_ms)) for number in range(2_500)))
    await put(store.locks, (key("long"), held("a", now_ms, ttl_seconds=7_776_000)))
    clock.advance(RETENTION_MS)
    assert await store.locks.purge(limit=0) == 0
    assert await store.locks.purge(limit=10) == 10
    assert await store.locks.purge(limit=2_200) == 2_200
    assert await store.locks.purge(limit=5_000) == 290
    assert isinstance((await found(store.locks, key("long")))[0], Held)


async def test_a_lock_that_was_forgotten_repeats_no_fencing_token(store: OpenStore, clock: ManualClock) -> None:
    """LEASE-3, over LEASE-13."""
    lock: RecordKey = key("a")
    ((first,),) = [await act(store.locks, (lock, Acquire(digest("a"), 5)))]
    clock.advance(6_000 + RETENTION_MS)
    assert await store.locks.purge(limit=1) == 1
    ((second,),) = [await act(store.locks, (lock, Acquire(digest("a"), 5)))]
    assert isinstance(first, Granted)
    assert isinstance(second, Granted)
    assert second.fencing_token > first.fencing_token
