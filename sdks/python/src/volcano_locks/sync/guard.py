"""The guard of a `with` block."""

from math import inf

from volcano_locks.clock import Clock
from volcano_locks.holding.guard import BaseGuard
from volcano_locks.holding.hold import Hold
from volcano_locks.sync.call import Signal, sleep


class LockGuard(BaseGuard):
    """The held lock in the body of `with client.locks.with_lock(…)`. May be used from any thread."""

    def __init__(self, hold: Hold, clock: Clock) -> None:
        super().__init__(hold)
        self._clock = clock

    def wait_lost(self, timeout: float | None = None) -> bool:
        """Block until the loss, the end of the block, or `timeout` seconds; return `lost`."""
        hold, clock = self._hold, self._clock
        until = inf if timeout is None else clock.now() + timeout
        while hold.not_held_error() is None and clock.now() < until:
            signal = Signal()
            forget = hold.on_end(signal.set)
            try:
                sleep(clock, min(until, hold.deadline()), signal)
            finally:
                forget()
        return hold.not_held_error() is not None
