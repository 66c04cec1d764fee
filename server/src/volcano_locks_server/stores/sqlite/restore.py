"""Putting a backup in the place of a store's file, so that what was promised meanwhile is not broken.

A backup knows nothing of what came after it. Three things could go wrong, and this is what is done about each:

- *A fencing token twice.* Tokens are at least the clock's milliseconds, and exceed them only where one lock changes
  hands more than once a millisecond. So the restored file is told that it was written AHEAD_MS from now, which is
  later than every token given, and a server waits for that instant before it serves (LEASE-3, LEASE-1). Tokens that
  ran farther ahead are taken over from the file that is replaced, if that can be read.
- *Two holders.* A lease that was granted or renewed after the backup is unknown to it, and its holder may believe in
  it until its TTL has passed. Nothing is put in place, and therefore nothing served, before `hold_seconds` are over.
  Longer leases than that are out of reach; what protects from them is the fencing token.
- *The clock.* It must have come to the newest instant that either file knows, else nothing is restored.

Not promised: tokens that ran more than AHEAD_MS ahead (thousands of grants of one lock within seconds, more than one
each millisecond) of a file that cannot be read any more; and a clock that is behind what the lost file had seen.
"""

import os
import shutil
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import apsw

from ...ports.clock import Clock
from ...rules.errors import StoreUnavailableError
from ..errors import instant
from .backup import Contents, examined, remove, sync
from .connection import open_connection, transaction
from .faults import file_fault, store_fault
from .file_lock import Claim
from .store import CLOCK_WAIT_MAX_MS

AHEAD_MS: Final = CLOCK_WAIT_MAX_MS  # no farther than a server waits for at its start

_AHEAD: Final = "SELECT project_id, key, fencing_token FROM lock WHERE fencing_token > ?"
# A lease of the backup whose lock has changed hands since is over: its token is not the last one.
_RAISE: Final = (
    "INSERT INTO lock (project_id, key, fencing_token, freed_at_ms, retired_digests) VALUES (?, ?, ?, ?, x'') "
    "ON CONFLICT (project_id, key) DO UPDATE SET fencing_token = excluded.fencing_token, "
    "freed_at_ms = excluded.freed_at_ms, retired_digests = coalesce(retired_digests, owner_digest), "
    "owner_digest = NULL, expires_at_ms = NULL, deadline_ms = NULL, acquired_at_ms = NULL, renewed_at_ms = NULL, "
    "ttl_seconds = NULL, holder = NULL WHERE excluded.fencing_token > lock.fencing_token"
)


@dataclass(frozen=True, slots=True)
class Restored:
    """What is in place now, where the file that was there before is kept, and from when on a server will serve."""

    contents: Contents
    kept_aside: Path | None
    held_seconds: int
    serves_from_ms: int


class _Known(NamedTuple):
    """Of a file: its newest instant, its leases' longest TTL, and the tokens ahead of it: project id, key and token."""

    newest_ms: int
    longest_ttl_seconds: int
    tokens: list[Any]


def restore(
    backup: Path,
    target: Path,
    clock: Clock,
    *,
    hold_seconds: Callable[[int], int],
    sleep: Callable[[float], None],
    tell: Callable[[str], None],
) -> Restored:
    """Put a copy of `backup` in the place of `target`, which nobody may serve meanwhile; see the module's head.

    `hold_seconds` says how long to hold, for the longest TTL of any lease in both files; it may raise to end it all.
    `tell` hears of what a person should know while it goes on. Raises StoreUnavailableError, whose message says what
    to do, with `target` as it was.
    """
    _refuse_unfinished(backup)
    claim = Claim.take_name(target)
    prepared = claim.path.with_name(claim.path.name + ".restoring")
    try:
        _refuse_same(backup, claim.path)
        remove(prepared)
        _copy(backup, prepared)
        contents = examined(prepared)
        known = _known_of(claim.path, tell)
        newest_ms = max(contents.newest_ms, known.newest_ms)
        _wait_for(newest_ms, clock, sleep)
        held_seconds = hold_seconds(max(contents.longest_ttl_seconds, known.longest_ttl_seconds))
        if held_seconds:
            tell(f"waiting {held_seconds} s, so that leases which the backup does not know can end")
            sleep(held_seconds)
        serves_from_ms = max(clock.now_ms(), newest_ms) + AHEAD_MS
        _bring_up_to(serves_from_ms, prepared, known.tokens)
        return Restored(contents, _swap(prepared, claim.path), held_seconds, serves_from_ms)
    except OSError as error:
        raise file_fault(error, claim.path) from error
    finally:
        with suppress(OSError):
            remove(prepared)
        claim.drop()


def _refuse_unfinished(backup: Path) -> None:
    try:
        found = backup.stat()
    except OSError as error:
        raise file_fault(error, backup) from error
    if not stat.S_ISREG(found.st_mode):
        raise StoreUnavailableError("not_a_file", f"{backup} is not a plain file")
    if backup.with_name(backup.name + "-wal").exists():
        raise StoreUnavailableError(
            "not_a_backup",
            f"{backup} has a log beside it ({backup.name}-wal), so it is the file of a store and not a backup: make "
            "a backup of it with volcano-locks backup --store",
        )


def _refuse_same(backup: Path, target: Path) -> None:
    if target.exists() and backup.samefile(target):
        raise StoreUnavailableError("not_a_backup", f"{backup} is the store's file itself")


def _copy(source: Path, target: Path) -> None:
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with source.open("rb") as reading, os.fdopen(descriptor, "wb") as writing:
        shutil.copyfileobj(reading, writing)


def _known_of(path: Path, tell: Callable[[str], None]) -> _Known:
    """What the file that will be replaced knew of time and tokens.

    A copy of it is read: SQLite would put the log into the file, or delete the log of one that is damaged.
    """
    log = path.with_name(path.name + "-wal")
    if not path.exists() or path.stat().st_size == 0 == (log.stat().st_size if log.exists() else 0):
        return _Known(0, 0, [])
    looked_at = path.with_name(path.name + ".looked-at")
    remove(looked_at)
    try:
        _copy(path, looked_at)
        if log.exists():
            _copy(log, looked_at.with_name(looked_at.name + "-wal"))
        connection = apsw.Connection(str(looked_at), flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            connection.execute("PRAGMA locking_mode = EXCLUSIVE").fetchall()
            newest_ms = int(connection.execute("SELECT now_ms FROM newest_instant").get)
            longest_ttl_seconds = int(connection.execute("SELECT coalesce(max(ttl_seconds), 0) FROM lock").get)
            return _Known(newest_ms, longest_ttl_seconds, connection.execute(_AHEAD, (newest_ms,)).fetchall())
        finally:
            connection.close(True)
    except apsw.Error:
        tell(f"{path} cannot be read: what it knew of the time and of fencing tokens is not taken over")
        return _Known(0, 0, [])
    finally:
        remove(looked_at)


def _wait_for(newest_ms: int, clock: Clock, sleep: Callable[[float], None]) -> None:
    while (behind_ms := newest_ms - clock.now_ms()) > 0:
        if behind_ms > CLOCK_WAIT_MAX_MS:
            raise StoreUnavailableError(
                "clock_behind",
                f"the clock reads {instant(clock.now_ms())} but the store was written at {instant(newest_ms)}: set "
                "the machine's clock right; with a clock that is behind, fencing tokens would be given twice",
            )
        sleep(behind_ms / 1_000)


def _bring_up_to(newest_ms: int, prepared: Path, tokens: list[Any]) -> None:
    try:
        connection = open_connection(prepared)
        try:

            def write() -> None:
                connection.execute("UPDATE newest_instant SET now_ms = ?", (newest_ms,))
                ahead = [(*lock, token, newest_ms) for *lock, token in tokens if token >= newest_ms]
                connection.executemany(_RAISE, ahead).fetchall()

            transaction(connection, write)
            connection.execute("PRAGMA journal_mode = DELETE").fetchall()
        finally:
            connection.close(True)
    except apsw.Error as error:
        raise store_fault(error) from error
    sync(prepared)


def _swap(prepared: Path, path: Path) -> Path | None:
    """Put the prepared file in place. A crash in between leaves a file with two names, which no server opens."""
    at = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    kept_aside = path.with_name(f"{path.name}.replaced-{at}")
    log = path.with_name(path.name + "-wal")
    was_there = path.exists()
    if was_there:
        kept_aside.hardlink_to(path)
    if log.exists():  # of a file that could not be read, or is gone: to the new one it would be poison
        log.rename(kept_aside.with_name(kept_aside.name + "-wal"))
    sync(path.parent)
    prepared.replace(path)
    sync(path.parent)
    return kept_aside if was_there else None
