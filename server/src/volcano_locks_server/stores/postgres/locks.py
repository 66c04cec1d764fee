"""Stores lock records in PostgreSQL, shared by any number of nodes.

A step is one transaction: lock the rows in key order, read the database's clock, run the step, write what changed,
commit. Existing rows are locked by `FOR UPDATE`, so no other transaction writes in between. A missing row is locked by
inserting it; if two transactions insert the same one, the second rolls back and starts again. Locks are taken in one
order, existing rows before new ones, so transactions cannot deadlock.

`now` is read after the row locks (case 27). A missing row has no instant to compare with. Its first lease begins
at `now`, even if the insert has to wait.

Time never goes back (LEASE-1), whichever database is the primary, and time that has not passed ends no lease
(LEASE-17): see `clock`, and `held_where` for queries by expiry.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from ...ports.lock_store import (
    HistoryPage,
    HistoryQuery,
    LockPage,
    LockQuery,
    RecordKey,
    Step,
    StoreCounts,
    TakeoverHold,
    hold_in_force,
)
from ...rules.errors import StoreUnavailableError
from ...rules.history import ENTRIES_MAX, entry_at_purge
from ...rules.lease import RETENTION_MS, Damaged
from ..history_pages import TrimTurns
from ..lock_rows import FREE_FROM, INTACT, HeldBounds, held_where
from ..readiness import node_probe_key, write_probe
from .clock import DatabaseClock
from .connections import ConnectionPool
from .faults import is_conflict
from .history import delete_old, read_history, trim
from .lock_pages import read_locks
from .read_only import read_transaction
from .rows import COLUMNS, keyed_lock, lock_records, write_entries, write_records
from .tables import insert_audit

ATTEMPTS_MAX: Final = 5
ATTEMPTS_SECONDS_MAX: Final = 4.0
PURGE_ROWS_MAX: Final = 250  # per transaction, so that no other waits long for a row
QUOTA_KEPT_MS: Final = 3_600_000

COUNT_HELD: Final = f"SELECT count(*) FROM volcano_locks.lock WHERE {held_where('$1', '$2', '$3', '$4::bigint')}"
PURGE: Final = f"""
    WITH gone AS (
        DELETE FROM volcano_locks.lock WHERE ctid = ANY (ARRAY(
            SELECT ctid FROM volcano_locks.lock WHERE {FREE_FROM} <= $1 AND {INTACT} ORDER BY {FREE_FROM} LIMIT $2
            FOR UPDATE SKIP LOCKED)) RETURNING {COLUMNS}
    ) SELECT {COLUMNS} FROM gone"""
_PURGE_QUOTA: Final = """
    DELETE FROM volcano_locks.quota WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM volcano_locks.quota WHERE window_started_at_ms < $1 LIMIT $2 FOR UPDATE SKIP LOCKED))"""


class PostgresStore:
    """The LockStore on `connections`. Made by `PostgresDatabase`."""

    def __init__(self, connections: ConnectionPool, counts: StoreCounts, clock: DatabaseClock) -> None:
        self._connections: Final = connections
        self._counts: Final = counts
        self._clock: Final = clock
        self._probe_key: Final = node_probe_key()
        self._turns: Final = TrimTurns()

    async def update(self, keys: Sequence[RecordKey], step: Step) -> Sequence[object]:
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + ATTEMPTS_SECONDS_MAX
        for attempt in range(ATTEMPTS_MAX):
            if attempt > 0:
                if loop.time() > ends_at:
                    break
                self._counts.retries += 1
            try:
                results = await self._clock.after_jumps(partial(self._run_step, keys, step))
            except StoreUnavailableError as error:
                if error.__cause__ is None or not is_conflict(error.__cause__):
                    raise
                results = None
            if results is not None:
                return results
            self._counts.conflicts += 1
        raise StoreUnavailableError("store_busy", "other nodes create the same locks at the same time: try again")

    async def list_locks(self, query: LockQuery) -> LockPage:
        return await self._clock.after_jumps(partial(self._list_locks, query))

    async def count_held(self) -> int:
        return await self._clock.after_jumps(self._count_held)

    async def purge(self, *, limit: int, keeps_history: bool = False) -> int:
        """Skips rows that another node has locked: they are being purged, or used again."""
        return await self._in_parts(limit, partial(self._purge, keeps_history=keeps_history))

    async def history_page(self, query: HistoryQuery) -> HistoryPage:
        return await self._clock.after_jumps(partial(self._history_page, query))

    async def purge_history(self, *, kept_days: int, limit: int, entries_max: int | None = None) -> int:
        kept_max = ENTRIES_MAX if entries_max is None else entries_max
        purge = partial(self._purge_history, limit, kept_days=kept_days, entries_max=kept_max)
        return await self._clock.after_jumps(purge)  # in one transaction, because counting costs more than deleting

    async def ready(self) -> None:
        await write_probe(self, self._probe_key)

    def takeover_hold(self) -> TakeoverHold | None:
        return hold_in_force(self._clock.history, self._clock.estimated_ms())

    async def _in_parts(self, limit: int, purge: Callable[[int], Awaitable[int]]) -> int:
        """Purge up to `limit` rows in short transactions; returns how many."""
        gone = 0
        while gone < limit:
            part = min(limit - gone, PURGE_ROWS_MAX)
            went = await self._clock.after_jumps(partial(purge, part))
            gone += went
            if went < part:
                break
        return gone

    async def _history_page(self, query: HistoryQuery) -> HistoryPage:
        async with read_transaction(self._connections) as transaction:
            return await read_history(transaction, query, self._clock)

    async def _purge_history(self, limit: int, *, kept_days: int, entries_max: int) -> int:
        async with self._connections.transaction() as transaction:
            now_ms = await self._clock.now_ms(transaction, {})
            return await delete_old(transaction, now_ms, kept_days=kept_days, limit=limit, entries_max=entries_max)

    async def _list_locks(self, query: LockQuery) -> LockPage:
        async with read_transaction(self._connections) as transaction:
            return await read_locks(transaction, query, self._clock)

    async def _count_held(self) -> int:
        async with self._connections.transaction() as transaction:
            now_ms = await self._clock.now_ms(transaction, {})
            bounds = HeldBounds.at(now_ms, self._clock.history)
            return int((await transaction.fetch(COUNT_HELD, *bounds))[0][0])

    async def _purge(self, limit: int, *, keeps_history: bool) -> int:
        async with self._connections.transaction() as transaction:
            now_ms = await self._clock.now_ms(transaction, {})
            over_ms = min(now_ms - RETENTION_MS, self._clock.history.over_before_ms(now_ms))
            gone = list(map(keyed_lock, await transaction.fetch(PURGE, over_ms, limit)))
            intact = ((key, record) for key, record in gone if not isinstance(record, Damaged))
            ended = [(key, entry) for key, record in intact if (entry := entry_at_purge(record)) is not None]
            if keeps_history and ended:
                await write_entries(transaction, ended)
            await transaction.fetch(_PURGE_QUOTA, now_ms - QUOTA_KEPT_MS, PURGE_ROWS_MAX)
            return len(gone)

    async def _run_step(self, keys: Sequence[RecordKey], step: Step) -> Sequence[object] | None:
        """The step's results; None after a roll-back, because another node created one of the records meanwhile."""
        async with self._connections.transaction() as transaction:
            known = self._clock.known()
            records, reading = await lock_records(transaction, keys)
            now_ms = self._clock.check(reading, records, known)
            stepped = step(reading.history.present_all(records, now_ms), now_ms)
            mark = self._clock.mark(now_ms)
            is_written = await write_records(transaction, stepped.changed, records, mark, stepped.ended)
            if stepped.ended and (due := self._turns.due(stepped.ended)):
                await trim(transaction, due)
            for entry in stepped.audit if is_written else ():
                await insert_audit(transaction, entry)
            if stepped.changed or stepped.audit:
                transaction.keep = transaction.confirms = is_written
            else:
                await transaction.confirm_primary()
        return stepped.results if is_written else None
