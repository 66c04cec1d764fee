"""Pages of lock records in PostgreSQL: by the index of keys, or by that of who is held while those are few.

The instant is read before the rows, so a lease that is renewed in between is not called ended. The clock is looked at
once more behind them: it must have come to what the rows were written by.

No row is locked. What a statement sees was committed before it began, and is on the standby where one must have it.
A million records of freed locks hide few held ones in the order of keys, but not in the order of the instants they
are free from.
"""

from collections.abc import Awaitable, Callable
from typing import Final

from ...ports.lock_store import LockPage, LockQuery, RecordKey, Records
from ..lock_pages import LOOKED_AT_MAX, key_range, looked_at_max, page_of
from .connections import Transaction
from .rows import COLUMNS, FREE_FROM, keyed_record

FEW_HELD: Final = f"""
    SELECT count(*) <= $2 FROM (SELECT FROM volcano_locks.lock WHERE {FREE_FROM} > $1 LIMIT $2 + 1) AS held"""
_IN_RANGE: Final = "project_id = $1 AND key >= $2 AND key < $3 ORDER BY key LIMIT $4"
BY_KEY: Final = f"SELECT {COLUMNS} FROM volcano_locks.lock WHERE {_IN_RANGE}"
HELD: Final = f"""
    WITH held AS MATERIALIZED (SELECT {COLUMNS} FROM volcano_locks.lock WHERE {FREE_FROM} > $5)
    SELECT {COLUMNS} FROM held WHERE {_IN_RANGE}"""

NowMs = Callable[[Transaction, Records], Awaitable[int]]


async def read_locks(transaction: Transaction, query: LockQuery, now: NowMs) -> LockPage:
    """The page. `now` is the instant to judge by, which refuses one that those records were written after."""
    now_ms = await now(transaction, {})
    values = (query.project_id, *key_range(query))
    if query.held and (await transaction.fetch(FEW_HELD, now_ms, LOOKED_AT_MAX))[0][0]:
        asked_for = query.limit + 1
        rows = await transaction.fetch(HELD, *values, asked_for, now_ms)
    else:
        asked_for = looked_at_max(query)
        rows = await transaction.fetch(BY_KEY, *values, asked_for)
    found = [keyed_record(row) for row in rows]
    await now(transaction, {RecordKey(query.project_id, key): record for key, record in found})
    return page_of(query, found, now_ms, asked_for=asked_for)
