"""Reads pages of lock records from PostgreSQL: by the index of keys, or by the index of held locks if those are few.

The instant is read before the rows, so a lease renewed in between does not show as ended. The clock is read again after
the rows: it must have passed the instants in them.

No row is locked. A statement sees what was committed before it began, on the synchronous standby too if there is one.
In key order a million freed records may hide a few held ones; the index by expiry finds them.
"""

from typing import Final

from ...ports.lock_store import LockPage, LockQuery, RecordKey
from ..lock_pages import SCAN_RECORDS_MAX, build_page, key_range, scan_limit
from ..lock_rows import FREE_FROM, HeldBounds, held_where
from .clock import DatabaseClock
from .connections import Transaction
from .rows import COLUMNS, keyed_record

FEW_HELD: Final = f"""
    SELECT count(*) <= $2 FROM (SELECT FROM volcano_locks.lock WHERE {FREE_FROM} > $1 LIMIT $2 + 1) AS held"""
_IN_RANGE: Final = "project_id = $1 AND key >= $2 AND key < $3 ORDER BY key LIMIT $4"
BY_KEY: Final = f"SELECT {COLUMNS} FROM volcano_locks.lock WHERE {_IN_RANGE}"
HELD: Final = f"""
    WITH held AS MATERIALIZED (
        SELECT {COLUMNS} FROM volcano_locks.lock WHERE {held_where("$5", "$6", "$7", "$8::bigint")})
    SELECT {COLUMNS} FROM held WHERE {_IN_RANGE}"""


async def read_locks(transaction: Transaction, query: LockQuery, clock: DatabaseClock) -> LockPage:
    """The page. Raises as `clock.check`."""
    now_ms = await clock.now_ms(transaction, {})
    history = clock.history
    bounds = HeldBounds.at(now_ms, history)
    values = (query.project_id, *key_range(query))
    if query.held and (await transaction.fetch(FEW_HELD, bounds.over_ms, SCAN_RECORDS_MAX))[0][0]:
        requested = query.limit + 1
        rows = await transaction.fetch(HELD, *values, requested, *bounds)
    else:
        requested = scan_limit(query)
        rows = await transaction.fetch(BY_KEY, *values, requested)
    found = [keyed_record(row) for row in rows]
    await clock.now_ms(transaction, {RecordKey(query.project_id, key): record for key, record in found})
    return build_page(query, found, now_ms, history=history, requested=requested)
