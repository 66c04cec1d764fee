"""Stores lock records in PostgreSQL, shared by any number of nodes.

A step is one transaction: lock the rows in key order, read the database's clock, run the step, write what changed,
commit. Existing rows are locked by `FOR UPDATE`, so no other transaction writes in between. A missing row is locked by
inserting it; if two transactions insert the same one, the second rolls back and starts again. Locks are taken in one
order, existing rows before new ones, so transactions cannot deadlock.

`now` is read after the row locks (case 27). A missing row has no instant to compare with. Its first lease begins
at `now`, even if the insert has to wait.

Time never goes back (LEASE-1), whichever database is the primary. An instant is refused with `clock_behind` if it is
earlier than that of the record, the newest that this node has seen, or the newest in the database. The last of these
may be a second old, so that most batches need not write it. For a single lock its own record is exact.
"""

import asyncio
from collections.abc import Sequence
from types import MappingProxyType
from typing import Final

from ...ports.clock import Clock
from ...ports.lock_store import LockPage, LockQuery, RecordKey, Records, Step, StoreCounts
from ...rules.errors import StoreUnavailableError
from ...rules.lease import RETENTION_MS
from ..errors import clock_behind, refuse_clock_far_behind
from ..lock_rows import FREE_FROM
from .connections import ConnectionPool, Transaction
from .faults import is_conflict
from .lock_pages import read_locks
from .read_only import read_transaction
from .rows import NOW, lock_records, write_records, written_at_ms

ATTEMPTS_MAX: Final = 5
ATTEMPTS_SECONDS_MAX: Final = 4.0
CLOCK_BEHIND_MAX_MS: Final = 5_000
PURGE_ROWS_MAX: Final = 250  # per transaction, so that no other waits long for a row
QUOTA_KEPT_MS: Final = 3_600_000

COUNT_HELD: Final = f"SELECT count(*) FROM volcano_locks.lock WHERE {FREE_FROM} > $1"
PURGE: Final = f"""
    WITH gone AS (
        DELETE FROM volcano_locks.lock WHERE ctid = ANY (ARRAY(
            SELECT ctid FROM volcano_locks.lock WHERE {FREE_FROM} <= $1 ORDER BY {FREE_FROM} LIMIT $2
            FOR UPDATE SKIP LOCKED)) RETURNING 1
    ) SELECT count(*) FROM gone"""
_PURGE_QUOTA: Final = """
    DELETE FROM volcano_locks.quota WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM volcano_locks.quota WHERE window_started_at_ms < $1 LIMIT $2 FOR UPDATE SKIP LOCKED))"""
_NOTE_NEWEST: Final = """
    UPDATE volcano_locks.newest_instant SET now_ms = greatest(now_ms, $1) WHERE one = (
        SELECT one FROM volcano_locks.newest_instant FOR UPDATE SKIP LOCKED)"""


class PostgresStore:
    """The LockStore on `connections`. Made by `PostgresDatabase`. `clock` replaces the database's, for tests."""

    def __init__(self, connections: ConnectionPool, counts: StoreCounts, clock: Clock | None) -> None:
        self._connections: Final = connections
        self._counts: Final = counts
        self._clock: Final = clock
        self._newest_ms = 0

    async def update(self, keys: Sequence[RecordKey], step: Step) -> Sequence[object]:
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + ATTEMPTS_SECONDS_MAX
        for attempt in range(ATTEMPTS_MAX):
            if attempt > 0:
                if loop.time() > ends_at:
                    break
                self._counts.retries += 1
            try:
                results = await self._run_step(keys, step)
            except StoreUnavailableError as error:
                if error.__cause__ is None or not is_conflict(error.__cause__):
                    raise
                results = None
            if results is not None:
                return results
            self._counts.conflicts += 1
        raise StoreUnavailableError("store_busy", "other nodes create the same locks at the same time: try again")

    async def list_locks(self, query: LockQuery) -> LockPage:
        async with read_transaction(self._connections) as transaction:
            return await read_locks(transaction, query, self._now_ms)

    async def count_held(self) -> int:
        async with self._connections.transaction() as transaction:
            now_ms = await self._now_ms(transaction)
            return int((await transaction.fetch(COUNT_HELD, now_ms))[0][0])

    async def purge(self, *, limit: int) -> int:
        """Skips rows that another node has locked: they are being purged, or used again."""
        gone = 0
        while gone < limit:
            part = min(limit - gone, PURGE_ROWS_MAX)
            async with self._connections.transaction() as transaction:
                now_ms = await self._now_ms(transaction)
                went = int((await transaction.fetch(PURGE, now_ms - RETENTION_MS, part))[0][0])
                await transaction.fetch(_PURGE_QUOTA, now_ms - QUOTA_KEPT_MS, PURGE_ROWS_MAX)
            gone += went
            if went < part:
                break
        return gone

    async def ready(self) -> None:
        """Makes a real commit: only a commit shows that there is disk space and that a required standby confirms."""
        async with self._connections.transaction() as transaction:
            await transaction.fetch(_NOTE_NEWEST, await self._now_ms(transaction))
            await transaction.prove_writable()

    async def refuse_wrong_clock(self) -> None:
        """At the start. A clock slightly behind catches up while the node runs."""
        async with self._connections.transaction() as transaction:
            database_ms, remembered_ms = (await transaction.fetch(NOW))[0]
        now_ms = database_ms if self._clock is None else self._clock.now_ms()
        refuse_clock_far_behind("the clock of the database's machine", now_ms, remembered_ms, CLOCK_BEHIND_MAX_MS)

    async def _run_step(self, keys: Sequence[RecordKey], step: Step) -> Sequence[object] | None:
        """The step's results; None after a roll-back, because another node created one of the records meanwhile."""
        async with self._connections.transaction() as transaction:
            seen_ms = self._newest_ms
            records, database_ms, remembered_ms = await lock_records(transaction, keys)
            now_ms = self._check_clock(database_ms, max(seen_ms, remembered_ms), records)
            stepped = step(records, now_ms)
            is_written = await write_records(transaction, stepped.changed, records, now_ms)
            if stepped.changed:
                transaction.keep = transaction.confirms = is_written
            else:
                await transaction.confirm_primary()
        return stepped.results if is_written else None

    async def _now_ms(self, transaction: Transaction, records: Records = MappingProxyType({})) -> int:
        """The instant to decide by. `records` were read before it."""
        seen_ms = self._newest_ms
        database_ms, remembered_ms = (await transaction.fetch(NOW))[0]
        return self._check_clock(database_ms, max(seen_ms, remembered_ms), records)

    def _check_clock(self, database_ms: int, newest_ms: int, records: Records) -> int:
        """The instant to decide by, unless time would go back. `newest_ms` was known before the clock was read."""
        now_ms = database_ms if self._clock is None else self._clock.now_ms()
        for record in records.values():
            if record is not None:
                newest_ms = max(newest_ms, written_at_ms(record))
        if now_ms < newest_ms:
            raise clock_behind(now_ms, newest_ms)
        self._newest_ms = max(self._newest_ms, now_ms)
        return now_ms
