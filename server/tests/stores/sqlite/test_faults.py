"""A full or broken disk is reported with its own cause, leaves nothing half written, and may recover."""

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from volcano_locks_server.ports.lock_store import RecordKey
from volcano_locks_server.ports.registry import Project
from volcano_locks_server.rules.errors import StoreUnavailableError
from volcano_locks_server.rules.lease import Free, LockRecord
from volcano_locks_server.stores.sqlite import SqliteFile, connection
from volcano_locks_server.testing import ManualClock

from ..store_actions import held, key, read_records, write_records
from .simulated_disk import FaultyDisk

KEYS = [key(f"k{number}") for number in range(40)]


async def unavailable(awaitable: object) -> str:
    with pytest.raises(StoreUnavailableError) as caught:
        await awaitable  # type: ignore[misc]
    assert caught.value.code == "lock_service_unavailable"
    assert caught.value.retry_after_seconds == 1
    return caught.value.cause_code


def batch(number: int) -> dict[RecordKey, LockRecord]:
    return {one: held(f"{number}", 1_000 + number) for one in KEYS}


FAULTS = [(apsw.FullError, "disk_full"), (apsw.IOError, "disk_error"), (apsw.BusyError, "store_busy")]


@pytest.mark.parametrize("lasts", [True, False])
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_fault_at_any_write_or_sync_is_reported_and_recovers(
    path: Path,
    clock: ManualClock,
    fault: tuple[type[apsw.Error], str],
    lasts: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """case 23, case 24, LEASE-14, LEASE-16: each operation of a batch fails in turn, checkpoints included.

    Unavailable means unknown: the simulated disk also fails after the log was synced, in the checkpoint alone. So
    either the whole batch is there or nothing of it, and what is there stays.
    """
    error, cause_code = fault
    monkeypatch.setattr(connection, "WAL_CHECKPOINT_PAGES", 30)
    disk = FaultyDisk(f"faulty-{cause_code}-{lasts}")
    file = await SqliteFile.open(path, clock, vfs=disk.name)
    acknowledged: dict[RecordKey, LockRecord | None] = {**batch(0)}
    await write_records(file.locks, *batch(0).items())
    refused = 0
    for number in range(1, 60):
        attempted = batch(number)
        disk.break_after(number % 30, error, lasts=lasts)
        answer = (await asyncio.gather(write_records(file.locks, *attempted.items()), return_exceptions=True))[0]
        disk.heal()
        there = await read_records(file.locks, *KEYS)
        if answer is None:
            assert there == list(attempted.values())
        else:
            assert isinstance(answer, StoreUnavailableError)
            assert answer.cause_code == cause_code
            assert there in (list(attempted.values()), list(acknowledged.values()))
            refused += there == list(acknowledged.values())
        acknowledged = dict(zip(KEYS, there, strict=True))
    assert refused > 5
    await file.locks.ready()
    await file.close()
    reopened = await SqliteFile.open(path, clock)
    assert await read_records(reopened.locks, *KEYS) == list(acknowledged.values())
    await reopened.close()


async def test_ready_follows_a_disk_that_fails_and_recovers(path: Path, clock: ManualClock) -> None:
    """case 24: readiness is proven by a write, and a failed one outweighs an earlier success."""
    disk = FaultyDisk("readiness")
    file = await SqliteFile.open(path, clock, vfs=disk.name)
    await write_records(file.locks, (key("a"), Free(1, 1)))
    disk.break_after(0, apsw.FullError, lasts=True)
    assert await unavailable(write_records(file.locks, (key("a"), Free(2, 2)))) == "disk_full"
    for _ in range(2):
        assert await unavailable(file.locks.ready()) == "disk_full"
    disk.heal()
    await file.locks.ready()
    await file.close()


async def test_the_registry_reports_a_fault_and_recovers(path: Path, clock: ManualClock) -> None:
    """case 24."""
    disk = FaultyDisk("registry")
    file = await SqliteFile.open(path, clock, vfs=disk.name)
    disk.break_after(0, apsw.IOError, lasts=True)
    project = Project("p-1", "name", 0, 1)
    assert await unavailable(file.registry.add_project(project)) == "disk_error"
    disk.heal()
    assert (await file.registry.projects(limit=5, cursor=None)).items == []
    await file.registry.add_project(project)
    assert await file.registry.project("p-1") == project
    await file.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path | None]:
    """A file system of one megabyte, or None if this user may not mount one."""
    directory = tmp_path / "small"
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(directory)]
    try:
        mounted = subprocess.run(mount, check=False, capture_output=True).returncode == 0
    except FileNotFoundError:
        mounted = False
    yield directory if mounted else None
    if mounted:
        subprocess.run(["umount", str(directory)], check=True)


async def test_a_full_disk_is_reported_and_recovers(small_disk: Path | None, path: Path, clock: ManualClock) -> None:
    """case 24: on a real disk if the user may mount one, else with a limit in SQLite itself."""
    file = await SqliteFile.open(small_disk / "locks.db" if small_disk else path, clock)
    if small_disk is None:
        await file._writer.run(lambda: file._connection.execute("PRAGMA max_page_count = 150").fetchall())
    acknowledged: dict[RecordKey, LockRecord] = {}
    cause = ""
    for number in range(20_000):
        records = {key(f"k{number}-{place}"): held("a", 1_000, holder="x" * 128) for place in range(50)}
        try:
            await write_records(file.locks, *records.items())
        except StoreUnavailableError as error:
            cause = error.cause_code
            break
        acknowledged |= records
    assert cause == "disk_full"
    assert await read_records(file.locks, *records) == [None] * 50
    assert await read_records(file.locks, *acknowledged) == list(acknowledged.values())
    if small_disk:
        await file.close()
        file = await SqliteFile.open(small_disk / "locks.db", clock)
        assert await unavailable(write_records(file.locks, *records.items())) == "disk_full"
        assert await read_records(file.locks, *acknowledged) == list(acknowledged.values())
    if small_disk:
        subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    else:
        await file._writer.run(lambda: file._connection.execute("PRAGMA max_page_count = 100000").fetchall())
    await write_records(file.locks, *records.items())
    await file.locks.ready()
    assert await read_records(file.locks, *records) == list(records.values())
    await file.close()
