"""Files that are mounted alone, replaced or overwritten: refused, or noticed within a second (OPS-11, case 72)."""

import asyncio
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from volcano_locks_server.rules.errors import StoreUnavailableError
from volcano_locks_server.rules.lease import Free
from volcano_locks_server.stores.sqlite import SqliteFile, connection, file_lock
from volcano_locks_server.stores.sqlite.backup import back_up_stopped
from volcano_locks_server.stores.sqlite.file_lock import CHECK_SECONDS, FileLock, marker_path
from volcano_locks_server.testing import ManualClock

from ..store_actions import key, read_records, write_records

OTHER_USER = 65_534


class Moment:
    """Replaces the monotonic clock of the checks."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def moment(monkeypatch: pytest.MonkeyPatch) -> Moment:
    moment = Moment()
    monkeypatch.setattr(file_lock, "time", moment)
    return moment


@pytest.fixture
def mounted_file(tmp_path: Path) -> Iterator[Path | None]:
    """A file that is bind-mounted alone, or None if this user may not mount."""
    outside, inside = tmp_path / "outside.db", tmp_path / "inside folder" / "locks.db"
    inside.parent.mkdir()
    outside.touch()
    inside.touch()
    try:
        mounted = subprocess.run(["mount", "--bind", outside, inside], check=False, capture_output=True).returncode == 0
    except FileNotFoundError:
        mounted = False
    yield inside if mounted else None
    if mounted:
        subprocess.run(["umount", inside], check=True)


async def refusal(path: Path, clock: ManualClock) -> StoreUnavailableError:
    with pytest.raises(StoreUnavailableError) as caught:
        await SqliteFile.open(path, clock)
    return caught.value


async def test_a_file_that_is_mounted_alone_is_refused(
    path: Path, mounted_file: Path | None, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OPS-11, case 72: its log would lie outside the mount. With a real mount if this user may, and with a table."""
    if mounted_file is not None:
        refused = await refusal(mounted_file, clock)
        assert refused.cause_code == "mounted_alone"
        assert "mount the folder instead" in refused.message
        link = path.with_name("link.db")
        link.symlink_to(mounted_file)
        assert (await refusal(link, clock)).cause_code == "mounted_alone"
        assert [one.name for one in mounted_file.parent.iterdir()] == ["locks.db"]
    table = path.with_name("mountinfo")
    monkeypatch.setattr(file_lock, "MOUNT_TABLE", table)
    folder = path.parent / "a b"
    folder.mkdir()
    line = "36 35 98:0 /locks.db {} rw,noatime master:1 - ext3 /dev/root rw\n"
    table.write_text(line.format("/") + line.format(str(folder).replace(" ", "\\040") + "/locks.db"))
    assert (await refusal(folder / "locks.db", clock)).cause_code == "mounted_alone"
    await (await SqliteFile.open(folder / "other.db", clock)).close()
    table.write_text(line.format(str(folder).replace(" ", "\\040")))
    await (await SqliteFile.open(folder / "locks.db", clock)).close()
    monkeypatch.setattr(file_lock, "MOUNT_TABLE", path / "no such table")
    await (await SqliteFile.open(folder / "locks.db", clock)).close()


def overwrite(path: Path) -> None:
    """As `cp old.db locks.db` does: the same inode."""
    path.write_bytes(path.with_name("old.db").read_bytes())


def replace(path: Path) -> None:
    shutil.copy(path.with_name("old.db"), path.with_name("new.db"))
    path.with_name("new.db").replace(path)


def truncate(path: Path) -> None:
    os.truncate(path, 0)


@pytest.mark.parametrize("change", [overwrite, replace, truncate, Path.unlink])
async def test_a_file_that_another_program_changed_is_noticed_within_a_second(
    path: Path, clock: ManualClock, moment: Moment, change: Callable[[Path], None]
) -> None:
    """OPS-11, case 72, LEASE-16: nothing is acknowledged from then on, by this server or the next."""
    await (await SqliteFile.open(path, clock)).close()
    shutil.copy(path, path.with_name("old.db"))
    file = await SqliteFile.open(path, clock)
    await write_records(file.locks, (key("a"), Free(1, 1)))
    change(path)
    moment.now += CHECK_SECONDS
    for refused in (
        lambda: write_records(file.locks, (key("a"), Free(2, 2))),
        lambda: read_records(file.locks, key("a")),
        lambda: file.registry.projects(limit=1, cursor=None),
        file.locks.count_held,
        file.locks.ready,
        file.backups.take,
        file.check,
    ):
        with pytest.raises(StoreUnavailableError, match="volcano-locks restore") as caught:
            await refused()
        assert caught.value.cause_code == "file_replaced"
    content = path.read_bytes() if path.exists() else None
    await file.close()
    assert (path.read_bytes() if path.exists() else None) == content, "the log must not be merged into another file"
    again = await refusal(path, clock)
    assert again.cause_code == "file_replaced"
    assert str(marker_path(path)) in again.message
    with pytest.raises(StoreUnavailableError, match="volcano-locks restore"):
        back_up_stopped(path, path.with_name("backup"))


@pytest.mark.parametrize("link", ["folder", "file"])
async def test_a_link_that_leads_to_another_file_is_noticed(
    tmp_path: Path, clock: ManualClock, moment: Moment, link: str
) -> None:
    """OPS-11, LEASE-14: the next start would open a copy that lacks the latest leases."""
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    named = tmp_path / "current" / "locks.db" if link == "folder" else tmp_path / "current"

    def lead_to(place: Path) -> None:
        swapped = tmp_path / "swapped"
        swapped.symlink_to(place if link == "folder" else place / "locks.db")
        swapped.replace(tmp_path / "current")

    lead_to(old)
    file = await SqliteFile.open(named, clock)
    shutil.copytree(old, new)
    await write_records(file.locks, (key("a"), Free(1, 1)))
    lead_to(new)
    moment.now += CHECK_SECONDS
    with pytest.raises(StoreUnavailableError, match="replaced, moved") as caught:
        await write_records(file.locks, (key("a"), Free(2, 2)))
    assert caught.value.cause_code == "file_replaced"
    assert (await refusal(named, clock)).cause_code == "file_replaced"
    lead_to(old)
    await write_records(file.locks, (key("a"), Free(2, 2)))
    lead_to(new)
    await file.close()
    assert (await refusal(named, clock)).cause_code == "file_replaced"
    lead_to(old)
    file = await SqliteFile.open(named, clock)
    assert await read_records(file.locks, key("a")) == [Free(2, 2)]
    await file.close()


async def test_a_folder_that_this_user_may_no_longer_read_is_not_a_replaced_file(
    path: Path, clock: ManualClock, moment: Moment
) -> None:
    """OPS-11: nothing is acknowledged, the message names the permissions, and the server goes on when it may read."""
    file = await SqliteFile.open(path, clock)
    owner, mode = os.geteuid(), path.parent.stat().st_mode
    path.parent.chmod(0o600)
    try:
        if owner == 0:
            os.seteuid(OTHER_USER)
        moment.now += CHECK_SECONDS
        with pytest.raises(StoreUnavailableError, match="check the owner of the file and its directory") as caught:
            await write_records(file.locks, (key("a"), Free(1, 1)))
        assert caught.value.cause_code == "no_permission"
    finally:
        os.seteuid(owner)
        path.parent.chmod(mode)
    await write_records(file.locks, (key("a"), Free(1, 1)))
    assert not marker_path(path).exists()
    await file.close()


def restore_older_log(path: Path) -> None:
    """As `cp backup/locks.db-wal locks.db-wal` does: the same inode, and often the same size."""
    log = path.with_name("locks.db-wal")
    log.write_bytes(bytes(log.stat().st_size))


def empty_log(path: Path) -> None:
    os.truncate(path.with_name("locks.db-wal"), 0)


@pytest.mark.parametrize("change", [restore_older_log, empty_log])
async def test_a_log_that_another_program_wrote_over_is_noticed_before_the_next_response(
    path: Path, clock: ManualClock, moment: Moment, change: Callable[[Path], None]
) -> None:
    """OPS-11, case 72, LEASE-14: what is acknowledged after that would be lost at the next start."""
    file = await SqliteFile.open(path, clock)
    await write_records(file.locks, (key("a"), Free(1, 1)))
    change(path)
    for refused in (
        lambda: write_records(file.locks, (key("a"), Free(2, 2))),
        lambda: read_records(file.locks, key("a")),
        file.check,
    ):
        with pytest.raises(StoreUnavailableError, match=r"locks\.db-wal: another program"):
            await refused()
    database = path.read_bytes()
    await file.close()
    assert path.read_bytes() == database, "a log of another program must not be merged"
    assert (await refusal(path, clock)).cause_code == "file_replaced"


async def test_checkpoints_of_this_server_are_no_change_by_another(
    path: Path, clock: ManualClock, moment: Moment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OPS-11: also across restarts, and while a backup is taken."""
    monkeypatch.setattr(connection, "WAL_CHECKPOINT_PAGES", 5)
    for _ in range(2):
        file = await SqliteFile.open(path, clock)
        for number in range(100):
            moment.now += CHECK_SECONDS
            await write_records(file.locks, (key(f"k{number}"), Free(1, 1)))
        (await file.backups.take()).close()
        await file.check()
        await file.close()


async def test_an_overwritten_file_is_noticed_before_a_checkpoint_hides_it(
    path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OPS-11: a checkpoint writes the file too, so it looks first."""
    monkeypatch.setattr(connection, "WAL_CHECKPOINT_PAGES", 5)
    file = await SqliteFile.open(path, clock)
    path.write_bytes(path.read_bytes())
    writes = [write_records(file.locks, (key(f"k{number}"), Free(1, 1))) for number in range(20)]
    with pytest.raises(StoreUnavailableError, match="wrote over it"):
        await asyncio.gather(*writes)
    await file.close()


def test_only_the_lock_file_does_not_prevent_later_starts(path: Path) -> None:
    """OPS-11: the database and its log still belong together."""
    lock = FileLock.acquire(path)
    path.with_name("locks.db-wal").touch()
    lock.remember_files()
    path.with_name("locks.db.lock").unlink()
    with pytest.raises(StoreUnavailableError):
        lock.check_files(now=True)
    assert not marker_path(path).exists()
    lock.release()
