"""Pages of lock records in SQLite: by the index of keys, or by that of who is held while those are few.

Reading is done on the writer's thread between two batches, so it is kept to LOOKED_AT_MAX rows. A million records of
freed locks hide few held ones in the order of keys, but not in the order of the instants they are free from.
"""

from typing import Final

import apsw

from ...ports.lock_store import LockPage, LockQuery
from ...rules.lease import LockRecord
from ...rules.values import LockKey
from ..lock_pages import LOOKED_AT_MAX, key_range, looked_at_max, page_of
from .rows import FREE_FROM, read_range

FEW_HELD: Final = f"SELECT count(*) <= ?2 FROM (SELECT 1 FROM lock WHERE {FREE_FROM} > ?1 LIMIT ?2 + 1)"
_IN_RANGE: Final = "project_id = ?1 AND key >= ?2 AND key < ?3 ORDER BY key LIMIT ?4"
BY_KEY: Final = f"SELECT * FROM lock WHERE {_IN_RANGE}"
HELD: Final = f"SELECT * FROM lock INDEXED BY lock_by_free_from WHERE {FREE_FROM} > ?5 AND {_IN_RANGE}"


def read_locks(connection: apsw.Connection, query: LockQuery, now_ms: int) -> LockPage:
    """The page at `now_ms`; nobody writes meanwhile."""
    if query.held and connection.execute(FEW_HELD, (now_ms, LOOKED_AT_MAX)).get:
        asked_for = query.limit + 1
        found = _found(connection, HELD, query, asked_for, now_ms)
    else:
        asked_for = looked_at_max(query)
        found = _found(connection, BY_KEY, query, asked_for)
    return page_of(query, found, now_ms, asked_for=asked_for)


def _found(
    connection: apsw.Connection, rows: str, query: LockQuery, limit: int, *values: int
) -> list[tuple[LockKey, LockRecord]]:
    return read_range(connection, rows, (query.project_id, *key_range(query), limit, *values))
