"""The guard of an `async with` block."""

from math import inf

from volcano_locks.asyncio.waiting import LoopWakeup, sleep
from volcano_locks.clock import Clock
from volcano_locks.holding.guard import BaseGuard
from volcano_locks.holding.hold import Hold


class AsyncLockGuard(BaseGuard):
    """The held lock in the body of `async with client.locks.with_lock(…)`. `lost` may be read from any thread."""

    def __init__(self, hold: Hold, clock: Clock) -> None:
        super().__init__(hold)
        self._clock = clock

    async def wait_lost(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109 - on the client's clock
        """Wait until the loss, the end of the block, or `timeout` seconds; return `lost`."""
        hold, clock, ended = self._hold, self._clock, LoopWakeup()
        hold.on_end(ended.set)
        until = inf if timeout is None else clock.now() + timeout
        while hold.not_held_error() is None and clock.now() < until:
            await sleep(clock, min(until, hold.deadline()), ended)
        return hold.not_held_error() is not None
