"""Sharing a lock with the lines of other nodes, of which this one knows only that they wait (WAIT-10).

A node that knows of others grants the lock to its own line HANDOFFS_IN_A_ROW_MAX times in a row. Then it leaves it
alone for YIELD_MS, which is long for whoever hears that it is free. If nobody came, it goes on.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from ..ports.clock import Clock
from ..ports.lock_store import RecordKey
from ..rules.lease import Granted
from .handoff import Report
from .waiter import Line

HANDOFFS_IN_A_ROW_MAX: Final = 8
YIELD_MS: Final = 100
LOCKS_MAX: Final = 10_000  # of which it is remembered whose turn it is; of one beyond, the count begins anew


class _InARow(NamedTuple):
    """How many grants to this node's waiters followed one another, and the fencing token of the last."""

    grants: int
    fencing_token: int


class Sharing:
    """Whose turn it is: this node's, or the others'. `look` is called with a lock that was left to them long enough."""

    def __init__(self, clock: Clock, look: Callable[[RecordKey], None]) -> None:
        self.others_wait: Callable[[RecordKey], bool] = lambda _key: False
        """Whether somebody waits for that lock on another node, as far as is known."""
        self._clock: Final = clock
        self._look: Final = look
        self._in_a_row: Final[dict[RecordKey, _InARow]] = {}

    def grants_left(self, key: RecordKey, line: Line) -> int | None:
        """To how many of the line the lock may be granted now; None where there is no limit."""
        if line.yielding:
            return 0
        if not self.others_wait(key):
            return None
        return HANDOFFS_IN_A_ROW_MAX - (self._in_a_row[key].grants if key in self._in_a_row else 0)

    def count(self, key: RecordKey, report: Report, fencing_token: int) -> None:
        """How often this node's waiters got the lock since another node's had it; no matter if none waits there."""
        before = self._in_a_row.pop(key, None)
        if not self.others_wait(key):
            return
        grants = sum(
            one.key == key and isinstance(one.outcome, Granted) and one.outcome.how != "repeated"
            for one in report.served
        )
        if grants:
            self._in_a_row[key] = _InARow(grants + (0 if before is None else before.grants), fencing_token)
        elif before is not None and before.fencing_token == fencing_token:
            self._in_a_row[key] = before
        if len(self._in_a_row) > LOCKS_MAX:
            del self._in_a_row[next(iter(self._in_a_row))]  # the one that was longest without a grant

    def leave_to_others(self, key: RecordKey, line: Line) -> None:
        """The lock is free, and for YIELD_MS nobody of this node gets it."""
        line.yielding = True
        if line.retry is not None:
            line.retry.cancel()
        line.retry = self._clock.call_in(YIELD_MS, lambda: self._go_on(key, line))

    def _go_on(self, key: RecordKey, line: Line) -> None:
        line.retry = None
        line.yielding = False
        self._in_a_row.pop(key, None)
        self._look(key)
