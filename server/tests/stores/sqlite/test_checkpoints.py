"""Checkpoints that fail while the log takes writes are counted, reported, and end readiness (OPS-9, case 71)."""

from pathlib import Path

import apsw
import pytest

from volcano_locks_server.rules.errors import StoreUnavailableError
from volcano_locks_server.stores.sqlite import SqliteFile, connection
from volcano_locks_server.stores.sqlite.checkpoints import FAILING_MS_MAX, RETRY_MS
from volcano_locks_server.testing import ManualClock

from ..store_actions import held, key, read_records, write_records
from .simulated_disk import FaultyDisk

KEYS = [key(f"k{number}") for number in range(40)]


@pytest.fixture(autouse=True)
def frequent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "WAL_CHECKPOINT_PAGES", 10)


async def cause(awaitable: object) -> str:
    with pytest.raises(StoreUnavailableError) as caught:
        await awaitable  # type: ignore[misc]
    return caught.value.cause_code


async def write_batch(file: SqliteFile, number: int) -> None:
    await write_records(file.locks, *((one, held(f"{number}", 1_000 + number)) for one in KEYS))


async def test_checkpoints_follow_commits_and_keep_the_log_small(path: Path, clock: ManualClock) -> None:
    """OPS-9."""
    file = await SqliteFile.open(path, clock)
    for number in range(200):
        await write_batch(file, number)
    assert file.log_bytes < 30 * 4_200
    assert file.checkpoint_failures == 0
    await file.check()
    await file.close()


async def test_failing_checkpoints_are_reported_at_once_and_end_readiness(path: Path, clock: ManualClock) -> None:
    """OPS-9, case 71: the database cannot be written, its log can. Grants go on, but not unnoticed."""
    disk = FaultyDisk("database-fails")
    file = await SqliteFile.open(path, clock, vfs=disk.name)
    disk.break_after(0, apsw.IOError, lasts=True, only="locks.db")
    for number in range(30):
        await write_batch(file, number)
    assert file.checkpoint_failures == 1, "another try only after RETRY_MS"
    assert file.log_bytes > 30 * 4_200
    assert await cause(file.check()) == "checkpoint_failing"
    await file.locks.ready()
    clock.advance(FAILING_MS_MAX - 1)
    await file.locks.ready()
    clock.advance(1)
    with pytest.raises(StoreUnavailableError, match=r"since 2026-07-20T14:00:00.000\+00:00 \(disk_error\)") as caught:
        await file.locks.ready()
    assert caught.value.cause_code == "checkpoint_failing"
    assert file.checkpoint_failures > 1
    await write_batch(file, 99)
    disk.heal()
    clock.advance(RETRY_MS)
    await file.locks.ready()
    await file.check()
    await file.close()
    reopened = await SqliteFile.open(path, clock)
    assert await read_records(reopened.locks, *KEYS) == [held("99", 1_099)] * 40
    await reopened.close()
