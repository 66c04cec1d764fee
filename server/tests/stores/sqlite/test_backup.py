"""A backup taken during writes is consistent, and restoring an old one breaks no promise (KEEP-5 to KEEP-8)."""

import asyncio
import sqlite3
import tempfile
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from volcano_locks_server.ports.lock_store import RecordKey
from volcano_locks_server.rules.errors import LockError, StoreUnavailableError
from volcano_locks_server.rules.lease import (
    Acquire,
    Command,
    ForceRelease,
    Free,
    Granted,
    Outcome,
    Refused,
    Release,
    Renew,
)
from volcano_locks_server.rules.lease import Read as ReadState
from volcano_locks_server.stores.sqlite import SqliteFile
from volcano_locks_server.stores.sqlite import backup as backup_module
from volcano_locks_server.stores.sqlite.backup import inspect_backup
from volcano_locks_server.stores.sqlite.restore import AHEAD_MS, RestoreResult, restore
from volcano_locks_server.testing import START_MS, ManualClock

from ..store_actions import digest, held, key, read_records, run_commands, write_records

KEYS = [key("a"), key("b")]


def names_in(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.iterdir())


async def opened(path: Path, clock: ManualClock) -> SqliteFile:
    async def wait(seconds: float) -> None:
        clock.advance(round(seconds * 1_000))

    return await SqliteFile.open(path, clock, sleep=wait)


async def backed_up(file: SqliteFile, to: Path) -> None:
    backup = await file.backups.take()
    to.write_bytes(backup.read(0, backup.size_bytes))
    backup.close()


def restored(
    backup: Path, path: Path, clock: ManualClock, *, hold_seconds: int = 0, reports: list[str] | None = None
) -> RestoreResult:
    return restore(
        backup,
        path,
        clock,
        hold_seconds=lambda _longest: hold_seconds,
        sleep=lambda seconds: clock.advance(round(seconds * 1_000)) and None,
        report=(reports if reports is not None else []).append,
    )


# --- taking one -------------------------------------------------------------------------------------------


async def test_a_backup_is_consistent_during_writes(path: Path, tmp_path: Path, clock: ManualClock) -> None:
    """KEEP-5: two locks are always written together, and no backup separates them."""
    file = await opened(path, clock)
    await write_records(
        file.locks, *((key(f"fill-{number}"), Free(number, 1, (digest("x"),) * 16)) for number in range(20_000))
    )
    pair = [key("fill-3"), key("fill-19996")]  # far apart in the file
    backups: list[Path] = []
    written = 0

    async def write() -> None:
        nonlocal written
        while len(backups) < 3:
            written += 1
            await write_records(file.locks, *((one, Free(1_000_000 + written, 1)) for one in pair))

    writing = asyncio.create_task(write())
    for number in range(3):
        before = written
        to = tmp_path / f"{number}.backup"
        await backed_up(file, to)
        backups.append(to)
        assert written > before + 2  # lock traffic continued
    await writing
    await file.close()
    for to in backups:
        assert inspect_backup(to).locks == 20_000
        sql = "SELECT DISTINCT fencing_token FROM lock WHERE key IN ('fill-3', 'fill-19996')"
        assert len(sqlite3.connect(to).execute(sql).fetchall()) == 1


async def test_a_backup_leaves_no_file_behind(path: Path, clock: ManualClock) -> None:
    file = await opened(path, clock)
    before = names_in(path.parent)
    first, second = await asyncio.gather(file.backups.take(), file.backups.take())
    assert names_in(path.parent) == before
    assert first.size_bytes == second.size_bytes > 0
    first.close()
    second.close()
    await file.close()


async def test_a_backup_is_refused_if_the_disk_lacks_space(
    path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KEEP-5: a backup must not stop the service by filling its disk."""
    file = await opened(path, clock)
    monkeypatch.setattr(backup_module, "FREE_BYTES_MIN", 2**62)
    with pytest.raises(LockError, match="free some space"):
        await file.backups.take()
    await run_commands(file.locks, (KEYS[0], Acquire(digest("me"), 30)))
    await file.close()


async def test_closing_during_a_backup_leaves_no_part_of_it(
    path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KEEP-5."""
    monkeypatch.setattr(backup_module, "PAGES_PER_STEP", 1)
    file = await opened(path, clock)
    await write_records(
        file.locks, *((key(f"fill-{number}"), Free(number, 1, (digest("x"),) * 16)) for number in range(2_000))
    )
    before = names_in(path.parent)
    taking = asyncio.create_task(file.backups.take())
    while names_in(path.parent) == before:
        await asyncio.sleep(0)
    await file.close()
    with pytest.raises(StoreUnavailableError) as caught:
        await taking
    assert caught.value.cause_code == "stopping"
    assert not [name for name in names_in(path.parent) if "backup" in name]


# --- restoring one ----------------------------------------------------------------------------------------


class History:
    """What was granted of each lock, over all restores, checked against the fencing promise."""

    def __init__(self) -> None:
        self.highest: dict[RecordKey, int] = {}
        self.owner_of: dict[tuple[RecordKey, int], bytes] = {}
        self._numbers = count()

    def new_owner(self) -> bytes:
        return digest(f"new-{next(self._numbers)}")

    def check(self, one: RecordKey, command: Command, outcome: Outcome) -> None:
        if not isinstance(outcome, Granted):
            return
        assert isinstance(command, Acquire | Renew)
        if outcome.how in ("acquired", "taken_over"):
            assert outcome.fencing_token > self.highest.get(one, 0)
            self.highest[one] = outcome.fencing_token
            self.owner_of[one, outcome.fencing_token] = command.owner_digest
        assert self.owner_of[one, outcome.fencing_token] == command.owner_digest


owners = st.sampled_from([digest(name) for name in "pqr"])
steps = st.one_of(
    st.tuples(st.sampled_from(KEYS), st.builds(Acquire, owners, st.sampled_from([5, 30, 7_776_000]))),
    st.tuples(st.sampled_from(KEYS), st.builds(Renew, owners, st.sampled_from([5, 30]))),
    st.tuples(st.sampled_from(KEYS), st.builds(Release, owners)),
    st.tuples(st.sampled_from(KEYS), st.just(ForceRelease())),
    st.tuples(st.just("burst"), st.sampled_from([1, 40, 300])),
    st.tuples(st.just("pass"), st.sampled_from([1, 7_000, 200_000_000])),
    st.just(("purge", 0)),
)
step_lists = st.lists(steps, max_size=9)


async def run_steps(file: SqliteFile, clock: ManualClock, steps: list[tuple[object, object]], history: History) -> None:
    for what, how in steps:
        if what == "pass":
            clock.advance(how)  # type: ignore[arg-type]
        elif what == "purge":
            await file.locks.purge(limit=10)
        elif what == "burst":
            for one in KEYS:
                commands = [(ForceRelease(), Acquire(history.new_owner(), 30)) for _ in range(how)]  # type: ignore[call-overload]
                await _run_and_check(file, one, [command for pair in commands for command in pair], history)
        else:
            await _run_and_check(file, what, [how], history)  # type: ignore[arg-type,list-item]


async def _run_and_check(file: SqliteFile, one: RecordKey, commands: list[Command], history: History) -> None:
    for command, outcome in zip(
        commands, await run_commands(file.locks, *((one, each) for each in commands)), strict=True
    ):
        history.check(one, command, outcome)


@given(
    before=step_lists,
    after=step_lists,
    later=step_lists,
    is_lost=st.booleans(),
    away_ms=st.sampled_from([0, 1, 90_000]),
)
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_fencing_token_repeats_after_a_restore(
    before: list[tuple[object, object]],
    after: list[tuple[object, object]],
    later: list[tuple[object, object]],
    is_lost: bool,
    away_ms: int,
) -> None:
    """KEEP-7: for any commands before the backup, between it and the restore, and afterwards, bursts included."""

    async def live(folder: Path) -> None:
        clock, history = ManualClock(), History()
        path, backup = folder / "locks.db", folder / "backup"
        file = await opened(path, clock)
        await run_steps(file, clock, before, history)
        await backed_up(file, backup)
        await run_steps(file, clock, after, history)
        await file.close()
        clock.advance(away_ms)
        if is_lost:
            path.unlink()
        restored(backup, path, clock)
        again = await opened(path, clock)
        await run_steps(again, clock, [*later, ("burst", 1)], history)
        await again.close()

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(live(Path(folder)))


async def test_tokens_far_ahead_are_copied_from_the_replaced_file(
    path: Path, tmp_path: Path, clock: ManualClock
) -> None:
    """KEEP-7: tokens further ahead of the clock than the restore waits; one lock in the backup, one not, one held in
    it.
    """
    far = START_MS + 100 * AHEAD_MS
    file = await opened(path, clock)
    old_lease = held("one", START_MS, ttl_seconds=86_400)
    await write_records(file.locks, (key("previous"), Free(5, 1, (digest("gone"),))), (key("held"), old_lease))
    await backed_up(file, tmp_path / "backup")
    await write_records(file.locks, *((key(name), Free(far, 1)) for name in ("previous", "new", "held")))
    await file.close()
    restored(tmp_path / "backup", path, clock)
    again = await opened(path, clock)
    for name in ("previous", "new", "held"):
        (granted,) = await run_commands(again.locks, (key(name), Acquire(digest("next"), 30)))
        assert isinstance(granted, Granted)
        assert granted.fencing_token == far + 1
    (renewed,) = await run_commands(again.locks, (key("held"), Renew(digest("one"), 30)))
    assert isinstance(renewed, Refused)
    await again.close()


async def test_a_restored_store_keeps_the_leases_of_the_backup(path: Path, tmp_path: Path, clock: ManualClock) -> None:
    """KEEP-6, KEEP-8."""
    file = await opened(path, clock)
    lease = held("one", START_MS, ttl_seconds=600)
    await write_records(file.locks, (KEYS[0], lease), (KEYS[1], Free(7, 1, (digest("gone"),))))
    await backed_up(file, tmp_path / "backup")
    await write_records(file.locks, (KEYS[0], Free(START_MS, START_MS)), (key("c"), lease))
    await file.close()
    done = restored(tmp_path / "backup", path, clock)
    assert done.contents.locks == 2
    assert done.serves_from_ms == START_MS + AHEAD_MS
    again = await opened(path, clock)
    assert clock.now_ms() == done.serves_from_ms
    assert await read_records(again.locks, *KEYS, key("c")) == [lease, Free(7, 1, (digest("gone"),)), None]
    (renewed,) = await run_commands(again.locks, (KEYS[0], Renew(digest("one"), 30)))
    assert isinstance(renewed, Granted)
    assert renewed.fencing_token == lease.fencing_token
    await again.close()


async def test_the_file_is_replaced_only_after_the_hold(path: Path, tmp_path: Path, clock: ManualClock) -> None:
    """KEEP-8: no lease is granted while a holder may rely on a lease that the backup lacks."""
    file = await opened(path, clock)
    await backed_up(file, tmp_path / "backup")
    (unknown,) = await run_commands(file.locks, (KEYS[0], Acquire(digest("me"), 30)))
    await file.close()
    assert isinstance(unknown, Granted)
    inode = path.stat().st_ino
    seen: list[bool] = []

    def look(seconds: float) -> None:
        seen.append(path.stat().st_ino == inode)
        with pytest.raises(StoreUnavailableError, match="in use"):
            asyncio.run(_open_and_close(path, clock))
        clock.advance(round(seconds * 1_000))

    await asyncio.to_thread(
        lambda: restore(
            tmp_path / "backup", path, clock, hold_seconds=lambda _longest: 31, sleep=look, report=lambda _text: None
        )
    )
    assert seen == [True]
    assert path.stat().st_ino != inode
    assert clock.now_ms() >= unknown.expires_at_ms + 1_000
    again = await opened(path, clock)
    (granted,) = await run_commands(again.locks, (KEYS[0], Acquire(digest("other"), 30)))
    assert isinstance(granted, Granted)
    assert granted.fencing_token > unknown.fencing_token
    await again.close()


async def _open_and_close(path: Path, clock: ManualClock) -> None:
    await (await opened(path, clock)).close()


async def test_the_replaced_file_is_kept_with_its_log(path: Path, tmp_path: Path, clock: ManualClock) -> None:
    """KEEP-6: also a file that cannot be read; its log would corrupt the new file."""
    file = await opened(path, clock)
    await backed_up(file, tmp_path / "backup")
    await file.close()
    path.write_bytes(b"rubbish" * 1_000)
    log = path.with_name(path.name + "-wal")
    log.write_bytes(b"more rubbish")
    reports: list[str] = []
    done = restored(tmp_path / "backup", path, clock, reports=reports)
    assert done.kept_aside is not None
    assert done.kept_aside.read_bytes() == b"rubbish" * 1_000
    assert done.kept_aside.with_name(done.kept_aside.name + "-wal").read_bytes() == b"more rubbish"
    assert not log.exists()
    assert "cannot be read" in reports[0]
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.stat().st_nlink == 1
    await _open_and_close(path, clock)


def _rubbish(backup: Path) -> None:
    backup.write_bytes(b"not a database, but long enough to be looked at" * 100)


def _foreign(backup: Path) -> None:
    backup.unlink()
    connection = sqlite3.connect(backup)
    connection.execute("CREATE TABLE t (x)")
    connection.close()


def _torn(backup: Path) -> None:
    whole = backup.read_bytes()
    backup.write_bytes(whole[: len(whole) // 2])


def _with_log(backup: Path) -> None:
    backup.with_name(backup.name + "-wal").write_bytes(b"x")


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (_rubbish, "not a SQLite database"),
        (_foreign, "another program"),
        (_torn, "damaged"),
        (_with_log, "volcano-locks backup --store"),
        (Path.unlink, "cannot open"),
    ],
)
async def test_an_invalid_backup_replaces_nothing(
    path: Path, tmp_path: Path, clock: ManualClock, spoil: Callable[[Path], None], reason: str
) -> None:
    """KEEP-6."""
    file = await opened(path, clock)
    await write_records(file.locks, (KEYS[0], Free(7, 1)))
    await backed_up(file, tmp_path / "backup")
    await file.close()
    spoil(tmp_path / "backup")
    names = names_in(path.parent)
    with pytest.raises(StoreUnavailableError, match=reason):
        restored(tmp_path / "backup", path, clock)
    assert names_in(path.parent) == names
    again = await opened(path, clock)
    assert await read_records(again.locks, KEYS[0]) == [Free(7, 1)]
    await again.close()


async def test_a_file_in_use_is_not_replaced(path: Path, tmp_path: Path, clock: ManualClock) -> None:
    """KEEP-6."""
    file = await opened(path, clock)
    await backed_up(file, tmp_path / "backup")
    with pytest.raises(StoreUnavailableError, match="in use"):
        restored(tmp_path / "backup", path, clock)
    await run_commands(file.locks, (KEYS[0], ReadState()))
    await file.close()


@pytest.mark.parametrize("behind_ms", [AHEAD_MS, AHEAD_MS + 1])
async def test_a_clock_behind_the_newest_instant_is_awaited_or_refused(
    path: Path, tmp_path: Path, clock: ManualClock, behind_ms: int
) -> None:
    """KEEP-7: with such a clock a token would repeat."""
    file = await opened(path, clock)
    await backed_up(file, tmp_path / "backup")
    clock.advance(1_000_000)
    (granted,) = await run_commands(file.locks, (KEYS[0], Acquire(digest("me"), 5)))
    await file.close()
    assert isinstance(granted, Granted)
    slow = ManualClock(clock.now_ms() - behind_ms)
    if behind_ms > AHEAD_MS:
        with pytest.raises(StoreUnavailableError, match="set the machine's clock right"):
            restored(tmp_path / "backup", path, slow)
        return
    restored(tmp_path / "backup", path, slow)
    again = await opened(path, slow)
    (next_,) = await run_commands(again.locks, (KEYS[0], Acquire(digest("other"), 5)))
    assert isinstance(next_, Granted)
    assert next_.fencing_token > granted.fencing_token
    await again.close()


@pytest.mark.parametrize("in_the_backup", [True, False])
async def test_the_longest_ttl_is_taken_from_both_files(
    path: Path, tmp_path: Path, clock: ManualClock, in_the_backup: bool
) -> None:
    """KEEP-8: the default hold is the longest TTL."""
    seen: list[int] = []
    file = await opened(path, clock)
    await write_records(file.locks, (KEYS[0], held("a", START_MS, ttl_seconds=90 if in_the_backup else 9)))
    await backed_up(file, tmp_path / "backup")
    await write_records(file.locks, (KEYS[0], held("a", START_MS, ttl_seconds=9 if in_the_backup else 90)))
    await file.close()

    def hold(longest_ttl_seconds: int) -> int:
        seen.append(longest_ttl_seconds)
        return 0

    restore(tmp_path / "backup", path, clock, hold_seconds=hold, sleep=lambda _seconds: None, report=lambda _text: None)
    assert seen == [90]
