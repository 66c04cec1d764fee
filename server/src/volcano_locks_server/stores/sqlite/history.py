"""The history in SQLite: rows of `hold`, added by the commit that displaces them from their lock's record.

A commit that adds entries of a lock now and then deletes the lock's oldest ones (`TrimTurns`). How many entries each
project has is counted once, and then kept up to date.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import chain, islice
from typing import Final

import apsw

from ...ports.lock_store import EndedHold, HistoryPage, HistoryQuery, RecordKey
from ...rules.clock_history import ClockHistory
from ...rules.history import DAY_MS, ENTRIES_PER_LOCK_MAX
from ...rules.lease import StoredRecord
from ...rules.record_check import INSTANT_MS_MAX
from ...rules.shares import past_equal_share
from ...rules.values import LockKey
from ..history_cells import entry_in, entry_text
from ..history_pages import (
    ALL_TOKENS,
    LOCK_ENTRIES_READ,
    SCAN_ENTRIES,
    Keyed,
    TrimTurns,
    lock_page,
    locks_page,
    scanned_keys,
)
from .rows import ROWS_MAX, padded, read_range, read_records

_COLUMNS: Final = "project_id, key, fencing_token, ended_at_ms, entry"
_WIDTH: Final = _COLUMNS.count(",") + 1
_LATEST: Final = "SELECT fencing_token FROM hold WHERE project_id = ?1 AND key = ?2 ORDER BY fencing_token DESC"
_TRIM: Final = (
    "DELETE FROM hold WHERE project_id = ?1 AND key = ?2 "
    f"AND fencing_token <= ({_LATEST} LIMIT 1 OFFSET {ENTRIES_PER_LOCK_MAX})"
)
_OF_LOCK: Final = (
    "SELECT key, CAST(entry AS BLOB) FROM hold WHERE project_id = ?1 AND key = ?2 AND fencing_token < ?3 "
    "ORDER BY fencing_token DESC LIMIT ?4"
)
_OF_LOCKS: Final = (
    "SELECT key, CAST(entry AS BLOB) FROM hold WHERE project_id = ?1 AND key > ?2 AND key >= ?3 AND key < ?4 "
    "ORDER BY key, fencing_token DESC LIMIT ?5"
)
_RECORDS: Final = "SELECT * FROM lock WHERE project_id = ? AND key >= ? AND key < ? ORDER BY key LIMIT ?"
_COUNTS: Final = "SELECT CAST(project_id AS BLOB), count(*) FROM hold GROUP BY project_id"
_DELETE_OLDEST: Final = (
    "DELETE FROM hold WHERE number IN (SELECT number FROM hold WHERE project_id = CAST(? AS TEXT) AND ended_at_ms <= ? "
    "ORDER BY ended_at_ms LIMIT ?)"
)


@cache
def _insert(rows: int) -> str:
    values = ",".join([f"({','.join('?' * _WIDTH)})"] * rows)
    return f"INSERT OR IGNORE INTO hold ({_COLUMNS}) SELECT * FROM (VALUES {values}) WHERE column1 IS NOT NULL"


class SqliteHistory:
    """The history on the one connection. Every call is on the connection's thread."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection: Final = connection
        self._turns: Final = TrimTurns()
        self._counts: Counter[bytes] | None = None  # entries by project; None: to be counted

    def add(self, ended: Sequence[EndedHold]) -> None:
        """Add these entries; call in a transaction."""
        remaining = iter(ended)
        while part := list(islice(remaining, ROWS_MAX)):
            rows = padded(len(part))
            cells = ((*lock, one.fencing_token, one.ended_at_ms, entry_text(one)) for lock, one in part)
            values = [*chain.from_iterable(cells), *([None] * (_WIDTH * (rows - len(part))))]
            self._connection.execute(_insert(rows), values)
        for lock, _entry in ended:
            self._changed(lock.project_id.encode(), 1)
        for lock in self._turns.due(ended):
            self._delete(lock.project_id.encode(), _TRIM, lock)

    def page(self, query: HistoryQuery, now_ms: int, clock_history: ClockHistory) -> HistoryPage:
        """The page at `now_ms`; no write happens meanwhile."""
        if query.key is not None:
            lock = RecordKey(query.project_id, query.key)
            record = read_records(self._connection, [lock])[lock]
            stored = [entry for _key, entry in self._entries(_OF_LOCK, (*lock, ALL_TOKENS, LOCK_ENTRIES_READ))]
            return lock_page(query, record, stored, now_ms, clock_history)
        begin, end = scanned_keys(query)
        records = self._records(query.project_id, begin, end)
        return locks_page(query, records, self._scan(query, begin, end), now_ms, clock_history)

    def purge(self, now_ms: int, *, kept_days: int, limit: int, entries_max: int) -> int:
        """Delete up to `limit` rows that are too old, or the oldest past their project's share; returns how many. Call
        in a transaction.
        """
        if self._counts is None:
            self._counts = Counter({bytes(one): int(rows) for one, rows in self._connection.execute(_COUNTS)})
        gone = self._delete_oldest(dict(self._counts), now_ms - kept_days * DAY_MS, limit)
        return gone + self._delete_oldest(past_equal_share(self._counts, entries_max), INSTANT_MS_MAX, limit - gone)

    def delete_of(self, project_id: str, limit: int) -> bool:
        """Delete up to `limit` rows of the project; call in a transaction. Returns whether more may be left."""
        of_project = project_id.encode()
        return self._delete(of_project, _DELETE_OLDEST, (of_project, INSTANT_MS_MAX, limit)) == limit

    def forget_counts(self) -> None:
        """A transaction failed: count the rows again."""
        self._counts = None

    def _delete_oldest(self, of_each: Mapping[bytes, int], until_ms: int, limit: int) -> int:
        """Delete rows that ended up to `until_ms`: so many of each project, the oldest first, and `limit` in all."""
        gone = 0
        for project_id, count in of_each.items():
            if gone == limit:
                break
            gone += self._delete(project_id, _DELETE_OLDEST, (project_id, until_ms, min(count, limit - gone)))
        return gone

    def _delete(self, project_id: bytes, sql: str, values: Sequence[str | int | bytes]) -> int:
        """Run this statement; returns how many rows of the project it deleted."""
        self._connection.execute(sql, values)
        gone = self._connection.changes()
        self._changed(project_id, -gone)
        return gone

    def _changed(self, project_id: bytes, count: int) -> None:
        if self._counts is not None:
            self._counts[project_id] += count
            if not self._counts[project_id]:
                del self._counts[project_id]

    def _records(self, project_id: str, begin: str, end: str) -> list[tuple[LockKey, StoredRecord]]:
        found = read_range(self._connection, _RECORDS, (project_id, begin, end, SCAN_ENTRIES))
        return sorted(found, key=lambda row: row[0])

    def _scan(self, query: HistoryQuery, begin: str, end: str) -> list[Keyed]:
        """The first SCAN_ENTRIES entries after `query.after`."""
        found: list[Keyed] = []
        past = ""
        if query.after is not None:
            past, token = query.after
            of_lock = self._entries(_OF_LOCK, (query.project_id, past, ALL_TOKENS, ENTRIES_PER_LOCK_MAX))
            found = [one for one in of_lock if one[1].fencing_token < token]
        left = SCAN_ENTRIES - len(found)
        return found + self._entries(_OF_LOCKS, (query.project_id, past, begin, end, left))

    def _entries(self, sql: str, values: Sequence[str | int]) -> list[Keyed]:
        rows = self._connection.execute(sql, values).fetchall()
        decoded = ((LockKey(str(key)), entry_in(bytes(text))) for key, text in rows)  # type: ignore[arg-type]
        return [(key, entry) for key, entry in decoded if entry is not None]
