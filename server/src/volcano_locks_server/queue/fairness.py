"""Fairness between nodes: yield a lock after N grants so that waiters of other nodes get a turn (WAIT-10).

If requests wait for a lock on other nodes, this node grants it to its own waiters HANDOFFS_IN_A_ROW_MAX times in a row.
Then it pauses for YIELD_MS so that a peer can acquire. If no peer did, it continues. All that a node knows of a peer is
which locks have waiters there.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from ..ports.clock import Clock
from ..ports.lock_store import RecordKey
from ..rules.lease import Granted
from .handoff import StepReport
from .wait_queue import WaitQueue

HANDOFFS_IN_A_ROW_MAX: Final = 8
YIELD_MS: Final = 100
LOCKS_MAX: Final = 10_000  # locks with a count; beyond them the oldest count is dropped


class _InARow(NamedTuple):
    """Consecutive grants to this node's waiters, and the fencing token of the last."""

    grants: int
    fencing_token: int


class Fairness:
    """Counts consecutive grants. `recheck` is called with a lock when its pause ends."""

    def __init__(self, clock: Clock, recheck: Callable[[RecordKey], None]) -> None:
        self.others_wait: Callable[[RecordKey], bool] = lambda _key: False
        """Whether requests are known to wait for that lock on other nodes."""
        self._clock: Final = clock
        self._recheck: Final = recheck
        self._in_a_row: Final[dict[RecordKey, _InARow]] = {}

    def grants_left(self, key: RecordKey, queue: WaitQueue) -> int | None:
        """To how many waiters of this node the lock may be granted now; None if there is no limit."""
        if queue.yielding:
            return 0
        if not self.others_wait(key):
            return None
        return HANDOFFS_IN_A_ROW_MAX - (self._in_a_row[key].grants if key in self._in_a_row else 0)

    def count_grants(self, key: RecordKey, report: StepReport, fencing_token: int) -> None:
        """Add the grants of `report` to the grants in a row. Drop the count if no other node has waiters."""
        before = self._in_a_row.pop(key, None)
        if not self.others_wait(key):
            return
        grants = sum(
            served.key == key and isinstance(served.outcome, Granted) and served.outcome.how != "repeated"
            for served in report.served
        )
        if grants:
            self._in_a_row[key] = _InARow(grants + (0 if before is None else before.grants), fencing_token)
        elif before is not None and before.fencing_token == fencing_token:
            self._in_a_row[key] = before
        if len(self._in_a_row) > LOCKS_MAX:
            del self._in_a_row[next(iter(self._in_a_row))]

    def yield_to_others(self, key: RecordKey, queue: WaitQueue) -> None:
        """The lock is free, and no waiter of this node gets it for YIELD_MS."""
        queue.yielding = True
        if queue.retry_timer is not None:
            queue.retry_timer.cancel()
        queue.retry_timer = self._clock.call_in(YIELD_MS, lambda: self._resume(key, queue))

    def _resume(self, key: RecordKey, queue: WaitQueue) -> None:
        queue.retry_timer = None
        queue.yielding = False
        self._in_a_row.pop(key, None)
        self._recheck(key)
