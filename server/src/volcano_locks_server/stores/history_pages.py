"""Builds pages of the history from records and stored entries, in the same way for every store.

A store reads the records before the entries, or both at one moment: a hold that ends in between then has both, and the
stored entry counts. Keys are ASCII, so character order is byte order.

- Of one lock: its record, and its entries, the latest first, at most LOCK_ENTRIES_READ.
- Of several locks: the first `SCAN_ENTRIES` records from the key of `after` on, and as many entries after `after`. Of
  the lock of `after` they are among its last ENTRIES_PER_LOCK_MAX.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from ..ports.lock_store import EndedHold, EntryPosition, HistoryPage, HistoryQuery, RecordKey
from ..rules.clock_history import ClockHistory
from ..rules.history import ENTRIES_PER_LOCK_MAX, entry_of, held_times
from ..rules.hold import HoldEntry
from ..rules.lease import Damaged, StoredRecord
from ..rules.values import LockKey

SCAN_ENTRIES: Final = 1_000
TRIM_EVERY: Final = 50  # entries of a lock
TRIMMED_LOCKS_MAX: Final = 10_000
LOCK_ENTRIES_READ: Final = ENTRIES_PER_LOCK_MAX + 1
ALL_TOKENS: Final = 2**62  # above every fencing token
_ABOVE_ALL: Final = "~"  # sorts after every character of a key

Keyed = tuple[LockKey, HoldEntry]


def scanned_keys(query: HistoryQuery) -> tuple[str, str]:
    """The keys of the records to scan for a page of several locks: from the first, up to but excluding the second."""
    after = "" if query.after is None else query.after.key
    return max(query.prefix, after), query.prefix + _ABOVE_ALL


class TrimTurns:
    """When this process deletes a lock's oldest entries past ENTRIES_PER_LOCK_MAX: with every TRIM_EVERY-th entry that
    it adds. Counting the lock's entries each time would cost more than the entry itself.
    """

    def __init__(self) -> None:
        self._added: Final[OrderedDict[RecordKey, int]] = OrderedDict()  # a dict finds its first key slowly

    def due(self, ended: Iterable[EndedHold]) -> list[RecordKey]:
        """Count these entries; returns the locks whose turn it is."""
        due = []
        for lock, _entry in ended:
            added = self._added.pop(lock, 0) + 1
            if added >= TRIM_EVERY:
                due.append(lock)
                continue
            self._added[lock] = added
            if len(self._added) > TRIMMED_LOCKS_MAX:
                self._added.popitem(last=False)
        return due


def lock_page(
    query: HistoryQuery,
    record: StoredRecord | None,
    stored: Iterable[HoldEntry],
    now_ms: int,
    clock_history: ClockHistory,
) -> HistoryPage:
    """The page of the lock `query.key`."""
    assert query.key is not None
    entries = {entry.fencing_token: entry for entry in stored}
    current = None if record is None else _entry(record, now_ms, clock_history)
    if current is not None:
        entries.setdefault(current.fencing_token, current)
    latest = sorted(entries.values(), key=lambda entry: -entry.fencing_token)[:ENTRIES_PER_LOCK_MAX]
    keyed = [(query.key, entry) for entry in latest]
    return _page(query, keyed, now_ms)._replace(held=held_times(latest))


def locks_page(
    query: HistoryQuery,
    records: Sequence[tuple[LockKey, StoredRecord]],
    stored: Sequence[Keyed],
    now_ms: int,
    clock_history: ClockHistory,
) -> HistoryPage:
    """The page of several locks."""
    bounds = []
    if len(records) >= SCAN_ENTRIES:
        bounds.append(EntryPosition(records[-1][0], 0))
    if len(stored) >= SCAN_ENTRIES:
        bounds.append(_position(stored[-1]))
    entries = {_position(keyed): keyed for keyed in _latest(stored)}
    for key, record in records:
        entry = _entry(record, now_ms, clock_history)
        if entry is not None:
            entries.setdefault(EntryPosition(key, entry.fencing_token), (key, entry))
    bound = min(bounds, key=_order, default=None)
    ordered = [entries[position] for position in sorted(entries, key=_order)]
    if bound is not None:
        ordered = [keyed for keyed in ordered if _order(_position(keyed)) <= _order(bound)]
    return _page(query, ordered, now_ms, bound)


def _latest(stored: Iterable[Keyed]) -> Iterator[Keyed]:
    """Without the entries of a lock past ENTRIES_PER_LOCK_MAX, which the store has yet to delete."""
    counts: Counter[LockKey] = Counter()
    for keyed in stored:
        counts[keyed[0]] += 1
        if counts[keyed[0]] <= ENTRIES_PER_LOCK_MAX:
            yield keyed


def _page(
    query: HistoryQuery, ordered: Sequence[Keyed], now_ms: int, bound: EntryPosition | None = None
) -> HistoryPage:
    after = None if query.after is None else _order(query.after)
    matching = [
        keyed for keyed in ordered if (after is None or _order(_position(keyed)) > after) and query.period.has(keyed[1])
    ]
    shown = matching[: query.limit]
    return HistoryPage(shown, now_ms, _position(shown[-1]) if len(matching) > query.limit else bound)


def _entry(record: StoredRecord, now_ms: int, clock_history: ClockHistory) -> HoldEntry | None:
    return None if isinstance(record, Damaged) else entry_of(clock_history.present(record, now_ms), now_ms)


def _position(keyed: Keyed) -> EntryPosition:
    return EntryPosition(keyed[0], keyed[1].fencing_token)


def _order(position: EntryPosition) -> tuple[str, int]:
    return position.key, -position.fencing_token
