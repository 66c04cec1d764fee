"""The wait queue of one lock on one node: its waiters in order of arrival, and when to recheck it."""

from dataclasses import dataclass, field
from typing import Final

from ..ports.clock import Timer
from ..rules.lease import Held
from .waiter import Waiter

RETRY_MS_MIN: Final = 50


@dataclass(slots=True, eq=False)
class WaitQueue:
    """`waiters` are by the digest of their owner token. `failing`: the outcome of its last batch is unknown."""

    waiters: dict[bytes, Waiter] = field(default_factory=dict)
    request_count: int = 0  # waiters with a request
    expiry_timer: Timer | None = None
    free_at_ms: int = 0  # on this node's clock
    lease: Held | None = None  # that blocked the waiters in the last batch
    retry_timer: Timer | None = None
    retry_ms: int = RETRY_MS_MIN
    failing: bool = False
    recheck_submitted: bool = False  # and in no batch yet
    turn_recheck_ms: int = 0
    pause_timer: Timer | None = None
    yields_to: str | None = None  # the node that the lock is left to until `pause_timer` fires
    skipped: frozenset[str] = frozenset()  # nodes that left their turn unused
    blocked_by: int | None = None  # fencing token of the first lease that blocked the waiters since the timed recheck
    overtaken_after: int | None = None  # `blocked_by` of the timed recheck before, until a batch takes it

    def cancel_timers(self) -> None:
        for timer in (self.expiry_timer, self.retry_timer, self.pause_timer):
            if timer is not None:
                timer.cancel()
