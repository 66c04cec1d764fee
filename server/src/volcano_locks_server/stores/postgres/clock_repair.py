"""Writes the record of a PostgreSQL store's clock anew, also while nodes run: they serve again afterwards (CLI-31)."""

from typing import Final

from ...ports.audit_entry import AuditEntry
from ...ports.clock import Clock, mark_of
from ...ports.lock_store import StoreCounts
from ...rules.clock_history import NO_HISTORY
from ...rules.errors import DamagedRecordError
from ..clock_reset import RESET_SECONDS_MAX
from ..damage import shown_row
from ..errors import CLOCK_RECORD, ClockDamagedError
from ..lock_rows import INTACT, TOKEN_LEAD
from .clock import write_clock
from .connections import ConnectionPool, Transaction
from .rows import CLOCK_NOW, HISTORY, LAST_FREE_FROM, NOW, WRITTEN_AT, ClockReading
from .schema import migrations
from .schema_mark import SchemaGuard
from .tables import insert_audit

_INSERT: Final = """
    INSERT INTO volcano_locks.newest_instant (one, now_ms, signal_channel)
    VALUES (1, 0, 'volcano_locks_' || replace(gen_random_uuid()::text, '-', ''))
    ON CONFLICT (one) DO UPDATE SET now_ms = newest_instant.now_ms"""
_TOKEN_LEAD: Final = f"SELECT {TOKEN_LEAD} FROM volcano_locks.lock WHERE {INTACT}"
_STORED: Final = f"SELECT now_ms, {HISTORY} FROM volcano_locks.newest_instant"


async def find_clock_damage(url: str, _clock: Clock) -> DamagedRecordError | None:
    """The damage of the record, None if it is intact. Raises ValueError and StoreUnavailableError."""
    connections = _connections(url)
    try:
        async with connections.transaction() as transaction:
            transaction.keep = False
            return await clock_damage(transaction)
    finally:
        await connections.close()


async def clock_damage(transaction: Transaction) -> DamagedRecordError | None:
    """The damage of the record, None if it is intact."""
    try:
        ClockReading.in_last(await transaction.fetch(NOW))
    except ClockDamagedError as error:
        rows = await transaction.fetch(_STORED)
        shown = shown_row(["now_ms", *HISTORY.split(", ")], rows[0]) if rows else ""
        return DamagedRecordError(CLOCK_RECORD, error.reason, shown)
    return None


async def repair_clock(url: str, clock: Clock, entry: AuditEntry | None) -> None:
    """Write it anew. Raises ValueError and StoreUnavailableError, with the database unchanged."""
    connections = _connections(url)
    try:
        async with connections.transaction(
            seconds=RESET_SECONDS_MAX, statement_seconds=RESET_SECONDS_MAX
        ) as transaction:
            if await clock_damage(transaction) is None:
                return
            await transaction.fetch(_INSERT)
            now_ms = max(await _number(transaction, f"SELECT {CLOCK_NOW}"), await _number(transaction, WRITTEN_AT))
            last_free_from_ms = await _number(transaction, LAST_FREE_FROM)
            lead_ms = max(0, await _number(transaction, _TOKEN_LEAD))
            history = NO_HISTORY.rewritten(now_ms, last_free_from_ms, lead_ms)
            await write_clock(transaction, mark_of(clock, now_ms), history)
            await insert_audit(transaction, entry)
    finally:
        await connections.close()


async def _number(transaction: Transaction, sql: str) -> int:
    return int((await transaction.fetch(sql))[0][0])


def _connections(url: str) -> ConnectionPool:
    return ConnectionPool(url, StoreCounts(), SchemaGuard(migrations()[-1].number))
