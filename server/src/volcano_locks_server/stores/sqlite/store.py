"""An open SQLite file: its lock, its writer thread, its connection, and the ports on top of them."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, Self

import apsw

from ...ports.clock import Clock
from ..errors import refuse_clock_far_behind
from .backup import SqliteBackups
from .connection import open_connection
from .faults import store_errors
from .file_lock import FileLock
from .locks import SqliteStore
from .registry import SqliteRegistry
from .snapshot import SqliteSnapshot
from .writer import WriterThread

CLOCK_WAIT_MAX_MS: Final = 5_000


class SqliteFile:
    """The ports on one file, which no other server can open meanwhile. Made by `open`."""

    def __init__(self, file_lock: FileLock, connection: apsw.Connection, writer: WriterThread, clock: Clock) -> None:
        self._file_lock: Final = file_lock
        self._connection: Final = connection
        self._writer: Final = writer
        self.locks: Final = SqliteStore(connection, writer, file_lock, clock)
        self.registry: Final = SqliteRegistry(connection, writer, file_lock)
        self.backups: Final = SqliteBackups(connection, writer, file_lock.path)
        self.snapshot: Final = SqliteSnapshot(connection, writer, self.locks)

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

        If the clock is behind the file's newest instant by up to CLOCK_WAIT_MAX_MS, wait for it with `sleep` (seconds).
        On failure, close everything and raise StoreUnavailableError, whose message says what to do. `vfs` names the
        SQLite VFS, by default the system's.
        """
        writer = WriterThread()
        opened: list[Self] = []  # filled by the writer, whose last job closes the file even if this task is cancelled
        try:
            await writer.run(lambda: opened.append(cls._open(path, clock, writer, vfs)))
            await opened[0]._wait_for_clock(clock, sleep)
        except BaseException:
            await writer.close(lambda: [file._close() for file in opened])
            raise
        return opened[0]

    async def close(self) -> None:
        """Finish queued work, refuse new work, close the connection, release the file."""
        await self._writer.close(self._close)

    @classmethod
    def _open(cls, path: Path, clock: Clock, writer: WriterThread, vfs: str) -> Self:
        file_lock = FileLock.acquire(path)
        try:
            with store_errors(f"cannot open {file_lock.path}: "):  # for the operator who starts the server
                connection = open_connection(file_lock.path, vfs)
            try:
                file_lock.remember_files()
                return cls(file_lock, connection, writer, clock)
            except BaseException:
                connection.close(True)
                raise
        except BaseException:
            file_lock.release()
            raise

    async def _wait_for_clock(self, clock: Clock, sleep: Callable[[float], Awaitable[None]]) -> None:
        newest_ms = self.locks.newest_ms
        while (behind_ms := newest_ms - (now_ms := clock.now_ms())) > 0:
            refuse_clock_far_behind("the machine's clock", now_ms, newest_ms, CLOCK_WAIT_MAX_MS)
            await sleep(behind_ms / 1_000)

    def _close(self) -> None:
        try:
            self._connection.close(True)
        finally:
            self._file_lock.release()
