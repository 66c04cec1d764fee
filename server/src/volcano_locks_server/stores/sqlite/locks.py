"""Stores lock records in SQLite.

Isolation comes from serial execution: one process has the file, one thread has the connection, one transaction runs at
a time. A step sees every record as the batch before it left it, `now` is read inside the transaction, and the response
leaves after COMMIT, which returns after the fsync (LEASE-14).

Time never goes back (LEASE-1): the newest instant is written with the records, and an earlier instant is refused with
`clock_behind`.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar

import apsw

from ...ports.clock import Clock
from ...ports.lock_store import LockPage, LockQuery, RecordKey, Step
from ...rules.lease import RETENTION_MS
from ..errors import clock_behind
from ..lock_rows import FREE_FROM
from .connection import run_in_transaction
from .file_lock import FileLock
from .lock_pages import read_locks
from .rows import read_records, write_records
from .writer import WriterThread

PURGE_ROWS_MAX: Final = 250  # per transaction, so that batches wait only a few milliseconds
PROVEN_SECONDS: Final = 1.0

T = TypeVar("T")

COUNT_HELD: Final = f"SELECT count(*) FROM lock WHERE {FREE_FROM} > ?"
PURGE: Final = f"DELETE FROM lock WHERE number IN (SELECT number FROM lock WHERE {FREE_FROM} <= ? LIMIT ?)"


class SqliteStore:
    """The LockStore on the one connection. Made by `SqliteFile`."""

    def __init__(self, connection: apsw.Connection, writer: WriterThread, file_lock: FileLock, clock: Clock) -> None:
        self._connection: Final = connection
        self._writer: Final = writer
        self._file_lock: Final = file_lock
        self._clock: Final = clock
        self.newest_ms = int(connection.execute("SELECT now_ms FROM newest_instant").get)
        """The newest instant that was served, including before a restart; an earlier one is refused."""
        self._proven_at = -PROVEN_SECONDS

    async def update(self, keys: Sequence[RecordKey], step: Step) -> Sequence[object]:
        return await self._writer.run(partial(self._update, keys, step))

    async def list_locks(self, query: LockQuery) -> LockPage:
        return await self._writer.run(partial(self._list_locks, query))

    async def count_held(self) -> int:
        return await self._writer.run(lambda: int(self._connection.execute(COUNT_HELD, (self._now_ms(),)).get))

    async def purge(self, *, limit: int) -> int:
        gone = 0
        while gone < limit:
            part = min(limit - gone, PURGE_ROWS_MAX)
            went = await self._writer.run(partial(self._purge, part))
            gone += went
            if went < part:
                break
        return gone

    async def ready(self) -> None:
        await self._writer.run(self._ready)

    def _update(self, keys: Sequence[RecordKey], step: Step) -> Sequence[object]:
        self._file_lock.check_files()
        return self._transaction(partial(self._run_step, keys, step))

    def _run_step(self, keys: Sequence[RecordKey], step: Step) -> Sequence[object]:
        records = read_records(self._connection, keys)
        now_ms = self._now_ms()
        stepped = step(records, now_ms)
        if stepped.changed:
            write_records(self._connection, stepped.changed.items())
            self._remember(now_ms)
        return stepped.results

    def _list_locks(self, query: LockQuery) -> LockPage:
        self._file_lock.check_files()
        return read_locks(self._connection, query, self._now_ms())

    def _purge(self, limit: int) -> int:
        self._file_lock.check_files()
        now_ms = self._now_ms()

        def work() -> int:
            self._connection.execute(PURGE, (now_ms - RETENTION_MS, limit))
            gone = self._connection.changes()
            if gone:
                self._remember(now_ms)
            return gone

        return self._transaction(work)

    def _ready(self) -> None:
        """A real write, unless one became durable in the last second: only a write shows that there is disk space."""
        self._file_lock.check_files(now=True)
        self._now_ms()
        if time.monotonic() - self._proven_at >= PROVEN_SECONDS:
            self._transaction(partial(self._connection.execute, "UPDATE readiness SET probes = probes + 1"))

    def _transaction(self, work: Callable[[], T]) -> T:
        changes = self._connection.total_changes()
        try:
            result = run_in_transaction(self._connection, work)
        except BaseException:
            self._proven_at = -PROVEN_SECONDS
            raise
        if self._connection.total_changes() != changes:
            self._proven_at = time.monotonic()
        return result

    def _remember(self, now_ms: int) -> None:
        """Write the newest instant in the transaction that was evaluated at that instant."""
        self._connection.execute("UPDATE newest_instant SET now_ms = ?", (now_ms,))

    def _now_ms(self) -> int:
        now_ms = self._clock.now_ms()
        if now_ms < self.newest_ms:
            raise clock_behind(now_ms, self.newest_ms)
        self.newest_ms = now_ms
        return now_ms
