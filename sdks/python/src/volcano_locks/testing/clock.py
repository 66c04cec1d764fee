"""`ManualClock`, a clock that moves only when the test moves it, for threads and asyncio.

`advance` stops at every instant for which a task waits, and lets the renewals due there finish before it moves on. So
ten minutes pass as they would, but at once. `jump` moves without stopping, like a suspended machine. Neither affects
the time inside a request to a real server.

A caller's own pause between two attempts moves the clock, because the test waits in that call and cannot move it.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import inf
from typing import Any, TypeVar

SETTLE_SECONDS_MAX = 20.0
POLL_SECONDS = 0.0005
START = datetime(2026, 1, 1, tzinfo=UTC)

T = TypeVar("T")


@dataclass(slots=True)
class _Sleeper:
    """A task that waits on the clock."""

    task: "asyncio.Task[Any] | None"
    until: float
    signal: "asyncio.Future[Any] | None"
    loop: asyncio.AbstractEventLoop
    woken: "asyncio.Future[None]"


class ManualClock:
    """A `Clock` for tests. `on_move` gets each step in seconds, before any task wakes, to move a server's clock too."""

    def __init__(self, start_seconds: float = 0.0, on_move: Callable[[float], None] | None = None) -> None:
        self._seconds = start_seconds
        self._start_seconds = start_seconds
        self._on_move = on_move
        self._mutex = threading.Lock()
        self._sleepers: list[_Sleeper] = []
        self._watched: set[asyncio.Task[Any]] = set()

    def now(self) -> float:
        """Seconds; begins at `start_seconds`."""
        return self._seconds

    def utc_now(self) -> datetime:
        """The date of this clock: 2026-01-01 plus the seconds it was moved."""
        return START + timedelta(seconds=self._seconds - self._start_seconds)

    def jump(self, seconds: float) -> None:
        """Move at once and wake the tasks that are due, without waiting for them."""
        if seconds < 0:
            raise ValueError(f"seconds must not be negative, got {seconds}")
        with self._mutex:
            self._seconds += seconds
        if self._on_move is not None:
            self._on_move(seconds)
        with self._mutex:
            self._wake()

    def advance(self, seconds: float) -> None:
        """Move step by step and settle at each. For threads: the renewals must run in another one."""
        target = self._seconds + seconds
        self.settle()
        while self._seconds < target:
            self.jump(min(self.next_due(), target) - self._seconds)
            self.settle()

    async def advance_async(self, seconds: float) -> None:
        """As `advance`, for renewals in this event loop."""
        target = self._seconds + seconds
        await self.settle_async()
        while self._seconds < target:
            self.jump(min(self.next_due(), target) - self._seconds)
            await self.settle_async()

    def next_due(self) -> float:
        """The next instant for which a task waits; infinity if there is none."""
        with self._mutex:
            return min((sleeper.until for sleeper in self._sleepers if sleeper.until > self._seconds), default=inf)

    def settle(self) -> None:
        """Return when every background task sleeps. `TimeoutError` if one does not within real seconds."""
        give_up_at = time.monotonic() + SETTLE_SECONDS_MAX
        while not self._is_settled():
            self._check(give_up_at)
            time.sleep(POLL_SECONDS)

    async def settle_async(self) -> None:
        """As `settle`, for tasks in this event loop."""
        give_up_at = time.monotonic() + SETTLE_SECONDS_MAX
        while not self._is_settled():
            self._check(give_up_at)
            await asyncio.sleep(0)

    async def wait(self, until: float, signal: "asyncio.Future[Any] | None" = None) -> None:
        """See `Clock.wait`."""
        loop = asyncio.get_running_loop()
        sleeper = _Sleeper(asyncio.current_task(), until, signal, loop, loop.create_future())
        with self._mutex:
            if self._seconds >= until or (signal is not None and signal.done()):
                return
            self._sleepers.append(sleeper)
        try:
            futures = [sleeper.woken] if signal is None else [sleeper.woken, signal]
            await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
        finally:
            with self._mutex:
                self._sleepers = [other for other in self._sleepers if other is not sleeper]

    async def within(self, until: float, work: Coroutine[Any, Any, T]) -> T:
        """See `Clock.within`."""
        task = asyncio.ensure_future(work)
        try:
            await self.wait(until, task)
            if task.done():
                return task.result()
        finally:
            if not task.done():
                task.add_done_callback(_forget)
                task.cancel()
        raise TimeoutError

    async def pause(self, seconds: float) -> None:
        """Move the clock by `seconds`."""
        self.jump(seconds)
        await asyncio.sleep(0)

    def watch(self, task: "asyncio.Task[Any]") -> None:
        """Make `settle` wait for this task."""
        with self._mutex:
            self._watched.add(task)
        task.add_done_callback(self._watched.discard)

    def _wake(self) -> None:
        due = [sleeper for sleeper in self._sleepers if sleeper.until <= self._seconds]
        self._sleepers = [sleeper for sleeper in self._sleepers if sleeper.until > self._seconds]
        for sleeper in due:
            with contextlib.suppress(RuntimeError):  # its loop is closed
                sleeper.loop.call_soon_threadsafe(resolve, sleeper.woken)

    def _is_settled(self) -> bool:
        with self._mutex:
            sleeping = {sleeper.task: sleeper for sleeper in self._sleepers}
            return all(task.done() or _is_sleeping(task, sleeping) for task in list(self._watched))

    def _check(self, give_up_at: float) -> None:
        if time.monotonic() > give_up_at:
            names = sorted(task.get_name() for task in list(self._watched) if not task.done())
            raise TimeoutError(f"background tasks do not settle: {', '.join(names)}")


def _is_sleeping(task: "asyncio.Task[Any]", sleeping: "dict[asyncio.Task[Any] | None, _Sleeper]") -> bool:
    """Whether the task waits on the clock, and not for a request that is still under way."""
    sleeper = sleeping.get(task)
    if sleeper is None or (sleeper.signal is not None and sleeper.signal.done()):
        return False
    return not isinstance(sleeper.signal, asyncio.Task) or _is_sleeping(sleeper.signal, sleeping)


def _forget(task: "asyncio.Task[Any]") -> None:
    if not task.cancelled():
        task.exception()


def resolve(future: "asyncio.Future[None]") -> None:
    """Complete the future, unless it is done."""
    if not future.done():
        future.set_result(None)
