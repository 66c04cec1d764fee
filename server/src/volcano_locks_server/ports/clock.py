"""The port of time, and the system's clock.

`Clock.now_ms()` is UTC wall time in whole milliseconds and never goes backwards. `SystemClock` reads the wall clock
once and then counts with a monotonic clock that includes suspended time (LEASE-1), so that setting the machine's date
changes no lease. If the wall clock is wrong at the start, it stays wrong until a restart; a store refuses a clock that
is behind the newest instant it has stored.

`Clock.call_in` sets timers, which a test fires by moving its clock.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final, Protocol

TIMER_STEP_MS: Final = 15_000


class Timer(Protocol):
    """A timer that was set by `Clock.call_in`."""

    def cancel(self) -> None:
        """Cancel the timer. Has no effect if it has fired or was cancelled."""
        ...


class Clock(Protocol):
    """The time of a store that has no clock of its own."""

    def now_ms(self) -> int:
        """Milliseconds since 1970, UTC; never less than before."""
        ...

    def call_in(self, ms: int, call: Callable[[], None], *, slack_ms: int = 0) -> Timer:
        """Call once in the running event loop after `ms` milliseconds of this clock, at most `slack_ms` later.

        Slack lets many timers fire together.
        """
        ...


def _steady_ns() -> int:
    """Nanoseconds of the monotonic clock, including suspended time if the system can count it."""
    return time.clock_gettime_ns(_STEADY)


_STEADY: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """The machine's wall clock, read once and then continued by its monotonic clock."""

    __slots__ = ("_steady_ns", "_wall_minus_steady_ns")

    def __init__(self, wall_ns: Callable[[], int] = time.time_ns, steady_ns: Callable[[], int] = _steady_ns) -> None:
        self._steady_ns: Final = steady_ns
        self._wall_minus_steady_ns: Final = wall_ns() - steady_ns()

    def now_ms(self) -> int:
        return (self._wall_minus_steady_ns + self._steady_ns()) // 1_000_000

    def call_in(self, ms: int, call: Callable[[], None], *, slack_ms: int = 0) -> Timer:
        return _SteppedTimer(self, self.now_ms() + ms, call, max(1, slack_ms))


class _SteppedTimer:
    """A timer that sleeps at most TIMER_STEP_MS at once, because the loop's clock stops while the machine is suspended.

    Sleeps end at multiples of `step_ms`, so that timers with the same slack wake together.
    """

    __slots__ = ("_call", "_clock", "_due_ms", "_next", "_step_ms")

    def __init__(self, clock: SystemClock, due_ms: int, call: Callable[[], None], step_ms: int) -> None:
        self._clock: Final = clock
        self._due_ms: Final = -(-due_ms // step_ms) * step_ms
        self._step_ms: Final = step_ms
        self._call: Final = call
        self._next = self._sleep(clock.now_ms())

    def cancel(self) -> None:
        self._next.cancel()

    def _sleep(self, now_ms: int) -> asyncio.TimerHandle:
        end_ms = min(self._due_ms, (now_ms + TIMER_STEP_MS) // self._step_ms * self._step_ms)
        return asyncio.get_running_loop().call_later(max(1, end_ms - now_ms) / 1_000, self._wake)

    def _wake(self) -> None:
        now_ms = self._clock.now_ms()
        if now_ms >= self._due_ms:
            self._call()
        else:
            self._next = self._sleep(now_ms)
