"""What every store promises about lock records: one atomic step, and time that never goes back."""

import asyncio

import pytest
from msgspec.structs import replace

from volcano_locks_server.ports.lock_store import RecordKey, Records, StepResult
from volcano_locks_server.rules.errors import StoreUnavailableError
from volcano_locks_server.rules.lease import GRACE_MS, RETENTION_MS, Acquire, Free, Granted, Held, QueueState, Refused
from volcano_locks_server.stores import OpenStore
from volcano_locks_server.testing import ManualClock

from .store_actions import digest, held, increment_at_last, key, read_records, run_commands, write_records

QUEUE_STATE = QueueState(True, ("0123456789ab", "ba9876543210"), (b"\x00\xff'\"\\abc", b"12345678"), 2**47)


async def test_records_are_read_as_they_were_written(store: OpenStore, clock: ManualClock) -> None:
    records = {
        key("held"): held("a", clock.now_ms(), holder="host-1/4711"),
        key("nameless"): held("b", clock.now_ms()),
        key("free"): Free(7, clock.now_ms()),
        key("zero"): Free(0, 0),
        key("retired"): Free(2**53 - 1, clock.now_ms(), tuple(digest(str(number)) for number in range(16))),
        key("waited"): replace(held("c", clock.now_ms()), queue_state=QUEUE_STATE),
        key("withdrawn"): Free(8, clock.now_ms(), queue_state=QUEUE_STATE),
    }
    await write_records(store.locks, *records.items())
    assert list(await read_records(store.locks, *records, key("never"))) == [*records.values(), None]


async def test_a_record_changes_between_held_and_free_without_leftovers(store: OpenStore, clock: ManualClock) -> None:
    lock = key("a")
    for record in (held("a", clock.now_ms(), holder="h"), Free(8, clock.now_ms(), (digest("a"),)), held("b", 9)):
        await write_records(store.locks, (lock, record))
        assert await read_records(store.locks, lock) == [record]


async def test_projects_have_separate_keys(store: OpenStore, clock: ManualClock) -> None:
    mine, theirs = key("a", "p-1"), key("a", "p-2")
    await write_records(store.locks, (mine, Free(1, 1)), (theirs, Free(2, 2)))
    assert await read_records(store.locks, theirs, mine) == [Free(2, 2), Free(1, 1)]


@pytest.mark.parametrize("size", [1, 2, 3, 63, 64, 65, 511, 512, 513, 1025])
async def test_batches_of_any_size_are_read_and_written_completely(
    store: OpenStore, clock: ManualClock, size: int
) -> None:
    records = {key(f"k{number}"): held(f"o{number}", clock.now_ms() - number) for number in range(size)}
    await write_records(store.locks, *records.items())
    assert list(await read_records(store.locks, *records)) == list(records.values())


async def test_a_step_may_have_no_keys(store: OpenStore) -> None:
    assert list(await read_records(store.locks)) == []


async def test_a_step_that_raises_changes_nothing_and_leaves_the_store_usable(store: OpenStore) -> None:
    def broken(_records: Records, _now_ms: int) -> StepResult:
        raise RuntimeError("a bug in a rule")

    with pytest.raises(RuntimeError, match="a bug in a rule"):
        await store.locks.update([key("a")], broken)
    await write_records(store.locks, (key("b"), Free(1, 1)))
    assert await read_records(store.locks, key("a"), key("b")) == [None, Free(1, 1)]


async def test_concurrent_steps_on_one_key_lose_no_update(store: OpenStore) -> None:
    """case 20: read and write are one unit. A step that conflicts too often is refused and had no effect."""
    numbers = await asyncio.gather(*(increment_at_last(store.locks, key("a")) for _ in range(100)))
    assert sorted(numbers) == list(range(1, 101))


async def test_one_of_64_racing_acquires_wins(store: OpenStore) -> None:
    """case 20, LEASE-2, LEASE-6."""
    races = (run_commands(store.locks, (key("a"), Acquire(digest(str(number)), 30))) for number in range(64))
    outcomes = [outcome for (outcome,) in await asyncio.gather(*races)]
    assert sum(isinstance(outcome, Granted) for outcome in outcomes) == 1
    assert sum(isinstance(outcome, Refused) for outcome in outcomes) == 63


async def test_one_of_64_racing_takeovers_of_an_expired_lease_wins(store: OpenStore, clock: ManualClock) -> None:
    """case 20: a takeover is not "delete the expired record, then insert"; LEASE-3, LEASE-7."""
    ((first,),) = [await run_commands(store.locks, (key("a"), Acquire(digest("dead"), 5)))]
    clock.advance(5_000 + GRACE_MS)
    races = (run_commands(store.locks, (key("a"), Acquire(digest(str(number)), 30))) for number in range(64))
    granted = [outcome for (outcome,) in await asyncio.gather(*races) if isinstance(outcome, Granted)]
    assert isinstance(first, Granted)
    assert [one.fencing_token > first.fencing_token for one in granted] == [True]


async def test_the_clock_is_read_when_the_step_runs(store: OpenStore, clock: ManualClock) -> None:
    """case 30: the instant is read in the step's transaction, not when the caller arrived."""
    waiting = store.locks.update([], lambda _records, now_ms: StepResult({}, [now_ms]))
    clock.advance(7_000)
    assert list(await waiting) == [clock.now_ms()]


async def test_a_step_refuses_an_instant_before_the_newest(store: OpenStore, clock: ManualClock) -> None:
    """LEASE-1, LEASE-16: a clock that went back is `clock_behind` until it has caught up."""
    locks = store.locks
    newest_ms = clock.now_ms()  # a ManualClock refuses to go back, so the test sets its time
    await write_records(locks, (key("a"), Free(1, 1)))
    clock._now_ms = newest_ms - 1
    for refused in (lambda: read_records(locks, key("a")), locks.ready, locks.count_held, lambda: locks.purge(limit=1)):
        with pytest.raises(StoreUnavailableError) as caught:
            await refused()
        assert caught.value.cause_code == "clock_behind"
        assert "2026-07-20T13:59:59.999+00:00" in caught.value.message
        assert "2026-07-20T14:00:00.000+00:00" in caught.value.message
    clock._now_ms = newest_ms
    await locks.ready()
    assert await read_records(locks, key("a")) == [Free(1, 1)]


async def test_a_lock_counts_as_held_until_its_grace_ends(store: OpenStore, clock: ManualClock) -> None:
    """LEASE-12."""
    await write_records(
        store.locks, (key("a"), held("a", clock.now_ms(), ttl_seconds=5)), (key("b"), Free(1, clock.now_ms()))
    )
    await write_records(store.locks, (key("c", "another-project"), held("c", clock.now_ms(), ttl_seconds=6)))
    assert await store.locks.count_held() == 2
    clock.advance(5_000 + GRACE_MS - 1)
    assert await store.locks.count_held() == 2
    clock.advance(1)
    assert await store.locks.count_held() == 1


@pytest.mark.parametrize("was_held", [True, False])
async def test_a_record_is_purged_after_a_day(store: OpenStore, clock: ManualClock, was_held: bool) -> None:
    """LEASE-13."""
    record: Held | Free = held("a", clock.now_ms(), ttl_seconds=5) if was_held else Free(9, clock.now_ms())
    await write_records(store.locks, (key("a"), record))
    clock.advance(RETENTION_MS + (5_000 + GRACE_MS if was_held else 0) - 1)
    assert await store.locks.purge(limit=10) == 0
    assert await read_records(store.locks, key("a")) == [record]
    clock.advance(1)
    assert await store.locks.purge(limit=10) == 1
    assert await read_records(store.locks, key("a")) == [None]


async def test_a_purge_respects_its_limit(store: OpenStore, clock: ManualClock) -> None:
    """LEASE-13."""
    now_ms = clock.now_ms()
    await write_records(store.locks, *((key(f"k{number}"), Free(1, now_ms)) for number in range(2_500)))
    await write_records(store.locks, (key("long"), held("a", now_ms, ttl_seconds=7_776_000)))
    clock.advance(RETENTION_MS)
    assert await store.locks.purge(limit=0) == 0
    assert await store.locks.purge(limit=10) == 10
    assert await store.locks.purge(limit=2_200) == 2_200
    assert await store.locks.purge(limit=5_000) == 290
    assert isinstance((await read_records(store.locks, key("long")))[0], Held)


async def test_a_purged_lock_repeats_no_fencing_token(store: OpenStore, clock: ManualClock) -> None:
    """LEASE-3, over LEASE-13."""
    lock: RecordKey = key("a")
    ((first,),) = [await run_commands(store.locks, (lock, Acquire(digest("a"), 5)))]
    clock.advance(6_000 + RETENTION_MS)
    assert await store.locks.purge(limit=1) == 1
    ((second,),) = [await run_commands(store.locks, (lock, Acquire(digest("a"), 5)))]
    assert isinstance(first, Granted)
    assert isinstance(second, Granted)
    assert second.fencing_token > first.fencing_token
