"""The client's clock: monotonic seconds that include the time in which the machine is suspended (SDK-4).

A lease expires on the server even while this machine is suspended. `CLOCK_MONOTONIC` stops then on Linux, so a holder
would trust its lease for too long; `CLOCK_BOOTTIME` does not stop. All waiting goes through `Clock`, so tests move time
instead of sleeping.

Limit: a pause of the process is noticed only when the process runs again.
"""

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

T = TypeVar("T")

SLEEP_SECONDS_MAX = 2.0
"""Longest single timer: the event loop's timers stop in suspend and overflow on distant instants."""


class Clock(Protocol):
    """The time source of a client. `now()` may be called from any thread."""

    def now(self) -> float:
        """Seconds since a fixed instant; never decreases."""

    async def wait(self, until: float, signal: "asyncio.Future[Any] | None" = None) -> None:
        """Return when `now() >= until` or `signal` is done, whichever is first. Does not change `signal`."""

    async def within(self, until: float, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`; when `now() >= until`, cancel it and raise `TimeoutError`."""

    async def pause(self, seconds: float) -> None:
        """Pause before the caller's next attempt. A test's clock moves itself here."""

    def watch(self, task: "asyncio.Task[Any]") -> None:
        """Register a background task. A test's clock waits until it sleeps in `wait`."""


class SystemClock:
    """The real clock."""

    def now(self) -> float:
        return _now()

    async def wait(self, until: float, signal: "asyncio.Future[Any] | None" = None) -> None:
        while (remaining := until - _now()) > 0 and not (signal and signal.done()):
            delay = min(remaining, SLEEP_SECONDS_MAX)
            if signal is None:
                await asyncio.sleep(delay)
            else:
                await asyncio.wait((signal,), timeout=delay)

    async def within(self, until: float, work: Coroutine[Any, Any, T]) -> T:
        # In the caller's own task: a task per request would cost as much as sending it.
        loop = asyncio.get_running_loop()
        limit = asyncio.timeout(None)
        timer: asyncio.TimerHandle

        def check() -> None:
            nonlocal timer
            remaining = until - _now()
            if remaining > 0:
                timer = loop.call_later(min(remaining, SLEEP_SECONDS_MAX), check)
            else:
                limit.reschedule(loop.time())

        async with limit:
            timer = loop.call_later(min(max(until - _now(), 0), SLEEP_SECONDS_MAX), check)
            try:
                return await work
            finally:
                timer.cancel()

    async def pause(self, seconds: float) -> None:
        await self.wait(_now() + seconds)

    def watch(self, task: "asyncio.Task[Any]") -> None:
        """Nothing to do."""


def _boot_seconds() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


_now = _boot_seconds if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
