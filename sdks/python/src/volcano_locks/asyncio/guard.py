"""The guard of an `async with` block."""

from math import inf

from volcano_locks.asyncio.renewer import sleep_while_held
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
        hold, clock = self._hold, self._clock
        until = inf if timeout is None else clock.now() + timeout
        while hold.not_held_error() is None and clock.now() < until:
            await sleep_while_held(hold, clock, min(until, hold.deadline()))
        return hold.not_held_error() is not None
