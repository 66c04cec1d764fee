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
    yielding: bool = False

    def cancel_timers(self) -> None:
        for timer in (self.expiry_timer, self.retry_timer):
            if timer is not None:
                timer.cancel()
