"""A SQLite file's time over restarts: within a boot it goes on, and unknown time ends no lease (LEASE-1, LEASE-17)."""

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from volcano_locks_server.ports.lock_store import LockQuery
from volcano_locks_server.rules.lease import Acquire, Granted, Held, Read, Refused, Release, State
from volcano_locks_server.stores.sqlite import SqliteFile
from volcano_locks_server.stores.sqlite.connection import migrations
from volcano_locks_server.stores.sqlite.restore import restore
from volcano_locks_server.testing import START_MS, ManualClock

from ..store_actions import PROJECT, digest, key, run_commands

LOCK = key("a")
TTL_SECONDS = 60
LEFT_MS = (TTL_SECONDS + 1) * 1_000
STEPS_MS = [5_000, 60_000, 3_600_000, -3_600_000]


async def opened(path: Path, clock: ManualClock) -> SqliteFile:
    async def wait(seconds: float) -> None:
        clock.advance(round(seconds * 1_000))

    return await SqliteFile.open(path, clock, sleep=wait)


async def acquire(file: SqliteFile, owner: str, ttl_seconds: int = TTL_SECONDS) -> Granted | Refused:
    (outcome,) = await run_commands(file.locks, (LOCK, Acquire(digest(owner), ttl_seconds)))
    assert isinstance(outcome, Granted | Refused)
    return outcome


async def lease_of(path: Path, clock: ManualClock) -> Granted:
    """A lease that "me" holds; the file is closed."""
    file = await opened(path, clock)
    granted = await acquire(file, "me")
    await file.close()
    assert isinstance(granted, Granted)
    return granted


async def check_held_for(path: Path, clock: ManualClock, left_ms: int) -> Granted:
    """The lock is held by every view for `left_ms`, across restarts, then is taken over."""
    for passed_ms in (0, left_ms // 2, left_ms - 1 - left_ms // 2):
        clock.advance(passed_ms)
        file = await opened(path, clock)
        refused = await acquire(file, "other")
        assert isinstance(refused, Refused)
        assert refused.code == "lock_held"
        (read,) = await run_commands(file.locks, (LOCK, Read()))
        assert isinstance(read, State)
        assert read.lease is not None
        for held, keys in ((True, [LOCK.key]), (False, []), (None, [LOCK.key])):
            page = await file.locks.list_locks(LockQuery(PROJECT, 10, held=held))
            assert [one for one, _ in page.records] == keys
        assert await file.locks.count_held() == 1
        assert await file.locks.purge(limit=10) == 0
        await file.close()
    clock.advance(1)
    file = await opened(path, clock)
    assert await file.locks.count_held() == 0
    assert (await file.locks.list_locks(LockQuery(PROJECT, 10, held=True))).records == []
    assert file.locks.takeover_hold() is None
    granted = await acquire(file, "other")
    await file.close()
    assert isinstance(granted, Granted)
    return granted


@pytest.mark.parametrize("step_ms", STEPS_MS)
async def test_a_restart_in_the_same_boot_goes_on(path: Path, clock: ManualClock, step_ms: int) -> None:
    """LEASE-1, LEASE-17, case 67: setting the date neither ends a lease nor extends it, and prevents no start."""
    before = await lease_of(path, clock)
    clock.advance(2_000)
    clock.jump(step_ms)
    file = await opened(path, clock)
    assert file.locks.takeover_hold() is None
    repeated = await acquire(file, "me")
    await file.close()
    assert isinstance(repeated, Granted)
    assert repeated.expires_at_ms == before.expires_at_ms + 2_000
    after = await check_held_for(path, clock, LEFT_MS)
    assert after.fencing_token == before.expires_at_ms + 2_000 + 1_000


@pytest.mark.parametrize("step_ms", [-3_000, 0, 5_000, 60_000, 3_600_000, 365 * 86_400_000])
async def test_unknown_time_across_boots_ends_no_lease(path: Path, clock: ManualClock, step_ms: int) -> None:
    """LEASE-17, case 67: on another machine or after a reboot, without a synchronised clock. A start that has to wait
    for its clock waits first.
    """
    await lease_of(path, clock)
    clock.is_synchronised = False
    clock.jump(step_ms)
    clock.reboot()
    await check_held_for(path, clock, LEFT_MS)


@pytest.mark.parametrize(("then", "now"), [(True, False), (False, True), (False, False)])
async def test_both_clocks_must_be_synchronised(path: Path, clock: ManualClock, then: bool, now: bool) -> None:
    """LEASE-17: when the newest instant was written, and at the start."""
    clock.is_synchronised = then
    await lease_of(path, clock)
    clock.advance(LEFT_MS)
    clock.reboot()
    clock.is_synchronised = now
    await check_held_for(path, clock, LEFT_MS)


async def test_time_between_synchronised_clocks_counts(path: Path, clock: ManualClock) -> None:
    """LEASE-17: a reboot with good clocks delays no takeover."""
    await lease_of(path, clock)
    clock.advance(LEFT_MS - 1)
    clock.reboot()
    file = await opened(path, clock)
    assert isinstance(await acquire(file, "other"), Refused)
    assert file.locks.takeover_hold() is None
    clock.advance(1)
    assert isinstance(await acquire(file, "other"), Granted)
    await file.close()


async def test_a_time_that_lags_behind_the_wall_clock_is_not_called_synchronised(
    path: Path, clock: ManualClock
) -> None:
    """LEASE-17: the kernel corrected the date after the file's time began; the next boot begins at the true date."""
    await lease_of(path, clock)
    clock.jump(60_000)  # in this boot the file's time goes on a minute behind
    file = await opened(path, clock)
    assert isinstance(await acquire(file, "me"), Granted)
    await file.close()
    clock.reboot()
    await check_held_for(path, clock, LEFT_MS)


async def test_a_hold_survives_restarts_and_further_jumps(path: Path, clock: ManualClock) -> None:
    """LEASE-17: a second jump during the hold adds to it, and does not end it."""
    await lease_of(path, clock)
    clock.is_synchronised = False
    for _ in range(3):
        clock.jump(3_600_000)
        clock.reboot()
        file = await opened(path, clock)
        assert isinstance(await acquire(file, "other"), Refused)
        hold = file.locks.takeover_hold()
        assert hold is not None
        await file.close()
        clock.advance(10_000)
    await check_held_for(path, clock, LEFT_MS - 10_000)


async def test_a_jump_without_leases_holds_nothing(path: Path, clock: ManualClock) -> None:
    """LEASE-17: a fresh file, and one whose locks were free."""
    clock.is_synchronised = False
    file = await opened(path, clock)
    assert file.locks.takeover_hold() is None
    await acquire(file, "me")
    await run_commands(file.locks, (LOCK, Release(digest("me"))))
    await file.close()
    clock.jump(60_000)
    clock.reboot()
    file = await opened(path, clock)
    assert file.locks.takeover_hold() is None
    assert isinstance(await acquire(file, "other"), Granted)
    await file.close()


async def test_a_program_that_only_reads_the_file_changes_nothing(path: Path, clock: ManualClock) -> None:
    """LEASE-17, KEEP-1: the hold begins with the server that serves, not with a copy of the file."""
    await lease_of(path, clock)
    clock.is_synchronised = False
    clock.jump(60_000)
    clock.reboot()

    def row() -> object:
        connection = sqlite3.connect(path)
        found = connection.execute("SELECT * FROM newest_instant").fetchall()
        connection.close()
        return found

    before = row()
    file = await opened(path, clock)
    assert await file.snapshot.newest_ms() == clock.now_ms()
    assert [entry async for page in file.snapshot.pages() for entry in page] == []
    await file.close()
    assert row() == before


async def test_a_file_of_the_first_schema_opens_and_its_leases_are_held(
    path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LEASE-17: an upgrade restarts the server, and how long that took is not known."""
    first = migrations()[:1]
    connection = sqlite3.connect(path)
    connection.executescript(first[0][1] + f"PRAGMA application_id = {0x564C434B}; PRAGMA user_version = 1;")
    expires_at_ms = START_MS + TTL_SECONDS * 1_000
    connection.execute(
        "INSERT INTO lock (project_id, key, fencing_token, owner_digest, expires_at_ms, deadline_ms, acquired_at_ms, "
        "renewed_at_ms, ttl_seconds) VALUES (?, ?, 7, ?, ?, ?, ?, ?, ?)",
        (*LOCK, digest("me"), expires_at_ms, expires_at_ms, START_MS, START_MS, TTL_SECONDS),
    )
    connection.execute("UPDATE newest_instant SET now_ms = ?", (START_MS,))
    connection.commit()
    connection.close()
    clock.advance(20_000)
    await check_held_for(path, clock, LEFT_MS)


def _another_boot(clock: ManualClock) -> None:
    clock.is_synchronised = False
    clock.reboot()
    clock.jump(3_600_000)


@pytest.mark.parametrize(
    ("event", "left_ms"),
    [(lambda _clock: None, LEFT_MS), (lambda clock: clock.jump(3_600_000), LEFT_MS), (_another_boot, LEFT_MS)],
    ids=["the same machine", "its date was set", "another machine"],
)
async def test_a_restored_lease_keeps_what_it_had_left(
    path: Path, tmp_path: Path, clock: ManualClock, event: Callable[[ManualClock], None], left_ms: int
) -> None:
    """KEEP-8, LEASE-17: a restored file on another machine is treated as one after a reboot."""
    granted = await lease_of(path, clock)
    file = await opened(path, clock)
    backup = await file.backups.take()
    (tmp_path / "backup").write_bytes(backup.read(0, backup.size_bytes))
    backup.close()
    await file.close()
    event(clock)
    target = tmp_path / "restored.db"
    done = restore(
        tmp_path / "backup", target, clock, hold_seconds=lambda _: 0, sleep=lambda _: None, report=lambda _: None
    )
    file = await opened(target, clock)  # waits for the instant from which it may serve
    (state,) = await run_commands(file.locks, (LOCK, Read()))
    assert isinstance(state, State)
    assert isinstance(state.lease, Held)
    await file.close()
    waited_ms = 0 if event is _another_boot else done.serves_from_ms - START_MS
    assert (await check_held_for(target, clock, left_ms - waited_ms)).fencing_token > granted.fencing_token
