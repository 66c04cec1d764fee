"""Time comes in through this door.

`Clock.now_ms()` is wall time in whole milliseconds, in UTC, and never goes backwards. `SystemClock` reads the
wall once and then counts with a clock that runs on through suspend and that nobody can step (LEASE-1): setting
the machine's date changes no lease. What it does not promise: a wall clock that was wrong at the start stays
wrong until a restart; the store compares it with the newest instant it remembers and refuses to go back.
"""

import time
from collections.abc import Callable
from typing import Final, Protocol


class Clock(Protocol):
    """The time authority of a store that has no clock of its own."""

    def now_ms(self) -> int:
        """Milliseconds since 1970, UTC; never less than the answer before."""
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
