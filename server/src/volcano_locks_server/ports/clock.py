"""Time comes in through this door.

`Clock.now_ms()` is wall time in whole milliseconds, in UTC, and never goes backwards. `SystemClock` reads the
wall once and then counts with a clock that runs on through suspend and that nobody can step (LEASE-1): setting
the machine's date changes no lease. What it does not promise: a wall clock that was wrong at the start stays
wrong until a restart; the store compares it with the newest instant it remembers and refuses to go back.

`Clock.call_in` is how something is done later: under a clock that a test moves, it is done when the test says so.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final, Protocol

TIMER_BITE_MS: Final = 15_000


class Timer(Protocol):
    """Something that is to be done later."""

    def cancel(self) -> None:
        """Do it no more. No error if it was done, or cancelled before."""
        ...


class Clock(Protocol):
    """The time authority of a store that has no clock of its own."""

    def now_ms(self) -> int:
        """Milliseconds since 1970, UTC; never less than the answer before."""
        ...

    def call_in(self, ms: int, call: Callable[[], None], *, slack_ms: int = 0) -> Timer:
        """Call once in the running event loop, when `ms` milliseconds of this clock have passed, never sooner, and up
        to `slack_ms` later, so that many that may be late are done together.
        """
        ...


def _steady_ns() -> int:
    """Nanoseconds of a clock that counts suspended time too where the system has one."""
    return time.clock_gettime_ns(_STEADY)


_STEADY: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """The machine's wall clock, read once and carried on by its steady clock."""

    __slots__ = ("_steady_ns", "_wall_minus_steady_ns")

    def __init__(self, wall_ns: Callable[[], int] = time.time_ns, steady_ns: Callable[[], int] = _steady_ns) -> None:
        self._steady_ns: Final = steady_ns
        self._wall_minus_steady_ns: Final = wall_ns() - steady_ns()

    def now_ms(self) -> int:
        return (self._wall_minus_steady_ns + self._steady_ns()) // 1_000_000

    def call_in(self, ms: int, call: Callable[[], None], *, slack_ms: int = 0) -> Timer:
        return _InBites(self, self.now_ms() + ms, call, max(1, slack_ms))


class _InBites:
    """A timer in bites of TIMER_BITE_MS at the most: the loop's own clock stands still while the machine sleeps.

    Bites end at whole multiples of `step_ms`, where those of all other timers of that step do.
    """

    __slots__ = ("_call", "_clock", "_due_ms", "_next", "_step_ms")

    def __init__(self, clock: SystemClock, due_ms: int, call: Callable[[], None], step_ms: int) -> None:
        self._clock: Final = clock
        self._due_ms: Final = -(-due_ms // step_ms) * step_ms
        self._step_ms: Final = step_ms
        self._call: Final = call
        self._next = self._bite(clock.now_ms())

    def cancel(self) -> None:
        self._next.cancel()

    def _bite(self, now_ms: int) -> asyncio.TimerHandle:
        end_ms = min(self._due_ms, (now_ms + TIMER_BITE_MS) // self._step_ms * self._step_ms)
        return asyncio.get_running_loop().call_later(max(1, end_ms - now_ms) / 1_000, self._look)

    def _look(self) -> None:
        now_ms = self._clock.now_ms()
        if now_ms >= self._due_ms:
            self._call()
        else:
            self._next = self._bite(now_ms)
