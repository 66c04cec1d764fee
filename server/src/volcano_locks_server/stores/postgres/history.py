"""The history in PostgreSQL: entries as rows, added by the statement that writes the records (WRITE_WITH_HISTORY).

One node purges at a time. A commit that adds entries of a lock now and then deletes the lock's oldest ones
(`TrimTurns`).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from ...ports.lock_store import HistoryPage, HistoryQuery, RecordKey
from ...rules.history import DAY_MS, ENTRIES_PER_LOCK_MAX
from ...rules.record_check import INSTANT_MS_MAX
from ...rules.shares import past_equal_share
from ...rules.values import LockKey
from ..history_cells import entry_in
from ..history_pages import ALL_TOKENS, LOCK_ENTRIES_READ, SCAN_ENTRIES, Keyed, lock_page, locks_page, scanned_keys
from .clock import DatabaseClock
from .connections import Row, Transaction
from .rows import COLUMNS, keyed_record

_PURGER: Final = 0x564C4348  # a lock of the transaction, never of the session (case 29)

TRIM: Final = f"""
    DELETE FROM volcano_locks.hold USING unnest($1::text[], $2::text[]) AS trimmed (project_id, key),
    LATERAL (
        SELECT fencing_token FROM volcano_locks.hold AS kept
        WHERE kept.project_id = trimmed.project_id AND kept.key = trimmed.key
        ORDER BY fencing_token DESC LIMIT 1 OFFSET {ENTRIES_PER_LOCK_MAX}) AS edge
    WHERE hold.project_id = trimmed.project_id AND hold.key = trimmed.key
        AND hold.fencing_token <= edge.fencing_token"""
_RECORD: Final = f"SELECT {COLUMNS} FROM volcano_locks.lock WHERE project_id = $1 AND key = $2"
_RECORDS: Final = f"""
    SELECT {COLUMNS} FROM volcano_locks.lock WHERE project_id = $1 AND key >= $2 AND key < $3 ORDER BY key LIMIT $4"""
_OF_LOCK: Final = """
    SELECT key, entry FROM volcano_locks.hold WHERE project_id = $1 AND key = $2 AND fencing_token < $3
    ORDER BY fencing_token DESC LIMIT $4"""
_OF_LOCKS: Final = """
    SELECT key, entry FROM volcano_locks.hold WHERE project_id = $1 AND key > $2 AND key >= $3 AND key < $4
    ORDER BY key, fencing_token DESC LIMIT $5"""
_TAKE_TURN: Final = "SELECT pg_try_advisory_xact_lock($1)"
_SPAN: Final = "SELECT coalesce(max(number) - min(number) + 1, 0) FROM volcano_locks.hold"
_COUNTS: Final = "SELECT project_id, count(*) FROM volcano_locks.hold GROUP BY project_id"
_PROJECTS: Final = """
    WITH RECURSIVE found (project_id) AS (
        SELECT min(project_id) FROM volcano_locks.hold
        UNION ALL SELECT (SELECT min(hold.project_id) FROM volcano_locks.hold WHERE hold.project_id > found.project_id)
        FROM found WHERE found.project_id IS NOT NULL
    ) SELECT project_id FROM found WHERE project_id IS NOT NULL"""  # one index search for each project
_DELETE_OLDEST: Final = """
    WITH gone AS (
        DELETE FROM volcano_locks.hold WHERE number = ANY (ARRAY(
            SELECT oldest.number FROM unnest($1::text[], $2::bigint[]) AS excess (project_id, count),
            LATERAL (
                SELECT number FROM volcano_locks.hold WHERE hold.project_id = excess.project_id AND ended_at_ms <= $3
                ORDER BY ended_at_ms LIMIT excess.count) AS oldest
            LIMIT $4)) RETURNING 1
    ) SELECT count(*) FROM gone"""


async def read_history(transaction: Transaction, query: HistoryQuery, clock: DatabaseClock) -> HistoryPage:
    """The page. The records are read before the entries (`history_pages`). Raises as `clock.check`."""
    now_ms = await clock.now_ms(transaction, {})
    if query.key is not None:
        rows = await transaction.fetch(_RECORD, query.project_id, query.key)
        record = keyed_record(rows[0])[1] if rows else None
        values = (query.project_id, query.key, ALL_TOKENS, LOCK_ENTRIES_READ)
        stored = [entry for _key, entry in _entries(await transaction.fetch(_OF_LOCK, *values))]
        return lock_page(query, record, stored, now_ms, clock.history)
    begin, end = scanned_keys(query)
    rows = await transaction.fetch(_RECORDS, query.project_id, begin, end, SCAN_ENTRIES)
    entries = await _scan(transaction, query, begin, end)
    return locks_page(query, list(map(keyed_record, rows)), entries, now_ms, clock.history)


async def _scan(transaction: Transaction, query: HistoryQuery, begin: str, end: str) -> list[Keyed]:
    """The first SCAN_ENTRIES entries after `query.after`."""
    found: list[Keyed] = []
    past = ""
    if query.after is not None:
        past, token = query.after
        values = (query.project_id, past, ALL_TOKENS, ENTRIES_PER_LOCK_MAX)
        of_lock = _entries(await transaction.fetch(_OF_LOCK, *values))
        found = [one for one in of_lock if one[1].fencing_token < token]
    left = SCAN_ENTRIES - len(found)
    return found + _entries(await transaction.fetch(_OF_LOCKS, query.project_id, past, begin, end, left))


async def trim(transaction: Transaction, locks: Iterable[RecordKey]) -> None:
    """Delete the oldest entries of these locks past ENTRIES_PER_LOCK_MAX."""
    projects, keys = zip(*locks, strict=True)
    await transaction.fetch(TRIM, list(projects), list(keys))


async def delete_old(transaction: Transaction, now_ms: int, *, kept_days: int, limit: int, entries_max: int) -> int:
    """Delete up to `limit` entries that are too old, or the oldest past their project's share; returns how many, 0 if
    another node purges now. Entries are counted only if the numbers of the rows say that there may be too many.
    """
    if not (await transaction.fetch(_TAKE_TURN, _PURGER))[0][0]:
        return 0
    of_each = {row[0]: limit for row in await transaction.fetch(_PROJECTS)}
    gone = await _delete_oldest(transaction, of_each, now_ms - kept_days * DAY_MS, limit)
    if (await transaction.fetch(_SPAN))[0][0] <= entries_max:
        return gone
    counts = {str(row[0]): int(row[1]) for row in await transaction.fetch(_COUNTS)}
    excess = past_equal_share(counts, entries_max)
    return gone + await _delete_oldest(transaction, excess, INSTANT_MS_MAX, limit - gone)


async def _delete_oldest(transaction: Transaction, of_each: Mapping[str, int], until_ms: int, limit: int) -> int:
    """Delete entries that ended up to `until_ms`: so many of each project, the oldest first, and `limit` in all.

    One statement, however many projects there are.
    """
    rows = await transaction.fetch(_DELETE_OLDEST, list(of_each), list(of_each.values()), until_ms, limit)
    return int(rows[0][0])


def _entries(rows: Sequence[Row]) -> list[Keyed]:
    decoded = ((LockKey(key), entry_in(text)) for key, text in rows)
    return [(key, entry) for key, entry in decoded if entry is not None]
