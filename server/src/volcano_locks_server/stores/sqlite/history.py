"""The history in SQLite: entries as rows, added in the transaction of the batch that ended their holds.

Rows are numbered in the order in which they were added, so the oldest ones are at one end of the table. A commit that
adds entries to a lock now and then deletes the lock's oldest ones (`TrimTurns`).
"""

from collections.abc import Sequence
from functools import cache
from typing import Final

import apsw

from ...ports.lock_store import EndedHold, HistoryPage, HistoryQuery, RecordKey
from ...rules.clock_history import ClockHistory
from ...rules.history import DAY_MS, ENTRIES_PER_LOCK_MAX
from ...rules.lease import StoredRecord
from ...rules.values import LockKey
from ..history_cells import entry_in, entry_text
from ..history_pages import (
    LOCK_ENTRIES_READ,
    SCAN_ENTRIES,
    Keyed,
    TrimTurns,
    lock_page,
    locks_page,
    scanned_keys,
)
from .rows import padded, read_range, read_records

ROWS_MAX: Final = 512  # per statement
DELETE_ROWS_MAX: Final = 250  # per transaction

_TRIM: Final = (
    "DELETE FROM hold WHERE number IN (SELECT number FROM hold WHERE project_id = ? AND key = ? "
    f"ORDER BY fencing_token DESC LIMIT {DELETE_ROWS_MAX} OFFSET {ENTRIES_PER_LOCK_MAX})"
)
_OF_LOCK: Final = (
    "SELECT key, CAST(entry AS BLOB) FROM hold WHERE project_id = ? AND key = ? "
    f"ORDER BY fencing_token DESC LIMIT {LOCK_ENTRIES_READ}"
)
_REST_OF_LOCK: Final = (
    "SELECT key, CAST(entry AS BLOB) FROM hold WHERE project_id = ? AND key = ? AND fencing_token < ? "
    "ORDER BY fencing_token DESC LIMIT ?"
)
_OF_LOCKS: Final = (
    "SELECT key, CAST(entry AS BLOB) FROM hold WHERE project_id = ? AND key > ? AND key >= ? AND key < ? "
    "ORDER BY key, fencing_token DESC LIMIT ?"
)
_RECORDS: Final = "SELECT * FROM lock WHERE project_id = ? AND key >= ? AND key < ? ORDER BY key LIMIT ?"
_OLDEST: Final = (
    "DELETE FROM hold WHERE number IN (SELECT number FROM hold ORDER BY number LIMIT ?1) AND (ended_at_ms <= ?2 "
    "OR number IN (SELECT number FROM hold ORDER BY number LIMIT ?3))"
)
_OF_PROJECT: Final = "DELETE FROM hold WHERE number IN (SELECT number FROM hold WHERE project_id = ? LIMIT ?)"


class SqliteHistory:
    """The history on the one connection. Every call is on the connection's thread."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection: Final = connection
        self._turns: Final = TrimTurns()
        self._count: int | None = None  # None: to be counted

    def add(self, ended: Sequence[EndedHold]) -> None:
        """Add these entries; call in a transaction."""
        for begin in range(0, len(ended), ROWS_MAX):
            part = ended[begin : begin + ROWS_MAX]
            values: list[str | int | None] = []
            for (project_id, key), entry in part:
                values += (project_id, key, entry.fencing_token, entry.ended_at_ms, entry_text(entry))
            rows = padded(len(part))
            values += [None] * (5 * (rows - len(part)))
            self._connection.execute(_insert(rows), values)
            self._changed(self._connection.changes())
        for lock in self._turns.due(ended):
            self._connection.execute(_TRIM, lock)
            self._changed(-self._connection.changes())

    def page(self, query: HistoryQuery, now_ms: int, clock_history: ClockHistory) -> HistoryPage:
        """The page at `now_ms`; no write happens meanwhile."""
        if query.key is not None:
            lock = RecordKey(query.project_id, query.key)
            record = read_records(self._connection, [lock])[lock]
            stored = [entry for _key, entry in self._entries(_OF_LOCK, lock)]
            return lock_page(query, record, stored, now_ms, clock_history)
        begin, end = scanned_keys(query)
        records = self._records(query.project_id, begin, end)
        return locks_page(query, records, self._scan(query, begin, end), now_ms, clock_history)

    def purge(self, now_ms: int, *, kept_days: int, limit: int, entries_max: int) -> int:
        """Delete the oldest rows, at most `limit` and DELETE_ROWS_MAX; call in a transaction."""
        if self._count is None:
            self._count = int(self._connection.execute("SELECT count(*) FROM hold").get)
        oldest = min(limit, DELETE_ROWS_MAX)
        excess = min(oldest, max(0, self._count - entries_max))
        self._connection.execute(_OLDEST, (oldest, now_ms - kept_days * DAY_MS, excess))
        gone = self._connection.changes()
        self._changed(-gone)
        return gone

    def delete_of(self, project_id: str, limit: int) -> bool:
        """Delete up to `limit` rows of the project; call in a transaction. Returns whether more may be left."""
        self._connection.execute(_OF_PROJECT, (project_id, limit))
        gone = self._connection.changes()
        self._changed(-gone)
        return gone == limit

    def forget_count(self) -> None:
        """A transaction failed: count the rows again."""
        self._count = None

    def _changed(self, count: int) -> None:
        if self._count is not None:
            self._count += count

    def _records(self, project_id: str, begin: str, end: str) -> list[tuple[LockKey, StoredRecord]]:
        found = read_range(self._connection, _RECORDS, (project_id, begin, end, SCAN_ENTRIES))
        return sorted(found, key=lambda row: row[0])

    def _scan(self, query: HistoryQuery, begin: str, end: str) -> list[Keyed]:
        """The first SCAN_ENTRIES entries after `query.after`."""
        found: list[Keyed] = []
        past = ""
        if query.after is not None:
            past, token = query.after
            found += self._entries(_REST_OF_LOCK, (query.project_id, past, token, SCAN_ENTRIES))
        left = SCAN_ENTRIES - len(found)
        return found + self._entries(_OF_LOCKS, (query.project_id, past, begin, end, left)) if left else found

    def _entries(self, sql: str, values: Sequence[str | int]) -> list[Keyed]:
        rows = self._connection.execute(sql, values).fetchall()
        decoded = ((LockKey(str(key)), entry_in(bytes(text))) for key, text in rows)  # type: ignore[arg-type]
        return [(key, entry) for key, entry in decoded if entry is not None]


@cache
def _insert(rows: int) -> str:
    return (
        "INSERT INTO hold (project_id, key, fencing_token, ended_at_ms, entry) "
        f"SELECT * FROM (VALUES {','.join(['(?,?,?,?,?)'] * rows)}) WHERE column1 IS NOT NULL ON CONFLICT DO NOTHING"
    )
