"""Compares a store's clock with this node's own, which no one can set, to recognise a jump (LEASE-17).

The instant of the store's clock was read between a request and its response. So its distance to the node's clock is
known within the duration of the request, and the smallest upper bound that was ever found counts. A jump is what a
reading exceeds that bound by. Two clocks run at slightly different rates, so a reading may exceed the bound by a
DRIFT_SHARE of the time that has passed. Jumps that are recorded in the store are subtracted first, so each one is
recognised by one node only.

So whenever a node decides, the instant that it decides by is not ahead of real time by more than JUMP_MS_MIN and that
drift, which is less than the grace. A slow response only means that more time has passed until the decision.
"""

from math import ceil
from typing import Final

from ..ports.clock import Clock
from ..rules.clock_history import JUMP_MS_MIN, ClockHistory

DRIFT_SHARE: Final = 2_000  # a clock may run faster by a two-thousandth: 0.3 s in HOLD_MS_MAX, less than the grace


class ClockComparison:
    """`node` is this node's clock. Call `asked_ms` before and `jump_ms` after each reading of the store's clock."""

    def __init__(self, node: Clock) -> None:
        self._node: Final = node
        self._distance_max_ms: float | None = None
        self._compared_at_ms = 0

    def asked_ms(self) -> int:
        """To be passed to `jump_ms`."""
        return self._node.boot().up_ms

    def jump_ms(self, store_ms: int, history: ClockHistory, asked_ms: int) -> int:
        """How far the store's clock jumped without a record in `history`; 0 if less than JUMP_MS_MIN.

        Only for a reading that is not behind an earlier one. A jump is returned again until it is recorded.
        """
        up_ms, steady_ms = self._node.boot().up_ms, store_ms - history.jumps_ms
        if self._distance_max_ms is None:
            self._distance_max_ms, self._compared_at_ms = steady_ms - asked_ms, up_ms
            return 0
        allowed_ms = self._distance_max_ms + (up_ms - self._compared_at_ms) / DRIFT_SHARE
        if steady_ms - up_ms - allowed_ms >= JUMP_MS_MIN:
            return ceil(steady_ms - up_ms - self._distance_max_ms)
        self._distance_max_ms, self._compared_at_ms = min(allowed_ms, steady_ms - asked_ms), up_ms
        return 0
