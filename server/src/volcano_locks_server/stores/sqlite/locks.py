"""Stores lock records in SQLite.

Isolation comes from serial execution: one process has the file, one thread has the connection, one transaction runs at
a time. A step sees every record as the batch before it left it, `now` is read inside the transaction, and the response
leaves after COMMIT, which returns after the fsync (LEASE-14).

Time never goes back, and time that has not passed ends no lease: see `file_clock`. While takeovers are held (LEASE-17),
the records of leases that were alive before the clock's jump look free to the index by expiry: see `held_where`.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import apsw

from ...ports.clock import Clock
from ...ports.lock_store import (
    EndedHold,
    HistoryPage,
    HistoryQuery,
    LockPage,
    LockQuery,
    RecordKey,
    Records,
    Step,
    StepResult,
    TakeoverHold,
    hold_in_force,
)
from ...rules.errors import StoreUnavailableError
from ...rules.history import ENTRIES_MAX, entry_at_purge
from ...rules.lease import RETENTION_MS, Damaged
from ...rules.values import LockKey
from ..lock_rows import FREE_FROM, INTACT
from ..readiness import PROBE_KEY, write_probe
from .checkpoints import FAILING_MS_MAX, Checkpoints
from .commits import run_counted
from .file_clock import FileClock
from .file_lock import FileLock
from .held_scan import HeldScan
from .history import SqliteHistory
from .lock_pages import read_locks
from .rows import RAW_CELLS, read_records, record_of_cells, write_records
from .tables import insert_audit
from .writer import WriterThread

PURGE_ROWS_MAX: Final = 250  # per transaction, so that batches wait only a few milliseconds

T = TypeVar("T")

PURGE: Final = (
    f"DELETE FROM lock WHERE number IN (SELECT number FROM lock WHERE {FREE_FROM} <= ? AND {INTACT} LIMIT ?) "
    f"RETURNING project_id, key, {RAW_CELLS}"
)


class SqliteStore:
    """The LockStore on the one connection. Made by `SqliteFile`."""

    def __init__(
        self,
        connection: apsw.Connection,
        writer: WriterThread,
        file_lock: FileLock,
        checkpoints: Checkpoints,
        clock: Clock,
    ) -> None:
        self._connection: Final = connection
        self._writer: Final = writer
        self._file_lock: Final = file_lock
        self._checkpoints: Final = checkpoints
        self.clock: Final = FileClock(connection, clock)
        self._one_scan_at_a_time: Final = asyncio.Lock()
        self._scan: HeldScan | None = None
        self.entries: Final = SqliteHistory(connection)

    async def update(self, keys: Sequence[RecordKey], step: Step) -> Sequence[object]:
        return await self._writer.run(partial(self._update, keys, step))

    async def list_locks(self, query: LockQuery) -> LockPage:
        return await self._writer.run(partial(self._list_locks, query))

    async def count_held(self) -> int:
        async with self._one_scan_at_a_time:
            try:
                scan = await self._writer.run(self._begin_scan)
                while not scan.done:
                    await self._writer.run(partial(self._step_scan, scan))
                return scan.count
            finally:
                self._scan = None

    async def purge(self, *, limit: int, keeps_history: bool = False) -> int:
        return await self._in_parts(limit, partial(self._purge, keeps_history=keeps_history))

    async def history_page(self, query: HistoryQuery) -> HistoryPage:
        return await self._writer.run(partial(self._history_page, query))

    async def purge_history(self, *, kept_days: int, limit: int, entries_max: int | None = None) -> int:
        kept_max = ENTRIES_MAX if entries_max is None else entries_max
        return await self._in_parts(limit, partial(self._purge_history, kept_days=kept_days, entries_max=kept_max))

    async def ready(self) -> None:
        await self._writer.run(self._refuse_unready)
        await write_probe(self, PROBE_KEY)

    def takeover_hold(self) -> TakeoverHold | None:
        return hold_in_force(self.clock.history, self.clock.unchecked_ms())

    async def _in_parts(self, limit: int, purge: Callable[[int], int]) -> int:
        """Purge up to `limit` rows in short transactions; returns how many."""
        gone = 0
        while gone < limit:
            part = min(limit - gone, PURGE_ROWS_MAX)
            went = await self._writer.run(partial(purge, part))
            gone += went
            if went < part:
                break
        return gone

    def _update(self, keys: Sequence[RecordKey], step: Step) -> Sequence[object]:
        self._file_lock.check_files()
        records, stepped = self._transaction(partial(self._run_step, keys, step))
        if not self.clock.is_remembered:
            self._remember_once()
        scan = self._scan
        if scan is not None:
            for key, record in stepped.changed.items():
                scan.replaced(records[key], record)
        return stepped.results

    def _run_step(self, keys: Sequence[RecordKey], step: Step) -> tuple[Records, StepResult]:
        records = read_records(self._connection, keys)
        now_ms, history = self.clock.now_ms(), self.clock.history
        stepped = step(history.present_all(records, now_ms), now_ms)
        if stepped.changed:
            write_records(self._connection, stepped.changed.items())
            if stepped.ended:
                self.entries.add(stepped.ended)
            self.clock.remember(now_ms)
        for entry in stepped.audit:
            insert_audit(self._connection, entry)
        return records, stepped

    def _remember_once(self) -> None:
        """After a start the clock's history must be durable. A full disk stops no read: the next write stores it."""
        try:
            self._transaction(partial(self.clock.remember, self.clock.now_ms()))
        except apsw.FullError:
            self.clock.is_remembered = False

    def _begin_scan(self) -> HeldScan:
        self._file_lock.check_files()
        self._scan = scan = HeldScan(self._connection, self.clock.now_ms(), self.clock.history)
        scan.step()
        return scan

    def _step_scan(self, scan: HeldScan) -> None:
        if scan is not self._scan:
            raise StoreUnavailableError("store_error", "an update failed while the held locks were counted")
        scan.step()

    def _list_locks(self, query: LockQuery) -> LockPage:
        self._file_lock.check_files()
        return read_locks(self._connection, query, self.clock.now_ms(), self.clock.history)

    def _history_page(self, query: HistoryQuery) -> HistoryPage:
        self._file_lock.check_files()
        return self.entries.page(query, self.clock.now_ms(), self.clock.history)

    def _purge_history(self, limit: int, *, kept_days: int, entries_max: int) -> int:
        self._file_lock.check_files()
        purge = partial(self.entries.purge, kept_days=kept_days, limit=limit, entries_max=entries_max)
        return self._transaction(partial(purge, self.clock.now_ms()))

    def _purge(self, limit: int, *, keeps_history: bool) -> int:
        self._file_lock.check_files()
        now_ms = self.clock.now_ms()
        over_ms = min(now_ms - RETENTION_MS, self.clock.history.over_before_ms(now_ms))

        def work() -> int:
            rows = self._connection.execute(PURGE, (over_ms, limit)).fetchall()
            gone = len(rows)
            if keeps_history:
                self.entries.add([ended for row in rows if (ended := last_hold(row)) is not None])
            if gone:
                self.clock.remember(now_ms)
            return gone

        return self._transaction(work)

    def _refuse_unready(self) -> None:
        self._file_lock.check_files(now=True)
        self._checkpoints.refuse_failing(for_ms=FAILING_MS_MAX)

    def _transaction(self, work: Callable[[], T]) -> T:
        try:
            return run_counted(self._connection, self._file_lock.served, work)
        except BaseException:
            self._scan = None  # it cannot know what the transaction changed
            self.entries.forget_counts()
            raise


def last_hold(row: Sequence[Any]) -> EndedHold | None:
    """The entry of the last hold of a lock whose record was purged."""
    project_id, key, *cells = row
    record = record_of_cells(cells)
    entry = None if isinstance(record, Damaged) else entry_at_purge(record)
    return None if entry is None else (RecordKey(project_id, LockKey(key)), entry)
