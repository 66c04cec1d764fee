"""The client's clock: monotonic seconds that include the time in which the machine is suspended (SDK-4).

A lease expires on the server even while this machine is suspended. `CLOCK_MONOTONIC` stops then on Linux, so a holder
would trust its lease for too long; `CLOCK_BOOTTIME` does not stop. All waiting is limited by a `Clock`, so tests move
time instead of sleeping.

Limit: a pause of the process is noticed only when the process runs again.
"""

import time
from collections.abc import Callable
from typing import Protocol

CHECK_SECONDS_MAX = 2.0
"""Longest time between two looks at the clock: timers stop while the machine is suspended, and long timers overflow."""


class Wakeup(Protocol):
    """What ends a wait. Both methods may be called from any thread."""

    def set(self) -> None:
        """End the wait."""

    def is_set(self) -> bool:
        """Whether the wait was ended."""


class Clock(Protocol):
    """The time source of a client. Its methods may be called from any thread."""

    def now(self) -> float:
        """Seconds since a fixed instant; never decreases."""

    def timeout(self, until: float) -> float:
        """Real seconds to block before looking at `now()` again; 0 if `now() >= until`."""

    def alarm(self, until: float, wakeup: Wakeup, *, asleep: bool = False) -> Callable[[], None]:
        """Set `wakeup` when the clock is moved to `until`; return what cancels it. Only a test's clock is moved.

        `asleep`: the current thread or task does nothing else until `wakeup` is set.
        """

    def skip_pause(self, seconds: float) -> bool:
        """Whether the pause before a caller's next attempt is over. A test's clock moves itself and returns True."""

    def watch(self, renewer: object, ended: Callable[[], bool]) -> None:
        """Register a thread or task that renews. A test's clock waits until it sleeps (`alarm`) or has ended."""


class SystemClock:
    """The real clock."""

    def now(self) -> float:
        return _now()

    def timeout(self, until: float) -> float:
        return min(max(until - _now(), 0.0), CHECK_SECONDS_MAX)

    def alarm(self, until: float, wakeup: Wakeup, *, asleep: bool = False) -> Callable[[], None]:  # noqa: ARG002
        return _nothing

    def skip_pause(self, seconds: float) -> bool:  # noqa: ARG002
        return False

    def watch(self, renewer: object, ended: Callable[[], bool]) -> None:
        """Nothing to do."""


def _nothing() -> None:
    """No alarm to cancel: the real clock is looked at again after `timeout`."""


def _boot_seconds() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


_now = _boot_seconds if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
