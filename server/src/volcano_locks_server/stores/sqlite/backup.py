"""Takes backups of a SQLite file, and inspects them.

A backup is the database at one instant, in a single file without a log. It is copied page by page over the connection
that serves, between batches. SQLite repeats later changes in the pages already copied, so lock traffic continues, and
the backup shows the store as it was when the last page was copied. (`VACUUM INTO` would be one statement that blocks
every batch.)

A backup lacks what was committed after that instant. `restore` explains the consequences.
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

from ...rules.clock_history import ClockMark
from ...rules.errors import LockError, StoreUnavailableError
from ..readiness import PROBE_PROJECT
from .connection import closed_after, schema_version
from .faults import file_fault, store_errors
from .file_clock import read_clock
from .file_lock import FileLock, sync
from .writer import WriterThread

PAGES_PER_STEP: Final = 128  # 512 KiB: a batch waits for at most one step
FREE_BYTES_MIN: Final = 64 * 1024 * 1024

T = TypeVar("T")


class BackupCopy:
    """A backup being written to `target`, a new file that only this user can read. Call on the connection's thread."""

    def __init__(self, source: apsw.Connection, target: Path) -> None:
        remove(target)
        os.close(os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        self._path: Final = target
        self._connection: Final = apsw.Connection(str(target), flags=apsw.SQLITE_OPEN_READWRITE)
        for setting in ("locking_mode = EXCLUSIVE", "journal_mode = MEMORY", "synchronous = OFF"):
            self._connection.execute(f"PRAGMA {setting}").fetchall()
        self._backup: Final = self._connection.backup("main", source, "main")

    def step(self) -> bool:
        """Copy some pages; returns whether that was the last step. Raises apsw.Error."""
        self._backup.step(PAGES_PER_STEP)
        return self._backup.done

    def finish(self) -> None:
        """Make it a single file. It is not synced, because that would block the thread. Raises apsw.Error."""
        self._backup.finish()
        self._connection.execute("PRAGMA journal_mode = DELETE").fetchall()
        self._connection.close()

    def abandon(self) -> None:
        """Delete the incomplete copy."""
        self._backup.close(True)
        self._connection.close(True)
        remove(self._path)


class SqliteBackupFile:
    """A finished backup of a running server, in an unlinked file: closing it deletes it."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        path.unlink()
        self.size_bytes: Final = os.fstat(self._descriptor).st_size

    def read(self, offset: int, count: int) -> bytes:
        """Up to `count` bytes from `offset` on. Raises OSError."""
        return os.pread(self._descriptor, count, offset)

    def close(self) -> None:
        """Free its disk space."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class SqliteBackups:
    """Takes backups of the open file, one at a time. Made by `SqliteFile`."""

    def __init__(self, connection: apsw.Connection, writer: WriterThread, file_lock: FileLock) -> None:
        self._connection: Final = connection
        self._writer: Final = writer
        self._file_lock: Final = file_lock
        self._path: Final = file_lock.path
        self._one_at_a_time: Final = asyncio.Lock()

    async def take(self) -> SqliteBackupFile:
        """Take a backup. Raises LockError if the disk lacks space for it, and StoreUnavailableError."""
        async with self._one_at_a_time:
            await self._writer.run(partial(self._file_lock.check_files, now=True))
            _require_disk_space(self._path)
            target = self._path.with_name(self._path.name + ".backup-in-progress")
            copy = await self._run(partial(BackupCopy, self._connection, target))
            try:
                while not await self._writer.run(copy.step):
                    pass
                await self._run(copy.finish)
                return SqliteBackupFile(target)
            except BaseException:
                with suppress(StoreUnavailableError):  # the file is being closed: then the copy is closed too
                    await self._writer.run(copy.abandon)
                remove(target)
                raise

    async def _run(self, work: Callable[[], T]) -> T:
        try:
            return await self._writer.run(work)
        except OSError as error:
            raise file_fault(error, self._path) from error


def back_up_stopped(path: Path, to: Path) -> None:
    """Durably back up a store that no server has open. Raises StoreUnavailableError if one has, or the store is
    unusable.

    The schema stays at its version. The backup includes what a crash left in the log.
    """
    file_lock = FileLock.acquire_path(path)
    try:
        file_lock.refuse_replaced()
        file_lock.refuse_lost_log()
        flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_EXRESCODE
        with store_errors(), closed_after(apsw.Connection(str(file_lock.path), flags=flags)) as source:
            source.execute("PRAGMA locking_mode = EXCLUSIVE").fetchall()
            schema_version(source)
            file_lock.note_opened()
            copy = BackupCopy(source, to)
            try:
                while not copy.step():
                    pass
                copy.finish()
                sync(to)
            except BaseException:
                copy.abandon()
                raise
    finally:
        file_lock.release()


@dataclass(frozen=True, slots=True)
class BackupContents:
    """What a backup holds. `mark` is of when it was last written to."""

    mark: ClockMark
    projects: int
    service_keys: int
    admin_tokens: int
    locks: int
    longest_ttl_seconds: int

    @property
    def newest_ms(self) -> int:
        """When it was last written to, 0 if never."""
        return self.mark.now_ms


def inspect_backup(path: Path) -> BackupContents:
    """The contents of this backup, after checking every page. StoreUnavailableError if it is damaged or no backup."""
    with (
        store_errors(f"{path} cannot be used: "),
        closed_after(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as connection,
    ):
        version = schema_version(connection)
        if connection.execute("PRAGMA quick_check").fetchall() != [("ok",)]:
            raise StoreUnavailableError("store_corrupt", "it is damaged")
        if version == 0:
            raise StoreUnavailableError("not_a_store", "it is empty")
        tokens = _ADMIN_TOKENS if connection.execute(_HAS_ADMIN_TOKENS).get else "0"
        counts: list[int] = list(connection.execute(_CONTENTS.format(tokens=tokens)).fetchall()[0])  # type: ignore[arg-type]
        return BackupContents(read_clock(connection)[0], *counts)


_HAS_ADMIN_TOKENS: Final = "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'admin_token')"  # since 0005
_ADMIN_TOKENS: Final = "(SELECT count(*) FROM admin_token)"
_CONTENTS: Final = (
    "SELECT (SELECT count(*) FROM project), (SELECT count(*) FROM service_key), {tokens}, "
    f"(SELECT count(*) FROM lock WHERE project_id <> '{PROBE_PROJECT}'), "
    "(SELECT coalesce(max(ttl_seconds), 0) FROM lock)"
)


def remove(path: Path) -> None:
    """Delete the database at `path` and SQLite's files beside it, if they exist."""
    for suffix in ("", "-wal", "-shm", "-journal"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def _require_disk_space(path: Path) -> None:
    """Prevent a backup that would fill the disk and stop the service."""
    log = path.with_name(path.name + "-wal")
    needed = path.stat().st_size + log.stat().st_size + FREE_BYTES_MIN
    free = shutil.disk_usage(path.parent).free
    if free < needed:
        raise LockError(
            "lock_service_unavailable",
            f"the disk of the store has {free // 2**20} MiB free, and a backup needs {needed // 2**20} MiB while it "
            "is taken: free some space",
            retry_after_seconds=1,
        )
