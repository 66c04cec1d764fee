"""A file whose server was killed, and whose log is gone: complete if another program merged it, else refused (OPS-11).

A killed server leaves its files as they are; here they are copied while the server has them open.
"""

import shutil
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from volcano_locks_server.ports.admin_tokens import AdminToken
from volcano_locks_server.ports.registry import Project
from volcano_locks_server.rules.errors import StoreUnavailableError
from volcano_locks_server.rules.lease import RETENTION_MS, Free
from volcano_locks_server.stores.sqlite import SqliteFile, connection
from volcano_locks_server.stores.sqlite.checkpoints import RETRY_MS
from volcano_locks_server.testing import ManualClock

from ..store_actions import digest, key, read_records, write_records
from .simulated_disk import PowerDisk

PROJECT = Project("p-1", "one", 10, 1)
TOKEN = AdminToken("t-1", "ci", "vlat_abc", 1)


def killed(path: Path, into: Path, *, log: bool) -> Path:
    """The files of a server that was killed now, perhaps without their log."""
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir()
    for ending in ("", ".lock", *(["-wal"] if log else [])):
        shutil.copy(path.with_name(path.name + ending), into)
    return into / path.name


def merge_log(path: Path) -> None:
    """What any program that opens and closes the file does."""
    with closing(sqlite3.connect(path)) as other:
        other.execute("SELECT count(*) FROM lock").fetchall()
    assert not path.with_name(path.name + "-wal").exists()


async def cause_code(path: Path, clock: ManualClock) -> str | None:
    """Why the file is refused, None if it is not. A refusal changes nothing but the lock file."""
    before = {one.name: one.read_bytes() for one in path.parent.iterdir() if one.suffix != ".lock"}
    try:
        file = await SqliteFile.open(path, clock)
    except StoreUnavailableError as error:
        assert {one.name: one.read_bytes() for one in path.parent.iterdir() if one.suffix != ".lock"} == before
        return error.cause_code
    await file.close()
    return None


async def purge_locks(file: SqliteFile, clock: ManualClock) -> None:
    clock.advance(RETENTION_MS + 10_000)
    assert await file.locks.purge(limit=10) == 1


WRITES: dict[str, Callable[[SqliteFile, ManualClock], Awaitable[object]]] = {
    "a lock": lambda file, _clock: write_records(file.locks, (key("b"), Free(1, 1))),
    "a project": lambda file, _clock: file.registry.add_project(PROJECT),
    "an admin token": lambda file, _clock: file.admin_tokens.add(TOKEN, digest("token")),
    "a repair": lambda file, _clock: file.repairs.repair("admin-token/t-0", 1),
    "a purge": purge_locks,
}


@pytest.mark.parametrize("write", WRITES)
async def test_a_file_lacks_its_last_commit_until_its_log_is_merged(
    path: Path, tmp_path: Path, clock: ManualClock, write: str
) -> None:
    """LEASE-14, OPS-11, case 72: whatever the last commit wrote."""
    file = await SqliteFile.open(path, clock)
    await write_records(file.locks, (key("a"), Free(1, 1)))
    await file.admin_tokens.add(AdminToken("t-0", "old", "vlat_old", 1), digest("old"))
    file._connection.wal_checkpoint()
    assert await cause_code(killed(path, tmp_path / "before", log=False), clock) is None, "the database has all"
    await WRITES[write](file, clock)
    without_log = killed(path, tmp_path / "without log", log=False)
    for _ in range(2):
        assert await cause_code(without_log, clock) == "log_lost"
    merge_log(without_log)
    assert await cause_code(without_log, clock) == "log_lost", "there was nothing to merge"
    merged = killed(path, tmp_path / "merged", log=True)
    merge_log(merged)
    assert await cause_code(merged, clock) is None
    assert await cause_code(killed(path, tmp_path / "with log", log=True), clock) is None
    await file.close()


async def test_a_database_in_the_middle_of_a_checkpoint_needs_its_log(
    path: Path, tmp_path: Path, clock: ManualClock
) -> None:
    """OPS-11: some of its pages may be old ones, whatever its number says."""
    file = await SqliteFile.open(path, clock)
    await write_records(file.locks, (key("a"), Free(1, 1)))
    with file._file_lock.served.merging():
        file._connection.wal_checkpoint()
        assert await cause_code(killed(path, tmp_path / "within", log=False), clock) == "log_lost"
        assert await cause_code(killed(path, tmp_path / "with log", log=True), clock) is None
    assert await cause_code(killed(path, tmp_path / "after", log=False), clock) is None
    await file.close()


async def test_the_log_is_needed_unless_a_checkpoint_has_merged_the_last_commit(
    path: Path, tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OPS-11: with a checkpoint every few commits."""
    monkeypatch.setattr(connection, "WAL_CHECKPOINT_PAGES", 5)
    file = await SqliteFile.open(path, clock)
    for number in range(20):
        await write_records(file.locks, (key(f"k{number}"), Free(1, 1)))
        merged = killed(path, tmp_path / "merged", log=True)
        merge_log(merged)
        assert await cause_code(merged, clock) is None
        without_log = killed(path, tmp_path / "without log", log=False)
        has_all = without_log.read_bytes() == merged.read_bytes()
        assert (await cause_code(without_log, clock) is None) == has_all
    await file.close()


class _FailingAtItsEnd:
    """A connection whose checkpoints fail after they have written the database, perhaps not all of it."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    def wal_checkpoint(self) -> None:
        self._connection.wal_checkpoint()
        raise apsw.IOError


async def test_the_log_is_needed_from_a_checkpoint_that_failed_until_one_succeeds(
    path: Path, tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OPS-11: it may have written the page with the number, and others not."""
    monkeypatch.setattr(connection, "WAL_CHECKPOINT_PAGES", 1)
    file = await SqliteFile.open(path, clock)
    checkpoints = file.locks._checkpoints
    monkeypatch.setattr(checkpoints, "_connection", _FailingAtItsEnd(file._connection))
    for number in range(2):
        await write_records(file.locks, (key(f"k{number}"), Free(1, 1)))
        assert await cause_code(killed(path, tmp_path / "failed", log=False), clock) == "log_lost"
        assert await cause_code(killed(path, tmp_path / "with log", log=True), clock) is None
    monkeypatch.undo()
    clock.advance(RETRY_MS)
    await write_records(file.locks, (key("c"), Free(1, 1)))
    assert await cause_code(killed(path, tmp_path / "succeeded", log=False), clock) is None
    await file.close()


async def test_the_log_is_needed_after_a_start_that_could_not_merge_it(
    path: Path, tmp_path: Path, clock: ManualClock
) -> None:
    """OPS-11: its checkpoint failed, because the disk was full."""
    file = await SqliteFile.open(path, clock)
    await write_records(file.locks, (key("a"), Free(1, 1)))
    left = killed(path, tmp_path / "left", log=True)
    await file.close()
    disk = PowerDisk("not merged")
    disk.is_full = True
    restarted = await SqliteFile.open(left, clock, vfs=disk.name)
    assert left.with_name("locks.db.lock").read_text().split()[1:] == ["served"]
    disk.is_full = False
    clock.advance(RETRY_MS)
    restarted._checkpoints._run()
    assert left.with_name("locks.db.lock").read_text().split()[1:] == ["served", "1"]
    await restarted.close()


def no_number(_path: Path, lock: Path) -> None:
    """As a server of an older version leaves it."""
    lock.write_bytes(lock.read_bytes()[:27])


def older_schema(path: Path, _lock: Path) -> None:
    with closing(sqlite3.connect(path)) as other:
        other.execute("ALTER TABLE newest_instant DROP COLUMN commits")


def no_clock(path: Path, _lock: Path) -> None:
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("DELETE FROM newest_instant")


def empty(path: Path, _lock: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("change", [no_number, older_schema, no_clock, empty])
async def test_without_both_numbers_a_file_without_its_log_is_refused(
    path: Path, tmp_path: Path, clock: ManualClock, change: Callable[[Path, Path], None]
) -> None:
    """OPS-11: nothing proves that it is complete."""
    file = await SqliteFile.open(path, clock)
    await write_records(file.locks, (key("a"), Free(1, 1)))
    copy = killed(path, tmp_path / "copy ?#%", log=True)
    merge_log(copy)
    change(copy, copy.with_name("locks.db.lock"))
    assert await cause_code(copy, clock) == "log_lost"
    await file.close()


async def test_a_file_that_another_program_has_open_is_not_taken_for_lost(
    path: Path, tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OPS-11, case 23: the start that was refused meanwhile changed nothing."""
    monkeypatch.setattr(connection, "BUSY_TIMEOUT_MS", 10)
    file = await SqliteFile.open(path, clock)
    await write_records(file.locks, (key("a"), Free(1, 1)))
    copy = killed(path, tmp_path / "copy", log=True)
    await file.close()
    with closing(apsw.Connection(str(copy))) as other:  # the same SQLite, so that its locks count within this process
        other.execute("SELECT count(*) FROM lock").fetchall()
        with pytest.raises(StoreUnavailableError, match="another program holds"):
            await SqliteFile.open(copy, clock)
    assert not copy.with_name("locks.db-wal").exists()
    assert await cause_code(copy, clock) is None


async def test_a_transaction_that_changes_nothing_is_not_counted(path: Path, clock: ManualClock) -> None:
    """It writes nothing to the log, so it needs no sync."""
    file = await SqliteFile.open(path, clock)
    await write_records(file.locks, (key("a"), Free(1, clock.now_ms())))
    log, lock = path.with_name("locks.db-wal"), path.with_name("locks.db.lock")
    before = log.read_bytes(), lock.read_bytes()
    await read_records(file.locks, key("a"))
    assert await file.locks.purge(limit=10) == 0
    assert await file.audit.purge(clock.now_ms()) == 0
    assert (log.read_bytes(), lock.read_bytes()) == before
    await file.close()
