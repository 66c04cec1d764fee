"""The history in SQLite. The commit that ends holds adds their entries as one row of `recent_hold`, as JSON.

To insert each entry into the index by lock at once would cost more than all else about it: fresh keys change pages of
the index in random order. So once there are RECENT_MAX recent entries, a commit moves them together to the table
`hold`, and deletes the oldest entries of their locks past ENTRIES_PER_LOCK_MAX. Queries read both.

Rows of `hold` are numbered in the order in which their holds ended, so the oldest ones are at one end of the table.
"""

from collections.abc import Sequence
from typing import Final

import apsw

from ...ports.lock_store import EndedHold, HistoryPage, HistoryQuery, RecordKey
from ...rules.clock_history import ClockHistory
from ...rules.history import DAY_MS, ENTRIES_PER_LOCK_MAX
from ...rules.lease import StoredRecord
from ...rules.values import LockKey
from ..history_cells import entries_text, entry_in
from ..history_pages import (
    ALL_TOKENS,
    LOCK_ENTRIES_READ,
    SCAN_ENTRIES,
    Keyed,
    lock_page,
    locks_page,
    scanned_keys,
)
from .rows import read_range, read_records

RECENT_MAX: Final = 2_000
DELETE_ROWS_MAX: Final = 250  # per transaction

_COLUMNS: Final = "project_id, key, fencing_token, ended_at_ms, entry"
_RECENT: Final = (
    "SELECT CAST(value ->> '$[0][0]' AS TEXT) AS project_id, CAST(value ->> '$[0][1]' AS TEXT) AS key, "
    "CAST(value ->> '$[1][0]' AS INTEGER) AS fencing_token, CAST(value ->> '$[1][7]' AS INTEGER) AS ended_at_ms, "
    "value -> '$[1]' AS entry "
    "FROM recent_hold, json_each(CASE WHEN json_valid(entries) THEN entries ELSE '[]' END)"
)
_MOVE: Final = f"INSERT OR IGNORE INTO hold ({_COLUMNS}) {_RECENT}"
_TRIM: Final = (
    "DELETE FROM hold WHERE number IN (SELECT hold.number FROM (SELECT project_id, key, ("
    "SELECT fencing_token FROM hold WHERE project_id = moved.project_id AND key = moved.key "
    f"ORDER BY fencing_token DESC LIMIT 1 OFFSET {ENTRIES_PER_LOCK_MAX}) AS edge "
    "FROM (SELECT DISTINCT project_id, key FROM hold NOT INDEXED WHERE number > ?) AS moved) AS trimmed "
    "CROSS JOIN hold ON hold.project_id = trimmed.project_id AND hold.key = trimmed.key "
    "AND hold.fencing_token <= trimmed.edge)"
)


def _select(where: str) -> str:
    """The first ?1 entries of this condition, by key, and of a lock the latest first."""
    chosen = f"WHERE {where} ORDER BY key, fencing_token DESC LIMIT ?1"
    stored, recent = (f"SELECT * FROM (SELECT {_COLUMNS} FROM {one} {chosen})" for one in ("hold", f"({_RECENT})"))
    both = f"SELECT key, CAST(entry AS BLOB) FROM ({stored} UNION ALL {recent})"
    return f"{both} ORDER BY key, fencing_token DESC LIMIT ?1"


_OF_LOCK: Final = _select("project_id = ?2 AND key = ?3 AND fencing_token < ?4")
_OF_LOCKS: Final = _select("project_id = ?2 AND key > ?3 AND key >= ?4 AND key < ?5")
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
        self._recent: int | None = None  # entries in recent_hold; None: to be counted
        self._count: int | None = None  # rows of hold

    def add(self, ended: Sequence[EndedHold]) -> None:
        """Add these entries; call in a transaction."""
        if self._recent is None:
            self._recent = int(self._connection.execute(f"SELECT count(*) FROM ({_RECENT})").get)
        self._connection.execute("INSERT INTO recent_hold (entries) VALUES (?)", (entries_text(ended),))
        self._recent += len(ended)
        if self._recent >= RECENT_MAX:
            self._move_recent()

    def page(self, query: HistoryQuery, now_ms: int, clock_history: ClockHistory) -> HistoryPage:
        """The page at `now_ms`; no write happens meanwhile."""
        if query.key is not None:
            lock = RecordKey(query.project_id, query.key)
            record = read_records(self._connection, [lock])[lock]
            stored = [entry for _key, entry in self._entries(_OF_LOCK, (LOCK_ENTRIES_READ, *lock, ALL_TOKENS))]
            return lock_page(query, record, stored, now_ms, clock_history)
        begin, end = scanned_keys(query)
        records = self._records(query.project_id, begin, end)
        return locks_page(query, records, self._scan(query, begin, end), now_ms, clock_history)

    def purge(self, now_ms: int, *, kept_days: int, limit: int, entries_max: int) -> int:
        """Delete the oldest rows, at most `limit` and DELETE_ROWS_MAX; call in a transaction."""
        self._move_recent()
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
        self._move_recent()
        self._connection.execute(_OF_PROJECT, (project_id, limit))
        gone = self._connection.changes()
        self._changed(-gone)
        return gone == limit

    def forget_count(self) -> None:
        """A transaction failed: count the rows again."""
        self._count = self._recent = None

    def _move_recent(self) -> None:
        """Move the recent entries to the table `hold`."""
        if self._recent == 0:
            return
        last = self._connection.execute("SELECT max(number) FROM hold").get or 0
        self._connection.execute(_MOVE)
        self._changed(self._connection.changes())
        self._connection.execute("DELETE FROM recent_hold")
        self._connection.execute(_TRIM, (last,))
        self._changed(-self._connection.changes())
        self._recent = 0

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
            of_lock = self._entries(_OF_LOCK, (ENTRIES_PER_LOCK_MAX, query.project_id, past, ALL_TOKENS))
            found = [one for one in of_lock if one[1].fencing_token < token]
        return found + self._entries(_OF_LOCKS, (SCAN_ENTRIES - len(found), query.project_id, past, begin, end))

    def _entries(self, sql: str, values: Sequence[str | int]) -> list[Keyed]:
        rows = self._connection.execute(sql, values).fetchall()
        decoded = ((LockKey(str(key)), entry_in(bytes(text))) for key, text in rows)  # type: ignore[arg-type]
        return [(key, entry) for key, entry in decoded if entry is not None]
