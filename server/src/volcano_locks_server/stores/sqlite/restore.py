"""Replaces a store's file with a backup, without breaking promises that were made since the backup.

A backup knows nothing of later events. Four things could go wrong:

- *A repeated fencing token.* Tokens are at least the clock's milliseconds, and exceed them only if one lock changes
  hands more than once a millisecond. So the restored file is marked as written AHEAD_MS from now, which is later than
  every token granted, and a server waits for that instant before it serves (LEASE-3, LEASE-1). Tokens further ahead are
  copied from the replaced file, if it can be read.
- *Two holders.* The backup lacks leases that were granted or renewed after it, and their holders may rely on them until
  the TTL has passed. So the file is replaced, and served, only after `hold_seconds`. Longer leases are not covered; the
  fencing token protects from them.
- *The clock.* It must have reached the newest instant in either file, else nothing is restored. Within one boot of the
  machine it continues the time of the replaced file, or of the backup. Time since the backup that is not known to have
  passed ends no lease of the backup (LEASE-17).
- *A revoked service key.* What the replaced file knows of deleted keys and replaced secrets is carried over.

Not covered: a file that cannot be read any longer, if it had tokens more than AHEAD_MS ahead (thousands of grants of
one lock within seconds) or if the clock is behind its newest instant.
"""

import os
import shutil
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import apsw
from msgspec.structs import replace

from ...ports.clock import Clock, mark_of
from ...rules.clock_history import ClockMark, unproven_ms
from ...rules.errors import StoreUnavailableError
from ..errors import refuse_clock_far_behind
from .backup import BackupContents, inspect_backup, remove
from .carried_keys import KeyHistory, apply_history, read_history
from .connection import closed_after, open_connection, run_in_transaction
from .faults import file_fault, store_errors
from .file_clock import BEHIND_MS_MAX, continued_ahead_ms, last_free_from_ms, read_clock, write_clock
from .file_lock import FileLock, marker_path, sync

AHEAD_MS: Final = BEHIND_MS_MAX  # no longer than a server waits at its start

_AHEAD: Final = "SELECT project_id, key, fencing_token FROM lock WHERE fencing_token > ?"
# A lease in the backup is over if its lock has changed hands since: its token is not the latest.
_RAISE: Final = (
    "INSERT INTO lock (project_id, key, fencing_token, freed_at_ms, retired_digests) VALUES (?, ?, ?, ?, x'') "
    "ON CONFLICT (project_id, key) DO UPDATE SET fencing_token = excluded.fencing_token, "
    "freed_at_ms = excluded.freed_at_ms, retired_digests = coalesce(retired_digests, owner_digest), "
    "owner_digest = NULL, expires_at_ms = NULL, deadline_ms = NULL, acquired_at_ms = NULL, renewed_at_ms = NULL, "
    "ttl_seconds = NULL, holder = NULL WHERE excluded.fencing_token > lock.fencing_token"
)


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """What was restored, where the replaced file is, and when a server may serve it.

    `keys_revoked` and `secrets_replaced` count the service keys of the backup that did not come back as they were; None
    if the replaced file is lost and nothing is known of them.
    """

    contents: BackupContents
    kept_aside: Path | None
    held_seconds: int
    serves_from_ms: int
    keys_revoked: int | None
    secrets_replaced: int | None


class _PreviousFile(NamedTuple):
    """The replaced file: its newest instant, how far its tokens lead, the longest TTL of its leases, tokens ahead of
    that instant as (project id, key, token), and its service keys; None if it cannot be read or there is none.
    """

    mark: ClockMark = ClockMark()
    token_lead_ms: int = 0
    longest_ttl_seconds: int = 0
    tokens: Sequence[Any] = ()
    keys: KeyHistory | None = None


class _RestoreClock(NamedTuple):
    """The time that the restored file continues from."""

    clock: Clock
    ahead_ms: int

    @classmethod
    def after(cls, clock: Clock, *marks: ClockMark) -> Self:
        """The latest time that continues a mark of this boot; that of `clock` if there is none."""
        continued = (continued_ahead_ms(mark, clock) for mark in marks)
        return cls(clock, max((ahead_ms for ahead_ms in continued if ahead_ms is not None), default=0))

    def now_ms(self) -> int:
        return self.clock.now_ms() + self.ahead_ms

    def mark_at(self, at_ms: int) -> ClockMark:
        """The mark of an instant that is now or later."""
        now_ms = self.now_ms()
        return mark_of(self.clock, now_ms).later(at_ms - now_ms)


def restore(
    backup: Path,
    target: Path,
    clock: Clock,
    *,
    hold_seconds: Callable[[int], int],
    sleep: Callable[[float], None],
    report: Callable[[str], None],
) -> RestoreResult:
    """Replace `target`, which no server may have open, with a copy of `backup`; see the module's docstring.

    `hold_seconds` returns how long to hold, given the longest TTL in both files; it may raise to stop. `report`
    receives messages for the user. Raises StoreUnavailableError, whose message says what to do, with `target`
    unchanged.
    """
    _require_backup(backup)
    file_lock = FileLock.acquire_path(target)
    prepared = file_lock.path.with_name(file_lock.path.name + ".restoring")
    try:
        _refuse_same(backup, file_lock.path)
        remove(prepared)
        _copy(backup, prepared)
        contents = inspect_backup(prepared)
        previous = _read_previous(file_lock.path, report)
        newest_ms = max(contents.newest_ms, previous.mark.now_ms)
        time = _RestoreClock.after(clock, previous.mark, contents.mark)
        _wait_for_clock(newest_ms, time, sleep)
        held_seconds = hold_seconds(max(contents.longest_ttl_seconds, previous.longest_ttl_seconds))
        if held_seconds:
            report(f"waiting {held_seconds} s for leases that the backup does not contain to expire")
            sleep(held_seconds)
        serves_from_ms = max(time.now_ms(), newest_ms) + AHEAD_MS
        is_newer = previous.mark.now_ms >= contents.newest_ms
        revoked, replaced = _prepare(time.mark_at(serves_from_ms), prepared, previous, is_newer=is_newer)
        kept_aside = _swap(prepared, file_lock.path)
        file_lock.note_not_served()
        return RestoreResult(contents, kept_aside, held_seconds, serves_from_ms, revoked, replaced)
    except OSError as error:
        raise file_fault(error, file_lock.path) from error
    finally:
        with suppress(OSError):
            remove(prepared)
        file_lock.release()


def _require_backup(backup: Path) -> None:
    try:
        found = backup.stat()
    except OSError as error:
        raise file_fault(error, backup) from error
    if not stat.S_ISREG(found.st_mode):
        raise StoreUnavailableError("not_a_file", f"{backup} is not a regular file")
    if backup.with_name(backup.name + "-wal").exists():
        raise StoreUnavailableError(
            "not_a_backup",
            f"{backup} has a log beside it ({backup.name}-wal), so it is a store's file and not a backup: make "
            "a backup of it with volcano-locks backup --store",
        )


def _refuse_same(backup: Path, target: Path) -> None:
    if target.exists() and backup.samefile(target):
        raise StoreUnavailableError("not_a_backup", f"{backup} is the store's file itself")


def _copy(source: Path, target: Path) -> None:
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with source.open("rb") as reading, os.fdopen(descriptor, "wb") as writing:
        shutil.copyfileobj(reading, writing)


def _read_previous(path: Path, report: Callable[[str], None]) -> _PreviousFile:
    """The previous file's newest instant and tokens.

    It reads a copy, because SQLite would merge the log into the file, or delete the log of a damaged one.
    """
    log = path.with_name(path.name + "-wal")
    if not path.exists() or path.stat().st_size == 0 == (log.stat().st_size if log.exists() else 0):
        return _PreviousFile()
    inspected = path.with_name(path.name + ".looked-at")
    remove(inspected)
    try:
        _copy(path, inspected)
        if log.exists():
            _copy(log, inspected.with_name(inspected.name + "-wal"))
        with closed_after(apsw.Connection(str(inspected), flags=apsw.SQLITE_OPEN_READWRITE)) as connection:
            connection.execute("PRAGMA locking_mode = EXCLUSIVE").fetchall()
            if connection.execute("PRAGMA quick_check").fetchall() != [("ok",)]:
                raise apsw.CorruptError
            mark, history = read_clock(connection)
            longest_ttl_seconds = int(connection.execute("SELECT coalesce(max(ttl_seconds), 0) FROM lock").get)
            ahead = connection.execute(_AHEAD, (mark.now_ms + history.token_lead_ms,)).fetchall()
            return _PreviousFile(mark, history.token_lead_ms, longest_ttl_seconds, ahead, read_history(connection))
    except apsw.Error:
        report(f"{path} cannot be read: its newest instant, fencing tokens and revoked keys are not copied")
        return _PreviousFile()
    finally:
        remove(inspected)


def _wait_for_clock(newest_ms: int, clock: _RestoreClock, sleep: Callable[[float], None]) -> None:
    while (behind_ms := newest_ms - (now_ms := clock.now_ms())) > 0:
        refuse_clock_far_behind("the machine's clock", now_ms, newest_ms, BEHIND_MS_MAX)
        sleep(behind_ms / 1_000)


def _prepare(
    serves_from: ClockMark, prepared: Path, previous: _PreviousFile, *, is_newer: bool
) -> tuple[int | None, int | None]:
    """Mark the file as written at `serves_from`, and carry over what the previous file knows better."""
    with store_errors(), closed_after(open_connection(prepared)) as connection:

        def write() -> tuple[int | None, int | None]:
            mark, history = read_clock(connection)
            by_ms = unproven_ms(mark.now_ms, mark, serves_from)
            history = history.after_jump(serves_from.now_ms, by_ms, last_free_from_ms(connection))
            token_lead_ms = max(history.token_lead_ms, previous.token_lead_ms)
            write_clock(connection, serves_from, replace(history, token_lead_ms=token_lead_ms))
            first_ms = serves_from.now_ms
            ahead = [(*lock, token, first_ms) for *lock, token in previous.tokens if token >= first_ms + token_lead_ms]
            connection.executemany(_RAISE, ahead).fetchall()
            connection.execute("DELETE FROM dashboard_session")  # some may have been signed out since the backup
            return (
                (None, None) if previous.keys is None else apply_history(connection, previous.keys, is_newer=is_newer)
            )

        carried_over = run_in_transaction(connection, write)
        connection.execute("PRAGMA journal_mode = DELETE").fetchall()
    sync(prepared)
    return carried_over


def _swap(prepared: Path, path: Path) -> Path | None:
    """Replace the file. A crash in between leaves a file with two names, which no server opens."""
    at = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    kept_aside = path.with_name(f"{path.name}.replaced-{at}")
    log = path.with_name(path.name + "-wal")
    existed = path.exists()
    if existed:
        kept_aside.hardlink_to(path)
    if log.exists():  # it belongs to the old file and would corrupt the new one
        log.rename(kept_aside.with_name(kept_aside.name + "-wal"))
    sync(path.parent)
    prepared.replace(path)
    marker_path(path).unlink(missing_ok=True)
    sync(path.parent)
    return kept_aside if existed else None
