"""Reads pages of lock records from SQLite: by the index of keys, or by the index of held locks if those are few.

Reads run on the writer thread between batches, so they are limited to SCAN_RECORDS_MAX rows. In key order a million
freed records may hide a few held ones; the index by expiry finds them.
"""

from typing import Final

import apsw

from ...ports.lock_store import LockPage, LockQuery
from ...rules.clock_history import ClockHistory
from ...rules.lease import StoredRecord
from ...rules.values import LockKey
from ..lock_pages import SCAN_RECORDS_MAX, build_page, key_range, scan_limit
from ..lock_rows import FREE_FROM, HeldBounds, held_where
from .rows import read_range

FEW_HELD: Final = f"SELECT count(*) <= ?2 FROM (SELECT 1 FROM lock WHERE {FREE_FROM} > ?1 LIMIT ?2 + 1)"
_IN_RANGE: Final = "project_id = ?1 AND key >= ?2 AND key < ?3 ORDER BY key LIMIT ?4"
_HELD: Final = held_where("?5", "?6", "?7", "?8")
BY_KEY: Final = f"SELECT * FROM lock WHERE {_IN_RANGE}"
HELD: Final = f"SELECT * FROM lock INDEXED BY lock_by_free_from WHERE {_HELD} AND {_IN_RANGE}"


def read_locks(connection: apsw.Connection, query: LockQuery, now_ms: int, history: ClockHistory) -> LockPage:
    """The page at `now_ms`; no write happens meanwhile."""
    bounds = HeldBounds.at(now_ms, history)
    if query.held and connection.execute(FEW_HELD, (bounds.over_ms, SCAN_RECORDS_MAX)).get:
        requested = query.limit + 1
        found = _found(connection, HELD, query, requested, *bounds)
    else:
        requested = scan_limit(query)
        found = _found(connection, BY_KEY, query, requested)
    return build_page(query, found, now_ms, history=history, requested=requested)


def _found(
    connection: apsw.Connection, rows: str, query: LockQuery, limit: int, *values: int
) -> list[tuple[LockKey, StoredRecord]]:
    return read_range(connection, rows, (query.project_id, *key_range(query), limit, *values))
