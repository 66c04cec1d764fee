"""The client's time: seconds on a monotonic clock that goes on counting while the machine sleeps (SDK-4).

A lease runs out on the server whether or not this machine was suspended, so `CLOCK_MONOTONIC` alone, which
stands still in suspend on Linux, would make a holder believe for too long. `CLOCK_BOOTTIME` does not.
Everything that waits goes through `Clock`, so a test moves time and never sleeps.

Not promised: a pause of the process is noticed when the process next runs, not before.
"""

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

T = TypeVar("T")

NAP_SECONDS_MAX = 2.0
"""The event loop's timers stand still in suspend and overflow on far instants; waiting in naps does neither."""


class Clock(Protocol):
    """Where a client reads the time and rests. `now()` may be called from any thread."""

    def now(self) -> float:
        """Seconds since some fixed instant; never backwards."""

    async def wait(self, until: float, signal: "asyncio.Future[Any] | None" = None) -> None:
        """Return once `now() >= until` or `signal` is done, whichever is first. Leaves `signal` alone."""

    async def within(self, until: float, work: Coroutine[Any, Any, T]) -> T:
        """`work`'s result; `TimeoutError` once `now() >= until`, with `work` cancelled."""

    async def pause(self, seconds: float) -> None:
        """Rest before the caller's own next attempt. (A moved clock moves itself here: nobody else would.)"""

    def watch(self, task: "asyncio.Task[Any]") -> None:
        """Tell the clock of a background task. (A moved clock settles when the task rests in `wait`.)"""


class SystemClock:
    """The real clock."""

    def now(self) -> float:
        return _now()

    async def wait(self, until: float, signal: "asyncio.Future[Any] | None" = None) -> None:
        while (left := until - _now()) > 0 and not (signal and signal.done()):
            nap = min(left, NAP_SECONDS_MAX)
            if signal is None:
                await asyncio.sleep(nap)
            else:
                await asyncio.wait((signal,), timeout=nap)

    async def within(self, until: float, work: Coroutine[Any, Any, T]) -> T:
        # In the caller's own task: a task for each request would cost as much as sending it.
        loop = asyncio.get_running_loop()
        limit = asyncio.timeout(None)
        timer: asyncio.TimerHandle

        def look() -> None:
            nonlocal timer
            left = until - _now()
            if left > 0:
                timer = loop.call_later(min(left, NAP_SECONDS_MAX), look)
            else:
                limit.reschedule(loop.time())

        async with limit:
            timer = loop.call_later(min(max(until - _now(), 0), NAP_SECONDS_MAX), look)
            try:
                return await work
            finally:
                timer.cancel()

    async def pause(self, seconds: float) -> None:
        await self.wait(_now() + seconds)

    def watch(self, task: "asyncio.Task[Any]") -> None:
        """Nothing to do: real time does not wait for anyone."""


def _boot_seconds() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


_now = _boot_seconds if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
