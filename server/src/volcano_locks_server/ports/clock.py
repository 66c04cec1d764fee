"""The port of time, and the system's clock.

`Clock.now_ms()` is UTC wall time in whole milliseconds and never goes backwards. `SystemClock` reads the wall clock
once and then counts with a monotonic clock that includes suspended time (LEASE-1), so that setting the machine's date
changes no lease. If the wall clock is wrong at the start, it stays wrong until a restart; a store refuses a clock that
is behind the newest instant it has stored.

`Clock.call_in` sets timers, which a test fires by moving its clock. `boot` and `synchronised_ms` are evidence of how
much time has really passed (LEASE-17).
"""

import asyncio
import ctypes
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple, Protocol, cast

from ..rules.clock_history import ClockMark

TIMER_STEP_MS: Final = 15_000
AGREES_MS: Final = 250
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_TIME_OFFSETS: Final = Path("/proc/self/timens_offsets")
_TIME_ERROR: Final = 5  # the kernel's state of an unsynchronised clock
_STA_UNSYNC: Final = 0x40


class Boot(NamedTuple):
    """How long the machine has been up, suspended time included. No one can set that clock.

    Instants of one `id` can be compared. The id is empty if the system has none.
    """

    id: str
    up_ms: int


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

    def boot(self) -> Boot:
        """The boot of this machine."""
        ...

    def synchronised_ms(self) -> int | None:
        """The machine's wall time if its kernel reports it as synchronised now, else None."""
        ...


def mark_of(clock: Clock, now_ms: int) -> ClockMark:
    """A mark of the instant `now_ms` of a store's clock, taken now on the machine of `clock`."""
    boot, wall_ms = clock.boot(), clock.synchronised_ms()
    agrees = wall_ms is not None and abs(wall_ms - now_ms) <= AGREES_MS
    return ClockMark(now_ms, boot.id, boot.up_ms, agrees)


def _steady_ns() -> int:
    """Nanoseconds of the monotonic clock, including suspended time if the system can count it."""
    return time.clock_gettime_ns(_STEADY)


_STEADY: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


@cache
def _boot_id() -> str:
    """The kernel's id of this boot and the offsets of this process's clocks; empty on a system without such an id."""
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return ""
    with suppress(OSError):
        offsets = _TIME_OFFSETS.read_text().split() if _TIME_OFFSETS.exists() else []
        moved = "".join(f"+{part}" for part in offsets if part.lstrip("-").isdigit() and part != "0")
        return _BOOT_ID.read_text().strip() + moved
    return ""


class _Timex(ctypes.Structure):
    """The kernel's `struct timex`; the fields after `status` are not used here."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("unused", ctypes.c_byte * 512),
    )


@cache
def _adjtimex() -> Callable[[object], int] | None:
    """The C library's function, None on other systems than Linux."""
    with suppress(OSError, AttributeError):
        if sys.platform.startswith("linux"):
            # It returns at once. Each write asks, and giving up the interpreter's lock for it would cost 38 µs, not 3.
            return cast("Callable[[object], int]", ctypes.PyDLL(None).adjtimex)
    return None


def kernel_is_synchronised() -> bool:
    """Whether the kernel reports its wall clock as synchronised; False if the system cannot say."""
    adjtimex, timex = _adjtimex(), _Timex()
    if adjtimex is None:
        return False
    state = adjtimex(ctypes.byref(timex))
    return 0 <= state < _TIME_ERROR and not timex.status & _STA_UNSYNC


class SystemClock:
    """The machine's wall clock, read once and then continued by its monotonic clock."""

    __slots__ = ("_steady_ns", "_wall_minus_steady_ns", "_wall_ns")

    def __init__(self, wall_ns: Callable[[], int] = time.time_ns, steady_ns: Callable[[], int] = _steady_ns) -> None:
        self._wall_ns: Final = wall_ns
        self._steady_ns: Final = steady_ns
        self._wall_minus_steady_ns: Final = wall_ns() - steady_ns()

    def now_ms(self) -> int:
        return (self._wall_minus_steady_ns + self._steady_ns()) // 1_000_000

    def call_in(self, ms: int, call: Callable[[], None], *, slack_ms: int = 0) -> Timer:
        return _SteppedTimer(self, self.now_ms() + ms, call, max(1, slack_ms))

    def boot(self) -> Boot:
        return Boot(_boot_id(), self._steady_ns() // 1_000_000)

    def synchronised_ms(self) -> int | None:
        return self._wall_ns() // 1_000_000 if kernel_is_synchronised() else None


class _SteppedTimer:
    """A timer that sleeps at most TIMER_STEP_MS at once, because the loop's clock stops while the machine is suspended.

    Sleeps end at multiples of `step_ms`, so that timers with the same slack wake together.
    """

    __slots__ = ("_call", "_clock", "_due_ms", "_next", "_step_ms")

    def __init__(self, clock: SystemClock, due_ms: int, call: Callable[[], None], step_ms: int) -> None:
        self._clock: Final = clock
        self._due_ms: Final = -(-due_ms // step_ms) * step_ms
        self._step_ms: Final = step_ms
        self._call = call
        self._next: asyncio.TimerHandle | None = self._sleep(clock.now_ms())

    def cancel(self) -> None:
        if self._next is not None:
            self._next.cancel()
            self._next = None
            del self._call  # it usually refers to the owner of this timer

    def _sleep(self, now_ms: int) -> asyncio.TimerHandle:
        end_ms = min(self._due_ms, (now_ms + TIMER_STEP_MS) // self._step_ms * self._step_ms)
        return asyncio.get_running_loop().call_later(max(1, end_ms - now_ms) / 1_000, self._wake)

    def _wake(self) -> None:
        self._next = None  # each refers to the other: without this, only the garbage collector frees them
        now_ms = self._clock.now_ms()
        if now_ms >= self._due_ms:
            self._call()
        else:
            self._next = self._sleep(now_ms)
