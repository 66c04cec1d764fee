"""Sets the clock of a PostgreSQL store back to the database's (see `clock_reset`).

Nodes of 0.1.0 do not know that tokens lead the clock. So the schema needs a release that knows the migration of the
clock's history from then on.
"""

from typing import Final

from ...ports.clock import Clock
from ...ports.lock_store import StoreCounts
from ...rules.clock_history import ClockHistory
from ..clock_reset import RESET_SECONDS_MAX, ClockReset, newer_than_shown
from ..lock_rows import HeldBounds, held_where
from .clock import DatabaseClock, write_clock
from .connections import ConnectionPool, Transaction
from .rows import LOCK_CLOCK, WRITTEN_AT
from .schema import apply_migrations, migrations
from .schema_mark import SchemaGuard

NEEDED_MIGRATION: Final = 4

_HELD: Final = f"""
    SELECT count(*), coalesce(max(expires_at_ms), 0) FROM volcano_locks.lock
    WHERE {held_where("$1", "$2", "$3", "$4::bigint")}"""
_LOCK_TABLE: Final = "LOCK TABLE volcano_locks.lock IN EXCLUSIVE MODE"
_MOVE_BACK: Final = """
    UPDATE volcano_locks.lock SET expires_at_ms = expires_at_ms - least($1, expires_at_ms),
        deadline_ms = deadline_ms - least($1, deadline_ms), acquired_at_ms = acquired_at_ms - least($1, acquired_at_ms),
        renewed_at_ms = renewed_at_ms - least($1, renewed_at_ms), freed_at_ms = freed_at_ms - least($1, freed_at_ms),
        queue_state = NULL"""
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
            plan, _ = await _plan(transaction, DatabaseClock(connections, clock, None))
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
            plan, history = await _plan(transaction, database_clock)
            newer_than_shown(shown, plan)
            await transaction.fetch(_MOVE_BACK, plan.by_ms)
            await transaction.fetch(_FORGET_QUOTAS)
            await transaction.fetch(_NEED, NEEDED_MIGRATION)
            await write_clock(transaction, database_clock.mark(plan.now_ms), history.after_reset(plan.by_ms))
    finally:
        await connections.close()


def _connections(url: str) -> ConnectionPool:
    return ConnectionPool(url, StoreCounts(), SchemaGuard(migrations()[-1].number))


async def _plan(transaction: Transaction, clock: DatabaseClock) -> tuple[ClockReset, ClockHistory]:
    reading = await clock.read(transaction)
    written_at_ms = int((await transaction.fetch(WRITTEN_AT))[0][0])
    newest_ms = max(reading.newest_ms, written_at_ms)
    held, last_ms = (await transaction.fetch(_HELD, *HeldBounds.at(newest_ms, reading.history)))[0]
    return ClockReset(newest_ms, reading.database_ms, held, max(0, last_ms - newest_ms)), reading.history
