"""Opening a file, and refusing to open one. Each refusal leaves nothing behind."""

import asyncio
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from volcano_locks_server.rules.errors import StoreUnavailableError
from volcano_locks_server.rules.lease import Acquire, ForceRelease, Free, Release
from volcano_locks_server.rules.values import parse_owner_token
from volcano_locks_server.stores.sqlite import SqliteFile, connection
from volcano_locks_server.stores.sqlite.file_lock import FileLock
from volcano_locks_server.testing import ManualClock

from ..store_actions import key, read_records, run_commands, write_records


async def refusal(path: Path, clock: ManualClock) -> tuple[str, str]:
    """The cause code and the message with which opening fails; no thread and no descriptor stays."""
    threads, descriptors = threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(StoreUnavailableError) as caught:
        await SqliteFile.open(path, clock)
    assert threading.active_count() <= threads
    assert len(list(Path("/proc/self/fd").iterdir())) <= descriptors
    return caught.value.cause_code, caught.value.message


async def test_only_this_user_can_read_a_new_file(path: Path, clock: ManualClock) -> None:
    previous = os.umask(0)
    try:
        file = await SqliteFile.open(path, clock)
        await write_records(file.locks, (key("a"), Free(1, 1)))
    finally:
        os.umask(previous)
    modes = {one.name: one.stat().st_mode & 0o777 for one in path.parent.iterdir()}
    assert modes == {"locks.db": 0o600, "locks.db-wal": 0o600, "locks.db.lock": 0o600}
    await file.close()
    assert not path.with_name("locks.db-wal").exists()


async def test_records_survive_a_restart(path: Path, clock: ManualClock) -> None:
    for number in range(3):
        file = await SqliteFile.open(path, clock)
        assert await read_records(file.locks, key("a")) == [Free(number, 1) if number else None]
        await write_records(file.locks, (key("a"), Free(number + 1, 1)))
        await file.close()


async def test_a_second_server_on_the_same_file_is_refused_by_any_name(
    path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(path.parent)
    link = path.with_name("link.db")
    link.symlink_to(path)
    file = await SqliteFile.open(path, clock)
    for name in (path, Path("locks.db"), link, path.parent / "." / "locks.db"):
        cause_code, message = await refusal(name, clock)
        assert cause_code == "file_in_use"
        assert f"process {os.getpid()}" in message
        assert "stop that server, or name another file for this one" in message
    await write_records(file.locks, (key("a"), Free(1, 1)))
    await file.close()
    again = await SqliteFile.open(link, clock)
    assert await read_records(again.locks, key("a")) == [Free(1, 1)]
    await again.close()


async def test_the_lock_of_a_killed_process_ends_with_it(path: Path, clock: ManualClock) -> None:
    script = (
        "import asyncio, os, signal, sys; from pathlib import Path\n"
        "from volcano_locks_server.stores.sqlite import SqliteFile\n"
        "from volcano_locks_server.testing import ManualClock\n"
        "async def main():\n"
        "    file = await SqliteFile.open(Path(sys.argv[1]), ManualClock())\n"
        "    print('open', flush=True); await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"open\n"
        assert (await refusal(path, clock))[0] == "file_in_use"
        other.kill()
    file = await SqliteFile.open(path, clock)
    await file.close()


async def test_another_program_with_the_file_open_is_reported_in_time(
    path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """case 23: busy is a clear error. An open file excludes other programs, so no reader delays the log."""
    monkeypatch.setattr(connection, "BUSY_TIMEOUT_MS", 10)
    await (await SqliteFile.open(path, clock)).close()
    other = apsw.Connection(str(path))  # the same SQLite, so that its locks count within this process too
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailableError, match="another program holds") as caught:
        await SqliteFile.open(path, clock)
    assert caught.value.cause_code == "store_busy"
    other.close()
    file = await SqliteFile.open(path, clock)
    other = apsw.Connection(str(path))
    with pytest.raises(apsw.BusyError):
        other.execute("SELECT * FROM lock")
    other.close()
    await file.close()


async def test_a_file_of_a_newer_version_is_refused_unchanged(path: Path, clock: ManualClock) -> None:
    await (await SqliteFile.open(path, clock)).close()
    other = apsw.Connection(str(path))
    other.execute("PRAGMA user_version = 9999")
    other.close()
    before = path.read_bytes()
    cause_code, message = await refusal(path, clock)
    assert cause_code == "newer_version"
    assert "schema version 9999" in message
    assert "use a newer release" in message
    assert path.read_bytes() == before


async def test_a_database_of_another_program_is_refused_unchanged(path: Path, clock: ManualClock) -> None:
    other = apsw.Connection(str(path))
    other.execute("CREATE TABLE theirs (a)")
    other.close()
    before = path.read_bytes()
    assert (await refusal(path, clock))[0] == "foreign_file"
    assert path.read_bytes() == before


def make_text(path: Path) -> Path:
    path.write_text("This is a shopping list, not a database. " * 200)
    return path


def make_directory(path: Path) -> Path:
    path.mkdir()
    return path


def make_pipe(path: Path) -> Path:
    os.mkfifo(path)
    return path


def make_second_link(path: Path) -> Path:
    path.touch()
    path.with_name("other.db").hardlink_to(path)
    return path


def make_circle(path: Path) -> Path:
    path.symlink_to(path)
    return path


def make_linked_lock(path: Path) -> Path:
    path.with_name("locks.db.lock").symlink_to(path.with_name("victim"))
    return path


@pytest.mark.parametrize(
    ("make", "cause_code"),
    [
        (make_text, "not_a_database"),
        (make_directory, "not_a_file"),
        (make_pipe, "not_a_file"),
        (make_second_link, "hard_linked"),
        (make_circle, "not_a_file"),
        (make_linked_lock, "not_a_file"),
        (lambda path: path / "missing" / "locks.db", "no_directory"),
        (lambda path: make_text(path) / "locks.db", "no_directory"),
        (lambda path: Path("/proc/locks.db"), "no_directory"),
    ],
)
async def test_an_unusable_path_is_refused_by_name(
    path: Path, clock: ManualClock, make: Callable[[Path], Path], cause_code: str
) -> None:
    named = make(path)
    code, message = await refusal(named, clock)
    assert code == cause_code
    assert message.startswith(f"cannot open {named}")


async def test_a_file_of_another_user_is_refused(path: Path, clock: ManualClock) -> None:
    """The test, as root, becomes another user for a moment; the file keeps its records."""
    await (await SqliteFile.open(path, clock)).close()
    path.chmod(0o400)
    path.with_name("locks.db.lock").chmod(0o666)
    was_root = os.geteuid() == 0
    opened_up = [one for one in (path.parent, *path.parents) if was_root and not one.stat().st_mode & 0o001]
    for directory in opened_up:
        directory.chmod(directory.stat().st_mode | 0o011)
    if was_root:
        os.seteuid(65_534)
    try:
        cause_code, message = await refusal(path, clock)
    finally:
        if was_root:
            os.seteuid(0)
    assert cause_code == "no_permission"
    assert "check the owner of the file" in message
    path.chmod(0o600)
    await (await SqliteFile.open(path, clock)).close()


@pytest.mark.parametrize("name", ["locks.db", "locks.db-wal", "locks.db.lock"])
async def test_a_file_deleted_under_the_server_stops_it(path: Path, clock: ManualClock, name: str) -> None:
    """LEASE-16: writes to a deleted file would be lost at the next start."""
    file = await SqliteFile.open(path, clock)
    await write_records(file.locks, (key("a"), Free(1, 1)))
    kept = path.with_name("kept")
    path.with_name(name).rename(kept)
    for _ in range(2):
        with pytest.raises(StoreUnavailableError) as caught:
            await file.locks.ready()
        assert caught.value.cause_code == "file_replaced"
    with pytest.raises(StoreUnavailableError):
        await write_records(file.locks, (key("a"), Free(2, 2)))
    path.with_name(name).touch()
    with pytest.raises(StoreUnavailableError):
        await file.locks.ready()
    kept.rename(path.with_name(name))
    await file.locks.ready()
    await file.close()


async def test_a_cancelled_open_leaves_nothing_open(path: Path, clock: ManualClock) -> None:
    for _ in range(5):
        opening = asyncio.create_task(SqliteFile.open(path, clock))
        await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
    file = await SqliteFile.open(path, clock)
    await file.close()


async def test_a_clock_slightly_behind_the_file_is_awaited(path: Path, clock: ManualClock) -> None:
    """LEASE-1: time does not go back over a restart; the wait uses the given `sleep`."""
    file = await SqliteFile.open(path, clock)
    await write_records(file.locks, (key("a"), Free(1, 1)))
    await file.close()
    slow = ManualClock(clock.now_ms() - 5_000)
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        slow.advance(round(seconds * 1_000) - (1 if len(waits) == 1 else 0))  # the first sleep ends 1 ms early

    file = await SqliteFile.open(path, slow, sleep=sleep)
    assert waits == [5.0, 0.001]
    assert await read_records(file.locks, key("a")) == [Free(1, 1)]
    await file.close()


async def test_a_clock_far_behind_the_file_is_refused_with_both_instants(path: Path, clock: ManualClock) -> None:
    """LEASE-1, LEASE-16; the file opens again when the clock is right."""
    file = await SqliteFile.open(path, clock)
    await write_records(file.locks, (key("a"), Free(1, 1)))
    await file.close()
    cause_code, message = await refusal(path, ManualClock(clock.now_ms() - 5_001))
    assert cause_code == "clock_behind"
    assert "2026-07-20T13:59:54.999+00:00" in message
    assert "2026-07-20T14:00:00.000+00:00" in message
    file = await SqliteFile.open(path, clock)
    await file.close()


async def test_the_files_contain_no_owner_token(path: Path, clock: ManualClock) -> None:
    """LEASE-15: only the digest of a held, retired or forced-out token is stored."""
    texts = [str(uuid.uuid4()) for _ in range(3)]
    digests = [parse_owner_token(text.encode()) for text in texts]
    file = await SqliteFile.open(path, clock)
    await run_commands(file.locks, *((key(f"k{number}"), Acquire(one, 30)) for number, one in enumerate(digests)))
    await run_commands(file.locks, (key("k0"), Release(digests[0])), (key("k1"), ForceRelease()))
    kept = b"".join(one.read_bytes() for one in path.parent.iterdir())
    for text, one in zip(texts, digests, strict=True):
        assert one in kept
        for shape in (text.encode(), text.replace("-", "").encode(), uuid.UUID(text).bytes):
            assert shape not in kept
    await file.close()


def test_a_lock_file_replaced_during_the_start_is_detected(path: Path) -> None:
    """LEASE-16: the lock that counts is the one this process holds, not the file that is there now."""
    file_lock = FileLock.acquire(path)
    try:
        path.with_name("locks.db-wal").touch()
        lock = path.with_name("locks.db.lock")
        lock.rename(path.with_name("moved.lock"))
        lock.touch()
        file_lock.remember_files()
        with pytest.raises(StoreUnavailableError) as caught:
            file_lock.check_files(now=True)
        assert caught.value.cause_code == "file_replaced"
    finally:
        file_lock.release()
