"""Builds pages of lock records, in the same way for every store.

Keys are ASCII, so character order is byte order. A store that scans records in key order passes the first
`scan_limit(query)` records of `key_range(query)`, whatever their state. A store that finds records by state passes
`limit + 1` of them. Either way the work for a page is bounded (LIST-4).
"""

from collections.abc import Iterable
from typing import Final

from ..ports.lock_store import LockPage, LockQuery
from ..rules.clock_history import ClockHistory
from ..rules.lease import Damaged, LockRecord, StoredRecord, blocks_others
from ..rules.values import LockKey

SCAN_RECORDS_MAX: Final = 1_000

_BELOW_ALL: Final = " "  # sorts before every character of a key
_ABOVE_ALL: Final = "~"  # sorts after every character of a key


def key_range(query: LockQuery) -> tuple[str, str]:
    """The keys to scan: from the first, up to but excluding the second."""
    begin = query.after + _BELOW_ALL if query.after else ""
    return max(query.prefix, begin), query.prefix + _ABOVE_ALL


def scan_limit(query: LockQuery) -> int:
    """How many records to read for one page.

    One more than the page holds shows that there is another page. A query by state may have to pass over more records.
    """
    return query.limit + 1 if query.held is None else max(query.limit + 1, SCAN_RECORDS_MAX)


def build_page(
    query: LockQuery,
    scanned: Iterable[tuple[LockKey, StoredRecord]],
    now_ms: int,
    *,
    history: ClockHistory,
    requested: int,
) -> LockPage:
    """The page. `scanned`: the first `requested` records of the range, in any order; fewer if the range ends."""
    found = sorted(scanned, key=lambda row: row[0])
    matching: list[tuple[LockKey, LockRecord]] = []
    damaged: list[tuple[LockKey, Damaged]] = []
    for key, record in found:
        if isinstance(record, Damaged):
            damaged.append((key, record))
            continue
        presented = history.present(record, now_ms)
        if query.held in (None, blocks_others(presented, now_ms)):
            matching.append((key, presented))
    records = matching[: query.limit]
    next_after = None
    if len(matching) > query.limit:
        next_after = records[-1][0]
    elif len(found) >= requested:
        next_after = found[-1][0]
    return LockPage(records, now_ms, next_after, damaged)
