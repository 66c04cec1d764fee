"""Counts the held locks in slices between batches, so that a batch waits for at most one slice.

Batches that commit between two slices change what was counted already, and what is still to be counted. So they report
each replaced record to the scan, which corrects its count. The result is the number of held locks at the last slice,
except that leases which expired since the first slice still count, and so do those that were held back by a jump of the
clock (LEASE-17) at the first slice.
"""

from typing import Final

import apsw

from ...rules.clock_history import NO_HISTORY, ClockHistory
from ...rules.lease import GRACE_MS, Damaged, Free, LockRecord, StoredRecord
from ..lock_rows import FREE_FROM, HeldBounds, held_where

SLICE_ROWS: Final = 10_000  # about a millisecond
LAST_MS: Final = 2**63 - 1

EDGE: Final = f"SELECT {FREE_FROM} FROM lock WHERE {FREE_FROM} > ? ORDER BY {FREE_FROM} LIMIT 1 OFFSET ?"
HELD_BACK: Final = f"SELECT count(*) FROM lock WHERE {held_where('?1', '?2', '?3', '?4')} AND {FREE_FROM} <= ?2"
COUNT: Final = f"SELECT count(*) FROM lock WHERE {FREE_FROM} > ? AND {FREE_FROM} <= ?"


class HeldScan:
    """One count, begun at `now_ms`. Every call is on the connection's thread; `step` until `done`.

    The scan goes through the index of the instants at which locks become free, up to `_scanned_ms` so far. The index
    also has the locks that were released after the scan began, which do not count.
    """

    def __init__(self, connection: apsw.Connection, now_ms: int, history: ClockHistory = NO_HISTORY) -> None:
        self._connection: Final = connection
        self._began_ms: Final = now_ms
        self._scanned_ms = now_ms
        self.count = int(connection.execute(HELD_BACK, HeldBounds.at(now_ms, history)).get)

    @property
    def done(self) -> bool:
        return self._scanned_ms == LAST_MS

    def step(self) -> None:
        """Count one slice. Locks that become free at the same instant are in one slice. Raises apsw.Error."""
        row = self._connection.execute(EDGE, (self._scanned_ms, SLICE_ROWS - 1)).fetchone()
        edge_ms = LAST_MS if row is None else min(int(row[0]), LAST_MS)  # that of a damaged record may be later
        self.count += int(self._connection.execute(COUNT, (self._scanned_ms, edge_ms)).get)
        self._scanned_ms = edge_ms

    def replaced(self, old: StoredRecord | None, new: LockRecord) -> None:
        """A committed batch replaced `old` by `new`."""
        self.count += self._correction(new) - self._correction(old)

    def _correction(self, record: StoredRecord | None) -> int:
        """What the record adds to the count, beyond the slices that are still to come."""
        if record is None or isinstance(record, Damaged):
            return 0  # if the scan counted a damaged record, this one count is too high by 1
        is_free = isinstance(record, Free)
        free_from_ms = record.freed_at_ms if isinstance(record, Free) else record.expires_at_ms + GRACE_MS
        if free_from_ms <= self._began_ms:
            return 0
        return (free_from_ms <= self._scanned_ms) - is_free
