"""A SQLite file in use: the claim on it, its writer thread, its connection, and the two ports over them."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, Self

import apsw

from ...ports.clock import Clock
from ...rules.errors import StoreUnavailableError
from ..errors import instant
from .backup import SqliteBackups
from .connection import open_connection
from .faults import store_fault
from .file_lock import Claim
from .locks import SqliteStore
from .registry import SqliteRegistry
from .snapshot import SqliteSnapshot
from .writer import Writer

CLOCK_WAIT_MAX_MS: Final = 5_000


class SqliteFile:
    """`locks` and `registry` in one file, which no other server can open meanwhile. Made by `open`."""

    def __init__(self, claim: Claim, connection: apsw.Connection, writer: Writer, clock: Clock) -> None:
        self._claim: Final = claim
        self._connection: Final = connection
        self._writer: Final = writer
        self.locks: Final = SqliteStore(connection, writer, claim, clock)
        self.registry: Final = SqliteRegistry(connection, writer, claim)
        self.backups: Final = SqliteBackups(connection, writer, claim.path)
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
        """Open the file, or create it, readable and writable by this user alone.

        A clock that is behind the file's newest instant by up to CLOCK_WAIT_MAX_MS is waited for with `sleep`
        (seconds). Raises StoreUnavailableError, whose message says what to do, with nothing left open. `vfs` names
        the SQLite VFS to go through, the system's own by default.
        """
        writer = Writer()
        opened: list[Self] = []  # seen by the last piece of work, also if this task is cancelled while it waits
        try:
            await writer.run(lambda: opened.append(cls._opened(path, clock, writer, vfs)))
            await opened[0]._wait_for(clock, sleep)
        except BaseException:
            await writer.close(lambda: [file._close() for file in opened])
            raise
        return opened[0]

    async def close(self) -> None:
        """Finish what is queued, refuse what comes later, close the connection, free the file."""
        await self._writer.close(self._close)

    @classmethod
    def _opened(cls, path: Path, clock: Clock, writer: Writer, vfs: str) -> Self:
        claim = Claim.take(path)
        try:
            connection = _connected(claim.path, vfs)
            try:
                claim.remember()
                return cls(claim, connection, writer, clock)
            except BaseException:
                connection.close(True)
                raise
        except BaseException:
            claim.drop()
            raise

    async def _wait_for(self, clock: Clock, sleep: Callable[[float], Awaitable[None]]) -> None:
        newest_ms = self.locks.newest_ms
        while (behind_ms := newest_ms - (now_ms := clock.now_ms())) > 0:
            if behind_ms > CLOCK_WAIT_MAX_MS:
                raise StoreUnavailableError(
                    "clock_behind",
                    f"the clock reads {instant(now_ms)} but the store's file was written at {instant(newest_ms)}: "
                    "set the machine's clock right, then start again; if the file was written under a wrong clock, "
                    "start again after that instant",
                )
            await sleep(behind_ms / 1_000)

    def _close(self) -> None:
        try:
            self._connection.close(True)
        finally:
            self._claim.drop()


def _connected(path: Path, vfs: str) -> apsw.Connection:
    """The connection; what is in its way is told with the path, for the one who starts the server."""
    try:
        return open_connection(path, vfs)
    except apsw.Error as error:
        fault = store_fault(error)
        raise StoreUnavailableError(fault.cause_code, f"cannot open {path}: {fault.message}") from error
    except StoreUnavailableError as error:
        raise StoreUnavailableError(error.cause_code, f"cannot open {path}: {error.message}") from error
