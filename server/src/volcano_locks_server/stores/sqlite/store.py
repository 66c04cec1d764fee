"""An open SQLite file: its lock, its writer thread, its connection, and the ports on top of them."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

import apsw

from ...ports.clock import Clock
from ...rules.errors import StoreUnavailableError
from ..errors import refuse_clock_far_behind
from .admin_tokens import SqliteAdminTokens
from .audit import SqliteAudit
from .backup import SqliteBackups
from .checkpoints import Checkpoints
from .connection import open_connection
from .faults import store_errors
from .file_clock import BEHIND_MS_MAX
from .file_lock import FileLock
from .locks import SqliteStore
from .registry import SqliteRegistry
from .repairs import SqliteRepairs
from .sessions import SqliteSessions
from .snapshot import SqliteSnapshot
from .writer import WriterThread


class SqliteFile:
    """The ports on one file, which no other server can open meanwhile. Made by `open`."""

    def __init__(self, file_lock: FileLock, connection: apsw.Connection, writer: WriterThread, clock: Clock) -> None:
        self._file_lock: Final = file_lock
        self._connection: Final = connection
        self._writer: Final = writer
        self._writer.around = file_lock.watch_log
        self._checkpoints: Final = Checkpoints(connection, file_lock, clock)
        self.locks: Final = SqliteStore(connection, writer, file_lock, self._checkpoints, clock)
        self.registry: Final = SqliteRegistry(connection, writer, file_lock, self.locks.entries)
        self.admin_tokens: Final = SqliteAdminTokens(connection, writer, file_lock)
        self.sessions: Final = SqliteSessions(connection, writer, file_lock)
        self.audit: Final = SqliteAudit(connection, writer, file_lock)
        self.backups: Final = SqliteBackups(connection, writer, file_lock)
        self.repairs: Final = SqliteRepairs(connection, writer, file_lock.served)
        self.snapshot: Final = SqliteSnapshot(connection, writer, file_lock.served, self.locks)

    @classmethod
    async def open(
        cls,
        path: Path,
        clock: Clock,
        *,
        vfs: str = "",
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> Self:
        """Open the file, or create it so that only this user can read and write it.

        If the clock is behind the file's newest instant by up to BEHIND_MS_MAX, wait for it with `sleep` (seconds).
        On failure, close everything and raise StoreUnavailableError, whose message says what to do. `vfs` names the
        SQLite VFS, by default the system's.
        """
        writer = WriterThread()
        opened: list[Self] = []  # filled by the writer, whose last job closes the file even if this task is cancelled
        try:
            await writer.run(lambda: opened.append(cls._open(path, clock, writer, vfs)))
            await opened[0]._begin(sleep)
        except BaseException:
            await writer.close(lambda: [file._close() for file in opened])
            raise
        return opened[0]

    @property
    def checkpoint_failures(self) -> int:
        return self._checkpoints.failures

    @property
    def log_bytes(self) -> int:
        path = self._file_lock.path
        with suppress(OSError):
            return path.with_name(path.name + "-wal").stat().st_size
        return 0

    async def check(self) -> None:
        await self._writer.run(self._check)

    async def close(self) -> None:
        """Finish queued work, refuse new work, close the connection, release the file."""
        await self._writer.close(self._close)

    @classmethod
    def _open(cls, path: Path, clock: Clock, writer: WriterThread, vfs: str) -> Self:
        file_lock = FileLock.acquire(path)
        try:
            with store_errors(f"cannot open {file_lock.path}: "):  # for the operator who starts the server
                connection = open_connection(file_lock.path, vfs, opened=file_lock.note_opened)
            try:
                file_lock.remember_files()
                file_lock.served.begin(connection)
                file_lock.remember_content()
                return cls(file_lock, connection, writer, clock)
            except BaseException:
                connection.close(True)
                raise
        except BaseException:
            file_lock.release()
            raise

    async def _begin(self, sleep: Callable[[float], Awaitable[None]]) -> None:
        clock = self.locks.clock
        while (behind_ms := clock.behind_ms()) > 0:
            refuse_clock_far_behind("the machine's clock", clock.unchecked_ms(), clock.newest_ms, BEHIND_MS_MAX)
            await sleep(behind_ms / 1_000)
        await self._writer.run(clock.begin)

    def _check(self) -> None:
        self._file_lock.check_files(now=True)
        self._checkpoints.refuse_failing()

    def _close(self) -> None:
        """Closing merges the log into the database, unless another program replaced one of them."""
        with suppress(StoreUnavailableError):
            self._file_lock.check_files(now=True)
        try:
            if self._file_lock.is_marked:
                self._connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            else:
                with suppress(apsw.Error), self._file_lock.served.merging():
                    self._connection.wal_checkpoint()
            self._connection.close(True)
        finally:
            self._file_lock.release()
