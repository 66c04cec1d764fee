"""`ManualClock`, a clock that moves only when the test moves it, for threads and asyncio.

`advance` stops at every instant for which a thread or task waits, and lets the renewals due there finish before it
moves on. So ten minutes pass as they would, but at once. `jump` moves without stopping, like a suspended machine.
Neither affects the time inside a request to a real server.

A caller's own pause between two attempts moves the clock, because the test waits in that call and cannot move it.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import inf

from volcano_locks.clock import Wakeup

SETTLE_SECONDS_MAX = 20.0
POLL_SECONDS = 0.0005
RECHECK_SECONDS = 1.0
START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class Alarm:
    """A wait for an instant. `sleeper` is the thread or task that does nothing else, if any."""

    until: float
    wakeup: Wakeup
    sleeper: object


class ManualClock:
    """A `Clock` for tests. `on_move` gets each step in seconds, before any wait ends, to move a server's clock too."""

    def __init__(self, start_seconds: float = 0.0, on_move: Callable[[float], None] | None = None) -> None:
        self._seconds = start_seconds
        self._start_seconds = start_seconds
        self._on_move = on_move
        self._mutex = threading.RLock()
        self._alarms: list[Alarm] = []
        self._renewers: dict[object, Callable[[], bool]] = {}

    def now(self) -> float:
        """Seconds; begins at `start_seconds`."""
        return self._seconds

    def utc_now(self) -> datetime:
        """The date of this clock: 2026-01-01 plus the seconds it was moved."""
        return START + timedelta(seconds=self._seconds - self._start_seconds)

    def jump(self, seconds: float) -> None:
        """Move at once and end the waits that are due, without waiting for what follows."""
        if seconds < 0:
            raise ValueError(f"seconds must not be negative, got {seconds}")
        with self._mutex:
            self._seconds += seconds
        if self._on_move is not None:
            self._on_move(seconds)
        with self._mutex:
            due = [alarm for alarm in self._alarms if alarm.until <= self._seconds]
        for alarm in due:
            alarm.wakeup.set()

    def advance(self, seconds: float) -> None:
        """Move step by step and settle at each. For threads: the renewals must run in another one."""
        target = self._seconds + seconds
        due = self.settle()
        while self._seconds < target:
            self.jump(min(due, target) - self._seconds)
            due = self.settle()

    async def advance_async(self, seconds: float) -> None:
        """As `advance`, for renewals in this event loop."""
        target = self._seconds + seconds
        due = await self.settle_async()
        while self._seconds < target:
            self.jump(min(due, target) - self._seconds)
            due = await self.settle_async()

    def next_due(self) -> float:
        """The next instant for which a thread or task waits; infinity if there is none."""
        with self._mutex:
            return min((alarm.until for alarm in self._alarms if alarm.until > self._seconds), default=inf)

    def settle(self) -> float:
        """Wait until every renewer sleeps, and return the next instant for which one does (see `next_due`).

        `TimeoutError` if one does not sleep within SETTLE_SECONDS_MAX of real time.
        """
        give_up_at = time.monotonic() + SETTLE_SECONDS_MAX
        while (due := self.due_if_settled()) is None:
            self._check(give_up_at)
            time.sleep(POLL_SECONDS)
        return due

    async def settle_async(self) -> float:
        """As `settle`, for tasks in this event loop."""
        give_up_at = time.monotonic() + SETTLE_SECONDS_MAX
        while (due := self.due_if_settled()) is None:
            self._check(give_up_at)
            await asyncio.sleep(0)
        return due

    def is_settled(self) -> bool:
        """Whether every renewer sleeps until an instant to come, or has ended."""
        with self._mutex:
            renewers = [renewer for renewer, ended in self._renewers.items() if not ended()]
            self._renewers = {renewer: self._renewers[renewer] for renewer in renewers}
            return all(self.sleeps(renewer) for renewer in renewers)

    def due_if_settled(self) -> float | None:
        """`next_due` if `is_settled`, else None. Read together: a thread that rechecks the time has no alarm then."""
        with self._mutex:
            return self.next_due() if self.is_settled() else None

    def sleeps(self, sleeper: object) -> bool:
        """Whether that thread (by its identifier) or task waits on this clock and nothing has ended its wait."""
        with self._mutex:
            waits = [alarm for alarm in self._alarms if alarm.sleeper == sleeper]
            return bool(waits) and all(alarm.until > self._seconds and not alarm.wakeup.is_set() for alarm in waits)

    def timeout(self, until: float) -> float:
        """See `Clock.timeout`."""
        return 0.0 if self._seconds >= until else RECHECK_SECONDS

    def alarm(self, until: float, wakeup: Wakeup, *, asleep: bool = False) -> Callable[[], None]:
        """See `Clock.alarm`."""
        alarm = Alarm(until, wakeup, current_sleeper() if asleep else None)
        with self._mutex:
            self._alarms.append(alarm)
            due = self._seconds >= until
        if due:
            wakeup.set()

        def cancel() -> None:
            with self._mutex:
                self._alarms = [other for other in self._alarms if other is not alarm]

        return cancel

    def skip_pause(self, seconds: float) -> bool:
        """Move the clock by `seconds`."""
        self.jump(seconds)
        return True

    def watch(self, renewer: object, ended: Callable[[], bool]) -> None:
        """See `Clock.watch`."""
        with self._mutex:
            self._renewers[renewer] = ended

    def _check(self, give_up_at: float) -> None:
        if time.monotonic() > give_up_at:
            raise TimeoutError(f"{len(self._renewers)} renewers do not settle")


def current_sleeper() -> object:
    """The running task, or the identifier of this thread."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    return task or threading.get_ident()
