"""Back-ups of a SQLite file, and what one holds.

A backup is the database as it was at one instant, in a single file without a log. It is taken page by page over the
connection that serves, between the batches of others: SQLite itself carries what they change into the pages that
are copied already, so lock traffic goes on and the backup is of the instant at which its last page was copied.
(`VACUUM INTO` would be one statement, and everybody would wait for it.)

What a backup does not hold: what was committed after that instant. See `restore` for what that means.
"""

import asyncio
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import apsw

from ...rules.errors import LockError, StoreUnavailableError
from .connection import schema_version
from .faults import file_fault, store_fault
from .file_lock import Claim
from .writer import Writer

PAGES_PER_STEP: Final = 128  # 512 KiB: a batch of locks waits for one step at most
ROOM_KEPT_BYTES: Final = 64 * 1024 * 1024

T = TypeVar("T")


class Copying:
    """A backup being written to `target`, which is made anew, for this user alone. Call on the connection's thread."""

    def __init__(self, source: apsw.Connection, target: Path) -> None:
        remove(target)
        os.close(os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        self._path: Final = target
        self._connection: Final = apsw.Connection(str(target), flags=apsw.SQLITE_OPEN_READWRITE)
        for setting in ("locking_mode = EXCLUSIVE", "journal_mode = MEMORY", "synchronous = OFF"):
            self._connection.execute(f"PRAGMA {setting}").fetchall()
        self._backup: Final = self._connection.backup("main", source, "main")

    def step(self) -> bool:
        """Copy some more; whether that was all. Raises apsw.Error."""
        self._backup.step(PAGES_PER_STEP)
        return self._backup.done

    def finish(self) -> None:
        """Make it one file; it is not synced, for that would keep the thread from its work. Raises apsw.Error."""
        self._backup.finish()
        self._connection.execute("PRAGMA journal_mode = DELETE").fetchall()
        self._connection.close()

    def abandon(self) -> None:
        """Leave nothing behind."""
        self._backup.close(True)
        self._connection.close(True)
        remove(self._path)


class BackupFile:
    """A finished backup of a running server, in a file without a name: it is gone when it is closed."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        path.unlink()
        self.size_bytes: Final = os.fstat(self._descriptor).st_size

    def read(self, offset: int, count: int) -> bytes:
        """Up to `count` bytes from `offset` on. Raises OSError."""
        return os.pread(self._descriptor, count, offset)

    def close(self) -> None:
        """Free its room on the disk."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class SqliteBackups:
    """Takes back-ups of the file in use, one at a time. Made by `SqliteFile`."""

    def __init__(self, connection: apsw.Connection, writer: Writer, path: Path) -> None:
        self._connection: Final = connection
        self._writer: Final = writer
        self._path: Final = path
        self._one_at_a_time: Final = asyncio.Lock()

    async def take(self) -> BackupFile:
        """A backup of now. Raises LockError where the disk has no room for it, StoreUnavailableError."""
        async with self._one_at_a_time:
            _refuse_without_room(self._path)
            aside = self._path.with_name(self._path.name + ".backup-in-progress")
            copying = await self._run(partial(Copying, self._connection, aside))
            try:
                while not await self._writer.run(copying.step):
                    pass
                await self._run(copying.finish)
                return BackupFile(aside)
            except BaseException:
                with suppress(
                    StoreUnavailableError
                ):  # the file is being closed: then nobody has the copy open any more
                    await self._writer.run(copying.abandon)
                remove(aside)
                raise

    async def _run(self, work: Callable[[], T]) -> T:
        try:
            return await self._writer.run(work)
        except OSError as error:
            raise file_fault(error, self._path) from error


def back_up_stopped(path: Path, to: Path) -> None:
    """Back up a store that nobody serves, durably. StoreUnavailableError where it is served, or cannot be used.

    The file stays on its schema; what a crash left in its log is in the backup.
    """
    claim = Claim.take_name(path)
    try:
        source = apsw.Connection(str(claim.path), flags=apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_EXRESCODE)
        try:
            source.execute("PRAGMA locking_mode = EXCLUSIVE").fetchall()
            schema_version(source)
            copying = Copying(source, to)
            try:
                while not copying.step():
                    pass
                copying.finish()
                sync(to)
            except BaseException:
                copying.abandon()
                raise
        finally:
            source.close(True)
    except apsw.Error as error:
        raise store_fault(error) from error
    finally:
        claim.drop()


@dataclass(frozen=True, slots=True)
class Contents:
    """What a backup holds. `newest_ms` is when it was last written to, 0 for never."""

    newest_ms: int
    projects: int
    service_keys: int
    locks: int
    longest_ttl_seconds: int


def examined(path: Path) -> Contents:
    """What this backup holds, having looked at every page. StoreUnavailableError where it is none, or damaged."""
    try:
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            version = schema_version(connection)
            if connection.execute("PRAGMA quick_check").fetchall() != [("ok",)]:
                raise StoreUnavailableError("store_corrupt", "it is damaged")
            if version == 0:
                raise StoreUnavailableError("not_a_store", "it is empty")
            counts: list[int] = list(connection.execute(_CONTENTS).fetchall()[0])  # type: ignore[arg-type]
            return Contents(*counts)
        finally:
            connection.close(True)
    except apsw.Error as error:
        fault = store_fault(error)
        raise StoreUnavailableError(fault.cause_code, f"{path} cannot be used: {fault.message}") from error
    except StoreUnavailableError as error:
        raise StoreUnavailableError(error.cause_code, f"{path} cannot be used: {error.message}") from error


_CONTENTS: Final = (
    "SELECT (SELECT now_ms FROM newest_instant), (SELECT count(*) FROM project), (SELECT count(*) FROM service_key), "
    "(SELECT count(*) FROM lock), (SELECT coalesce(max(ttl_seconds), 0) FROM lock)"
)


def remove(path: Path) -> None:
    """Remove the database of that name with what SQLite keeps beside it, if it is there."""
    for suffix in ("", "-wal", "-shm", "-journal"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Make the file, or the names in the directory, durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _refuse_without_room(path: Path) -> None:
    """A backup that fills the disk would stop the service it is taken of."""
    log = path.with_name(path.name + "-wal")
    needed = path.stat().st_size + log.stat().st_size + ROOM_KEPT_BYTES
    free = shutil.disk_usage(path.parent).free
    if free < needed:
        raise LockError(
            "lock_service_unavailable",
            f"the disk of the store has {free // 2**20} MiB left, and a backup needs {needed // 2**20} there while it "
            "is taken: make room",
            retry_after_seconds=1,
        )
