"""Held locks are counted in slices between batches, and the count is right whatever the batches change (OPS-3)."""

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from volcano_locks_server.ports.lock_store import RecordKey, Records, StepResult
from volcano_locks_server.rules.errors import StoreUnavailableError
from volcano_locks_server.rules.lease import GRACE_MS, Free, LockRecord
from volcano_locks_server.stores.sqlite import SqliteFile, held_scan
from volcano_locks_server.testing import ManualClock

from ..record_damage import run_on_file
from ..store_actions import held, key, write_records

LOCKS = 60


@pytest.fixture
async def file(path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SqliteFile]:
    """An empty file whose slices have two rows."""
    monkeypatch.setattr(held_scan, "SLICE_ROWS", 2)
    opened = await SqliteFile.open(path, clock)
    yield opened
    await opened.close()


def some_record(choices: random.Random, now_ms: int) -> LockRecord:
    """A free lock, or a held one. Many locks become free at the same instant."""
    if choices.random() < 0.3:
        return Free(now_ms, now_ms)
    return held("a", now_ms, ttl_seconds=choices.choice([5, 6, 7, 20, 60, 3_600]))


@pytest.mark.parametrize("seed", range(20))
async def test_batches_between_slices_are_counted_exactly(file: SqliteFile, clock: ManualClock, seed: int) -> None:
    """OPS-3, LEASE-12: locks that are acquired, renewed, released and taken over while the count runs."""
    choices = random.Random(seed)
    keys = [key(str(number)) for number in range(LOCKS)]
    await write_records(file.locks, *((one, some_record(choices, clock.now_ms())) for one in keys[: LOCKS // 2]))
    clock.advance(choices.choice([0, 5_000 + GRACE_MS, 6_000 + GRACE_MS]))
    counting = asyncio.create_task(file.locks.count_held())
    for _ in range(5):
        changed = choices.sample(keys, 6)
        await write_records(file.locks, *((one, some_record(choices, clock.now_ms())) for one in changed))
        clock.advance(1)
    counted = await counting
    assert counted == await file.locks.count_held()


async def test_a_batch_does_not_wait_for_the_whole_count(file: SqliteFile, clock: ManualClock) -> None:
    """OPS-3."""
    now_ms = clock.now_ms()
    await write_records(
        file.locks, *((key(str(number)), held("a", now_ms, ttl_seconds=60 + number)) for number in range(LOCKS))
    )
    counting = asyncio.create_task(file.locks.count_held())
    for number in range(LOCKS // 4):
        await write_records(file.locks, (key(str(number)), Free(now_ms, now_ms)))
        assert not counting.done()
    assert await counting == LOCKS - LOCKS // 4


async def test_an_update_that_fails_ends_the_count(file: SqliteFile, clock: ManualClock) -> None:
    """OPS-3: what such an update changed is unknown, so the count would be a guess."""
    now_ms = clock.now_ms()
    await write_records(
        file.locks, *((key(str(number)), held("a", now_ms, ttl_seconds=60 + number)) for number in range(LOCKS))
    )

    def fail(_records: Records, _now_ms: int) -> StepResult:
        raise ZeroDivisionError

    counting = asyncio.create_task(file.locks.count_held())
    await asyncio.sleep(0)
    with pytest.raises(ZeroDivisionError):
        await file.locks.update([RecordKey("project", key("0").key)], fail)
    with pytest.raises(StoreUnavailableError):
        await counting
    assert await file.locks.count_held() == LOCKS


async def test_damaged_records_do_not_break_a_count(file: SqliteFile, clock: ManualClock) -> None:
    """LEASE-18, OPS-3: with instants of any size, also if one is repaired meanwhile."""
    now_ms = clock.now_ms()
    locks = [key(str(number)) for number in range(LOCKS)]
    await write_records(file.locks, *((one, held("a", now_ms)) for one in locks))
    for number, free_from in enumerate(("expires_at_ms = 9223372036854775807", "expires_at_ms = NULL") * 3):
        await run_on_file(file, f"UPDATE lock SET {free_from} WHERE key = ?", (str(number),))
    assert LOCKS - 6 <= await file.locks.count_held() <= LOCKS
    counting = asyncio.create_task(file.locks.count_held())
    await write_records(file.locks, (locks[0], Free(now_ms, now_ms)))
    assert LOCKS - 6 <= await counting <= LOCKS


async def test_two_counts_at_once_are_both_right(file: SqliteFile, clock: ManualClock) -> None:
    """OPS-3."""
    now_ms = clock.now_ms()
    await write_records(
        file.locks, *((key(str(number)), held("a", now_ms, ttl_seconds=60 + number)) for number in range(LOCKS))
    )
    assert await asyncio.gather(*(file.locks.count_held() for _ in range(3))) == [LOCKS] * 3


async def test_closing_the_file_ends_a_count(path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """OPS-3."""
    monkeypatch.setattr(held_scan, "SLICE_ROWS", 2)
    file = await SqliteFile.open(path, clock)
    now_ms = clock.now_ms()
    await write_records(
        file.locks, *((key(str(number)), held("a", now_ms, ttl_seconds=60 + number)) for number in range(LOCKS))
    )
    counting = asyncio.create_task(file.locks.count_held())
    await asyncio.sleep(0)
    await file.close()
    with pytest.raises(StoreUnavailableError) as caught:
        await counting
    assert caught.value.cause_code == "stopping"
