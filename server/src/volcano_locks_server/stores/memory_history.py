"""The history of the store in memory."""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from ..ports.lock_store import EndedHold, HistoryQuery, RecordKey
from ..rules.history import DAY_MS, ENTRIES_PER_LOCK_MAX
from ..rules.hold import HoldEntry
from ..rules.shares import entries_to_purge
from .history_pages import SCAN_ENTRIES, Keyed, scanned_keys


class MemoryHistory:
    """The entries of ended holds. Each method runs without an await, so it is atomic."""

    def __init__(self) -> None:
        self._entries: Final[dict[tuple[RecordKey, int], HoldEntry]] = {}
        self._tokens: Final[dict[RecordKey, deque[int]]] = {}  # of each lock, the oldest first

    def add(self, ended: Iterable[EndedHold]) -> None:
        for lock, entry in ended:
            self._entries[lock, entry.fencing_token] = entry
            tokens = self._tokens.setdefault(lock, deque())
            tokens.append(entry.fencing_token)
            if len(tokens) > ENTRIES_PER_LOCK_MAX:
                del self._entries[lock, tokens.popleft()]

    def of(self, lock: RecordKey) -> list[HoldEntry]:
        return [self._entries[lock, token] for token in self._tokens.get(lock, ())]

    def scan(self, query: HistoryQuery) -> Sequence[Keyed]:
        """The first SCAN_ENTRIES entries after `query.after`."""
        begin, end = scanned_keys(query)
        locks = sorted(one for one in self._tokens if one.project_id == query.project_id and begin <= one.key < end)
        found: list[Keyed] = []
        for lock in locks:
            tokens = list(self._tokens[lock])
            if query.after is not None and lock.key == query.after.key:
                tokens = tokens[: bisect_left(tokens, query.after.fencing_token)]
            found += [(lock.key, self._entries[lock, token]) for token in reversed(tokens)]
            if len(found) >= SCAN_ENTRIES:
                break
        return found[:SCAN_ENTRIES]

    def purge(self, now_ms: int, *, kept_days: int, limit: int, entries_max: int) -> int:
        """As `LockStore.purge_history`."""
        until_ms = now_ms - kept_days * DAY_MS
        gone = entries_to_purge(
            self._entries,
            lambda one: one[0].project_id,
            lambda one: self._entries[one].ended_at_ms or 0,
            until_ms=until_ms,
            places=entries_max,
            limit=limit,
        )
        for one in gone:
            self._forget(*one)
        return len(gone)

    def delete_project(self, project_id: str) -> None:
        for lock in [lock for lock in self._tokens if lock.project_id == project_id]:
            for token in list(self._tokens[lock]):
                self._forget(lock, token)

    def _forget(self, lock: RecordKey, token: int) -> None:
        del self._entries[lock, token]
        tokens = self._tokens[lock]
        tokens.remove(token)
        if not tokens:
            del self._tokens[lock]
