"""The wait queue of one lock on one node: its waiters in order of arrival, and when to recheck it."""

from typing import Final

from ..ports.clock import Timer
from ..rules.lease import Held
from .waiter import Waiter

RETRY_MS_MIN: Final = 50


class WaitQueue:
    """`waiters` are by the digest of their owner token. `failing`: the outcome of its last batch is unknown."""

    __slots__ = (
        "expiry_timer", "failing", "free_at_ms", "lease", "recheck_submitted", "request_count", "retry_ms",
        "retry_timer", "waiters", "yielding",
    )  # fmt: skip

    def __init__(self) -> None:
        self.waiters: Final[dict[bytes, Waiter]] = {}
        self.request_count = 0  # waiters with a request
        self.expiry_timer: Timer | None = None
        self.free_at_ms = 0  # on this node's clock
        self.lease: Held | None = None  # that blocked the waiters in the last batch
        self.retry_timer: Timer | None = None
        self.retry_ms = RETRY_MS_MIN
        self.failing = False
        self.recheck_submitted = False  # and in no batch yet
        self.yielding = False

    def cancel_timers(self) -> None:
        for timer in (self.expiry_timer, self.retry_timer):
            if timer is not None:
                timer.cancel()
