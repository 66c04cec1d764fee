"""Sets the clock of a PostgreSQL store back to the database's (see `clock_reset`).

Nodes of 0.1.0 do not know that tokens lead the clock. So the schema needs a release that knows the migration of the
clock's history from then on.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from ...ports.clock import Clock
from ...ports.lock_store import RecordKey, StoreCounts
from ...ports.snapshot import PAGE_ENTRIES_MAX
from ...rules.clock_history import ClockHistory
from ...rules.errors import DamagedRecordError
from ...rules.values import LockKey
from ..clock_reset import RESET_SECONDS_MAX, ClockReset, newer_than_shown
from ..damage import lock_entry
from ..lock_rows import HeldBounds, held_where
from .clock import DatabaseClock, write_clock
from .connections import ConnectionPool, Transaction
from .rows import COLUMNS, LOCK_CLOCK, WRITTEN_AT, keyed_lock
from .schema import apply_migrations, migrations
from .schema_mark import SchemaGuard

NEEDED_MIGRATION: Final = 4

# The parameters are the projects and the keys of the damaged records.
_NOT_DAMAGED: Final = """NOT EXISTS (SELECT FROM unnest($1::text[], $2::text[]) AS damaged (project_id, key)
        WHERE damaged.project_id = lock.project_id AND damaged.key = lock.key)"""
_WRITTEN_AT: Final = f"{WRITTEN_AT} AND {_NOT_DAMAGED}"
_HELD: Final = f"""
    SELECT count(*), coalesce(max(expires_at_ms), 0) FROM volcano_locks.lock
    WHERE {held_where("$3", "$4", "$5", "$6::bigint")} AND {_NOT_DAMAGED}"""
_LOCK_TABLE: Final = "LOCK TABLE volcano_locks.lock IN EXCLUSIVE MODE"
_MOVE_BACK: Final = f"""
    UPDATE volcano_locks.lock SET expires_at_ms = expires_at_ms - least($3, expires_at_ms),
        deadline_ms = deadline_ms - least($3, deadline_ms), acquired_at_ms = acquired_at_ms - least($3, acquired_at_ms),
        renewed_at_ms = renewed_at_ms - least($3, renewed_at_ms), freed_at_ms = freed_at_ms - least($3, freed_at_ms),
        queue_state = NULL
    WHERE {_NOT_DAMAGED}"""
_PAGE: Final = f"""
    SELECT {COLUMNS} FROM volcano_locks.lock WHERE (project_id, key) > ($1, $2) ORDER BY project_id, key LIMIT $3"""
_FORGET_QUOTAS: Final = "DELETE FROM volcano_locks.quota"
_NEED: Final = "UPDATE volcano_locks.migration SET needs = number WHERE number = $1"


async def plan_reset(url: str, clock: Clock) -> ClockReset:
    """What a reset would do. Raises ValueError for an invalid URL, and StoreUnavailableError."""
    connections = _connections(url)
    try:
        await apply_migrations(connections)
        async with connections.transaction(
            seconds=RESET_SECONDS_MAX, statement_seconds=RESET_SECONDS_MAX
        ) as transaction:
            transaction.keep = False
            damaged = await _damaged(transaction)
            plan, _ = await _plan(transaction, DatabaseClock(connections, clock, None), damaged)
            return plan
    finally:
        await connections.close()


async def reset_clock(url: str, clock: Clock, shown: ClockReset) -> None:
    """Carry out what was shown. Raises ValueError and StoreUnavailableError, with the database unchanged."""
    connections = _connections(url)
    try:
        async with connections.transaction(
            seconds=RESET_SECONDS_MAX, statement_seconds=RESET_SECONDS_MAX
        ) as transaction:
            await transaction.fetch(_LOCK_TABLE)
            await transaction.fetch(LOCK_CLOCK)
            database_clock = DatabaseClock(connections, clock, None)
            damaged = await _damaged(transaction)
            plan, history = await _plan(transaction, database_clock, damaged)
            newer_than_shown(shown, plan)
            await transaction.fetch(_MOVE_BACK, *_columns(damaged), plan.by_ms)
            await transaction.fetch(_FORGET_QUOTAS)
            await transaction.fetch(_NEED, NEEDED_MIGRATION)
            await write_clock(transaction, database_clock.mark(plan.now_ms), history.after_reset(plan.by_ms))
    finally:
        await connections.close()


def _connections(url: str) -> ConnectionPool:
    return ConnectionPool(url, StoreCounts(), SchemaGuard(migrations()[-1].number))


async def _plan(
    transaction: Transaction, clock: DatabaseClock, damaged: Mapping[RecordKey, DamagedRecordError]
) -> tuple[ClockReset, ClockHistory]:
    reading = await clock.read(transaction)
    written_at_ms = int((await transaction.fetch(_WRITTEN_AT, *_columns(damaged)))[0][0])
    newest_ms = max(reading.newest_ms, written_at_ms)
    bounds = HeldBounds.at(newest_ms, reading.history)
    held, last_ms = (await transaction.fetch(_HELD, *_columns(damaged), *bounds))[0]
    left_ms = max(0, last_ms - newest_ms)
    return ClockReset(newest_ms, reading.database_ms, held, left_ms, [*damaged.values()]), reading.history


def _columns(keys: Iterable[RecordKey]) -> tuple[list[str], list[str]]:
    keys = list(keys)
    return [key.project_id for key in keys], [key.key for key in keys]


async def _damaged(transaction: Transaction) -> dict[RecordKey, DamagedRecordError]:
    """The damaged records of all locks, also of deleted projects."""
    found: dict[RecordKey, DamagedRecordError] = {}
    after = RecordKey("", LockKey(""))
    while rows := await transaction.fetch(_PAGE, *after, PAGE_ENTRIES_MAX):
        entries = [(key, lock_entry(key, record)) for key, record in map(keyed_lock, rows)]
        found |= {key: entry for key, entry in entries if isinstance(entry, DamagedRecordError)}
        after = entries[-1][0]
    return found
