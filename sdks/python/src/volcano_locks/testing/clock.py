"""A clock that stands still until the test moves it, for threads and asyncio alike.

`advance` stops at every instant somebody waits for and lets the renewals due there run to their next rest
before it moves on, so that ten minutes pass as they would, at once. `jump` moves without stopping, like a
suspended machine. Both have no effect on time inside a request to a real server, which takes what it takes.

A caller's own pause between two attempts moves the clock by itself: the caller is the one who would move it.
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
class _Rest:
    """A task waiting on the clock."""

    task: "asyncio.Task[Any] | None"
    until: float
    signal: "asyncio.Future[Any] | None"
    loop: asyncio.AbstractEventLoop
    woken: "asyncio.Future[None]"


class ManualClock:
    """A `Clock` for tests. `on_move` is told each step in seconds before anybody wakes: move a server's clock in step
    there. What the server answers thereupon is heard at the new time."""

    def __init__(self, start_seconds: float = 0.0, on_move: Callable[[float], None] | None = None) -> None:
        self._seconds = start_seconds
        self._start_seconds = start_seconds
        self._on_move = on_move
        self._mutex = threading.Lock()
        self._rests: list[_Rest] = []
        self._watched: set[asyncio.Task[Any]] = set()

    def now(self) -> float:
        """Seconds; starts at `start_seconds`."""
        return self._seconds

    def utc_now(self) -> datetime:
        """The date this clock shows: 2026-01-01 plus what it was moved."""
        return START + timedelta(seconds=self._seconds - self._start_seconds)

    def jump(self, seconds: float) -> None:
        """Move at once and wake whoever is due, waiting for nobody."""
        if seconds < 0:
            raise ValueError(f"seconds must not be negative, got {seconds}")
        with self._mutex:
            self._seconds += seconds
        if self._on_move is not None:
            self._on_move(seconds)
        with self._mutex:
            self._wake()

    def advance(self, seconds: float) -> None:
        """Move step by step, settling at each. For threads: renewals must run in another one."""
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
        """The next instant somebody waits for; infinite if nobody does."""
        with self._mutex:
            return min((rest.until for rest in self._rests if rest.until > self._seconds), default=inf)

    def settle(self) -> None:
        """Return once every background task rests. `TimeoutError` if one does not within real seconds."""
        give_up = time.monotonic() + SETTLE_SECONDS_MAX
        while not self._settled():
            self._check(give_up)
            time.sleep(POLL_SECONDS)

    async def settle_async(self) -> None:
        """As `settle`, for tasks in this event loop."""
        give_up = time.monotonic() + SETTLE_SECONDS_MAX
        while not self._settled():
            self._check(give_up)
            await asyncio.sleep(0)

    async def wait(self, until: float, signal: "asyncio.Future[Any] | None" = None) -> None:
        """See `Clock.wait`."""
        loop = asyncio.get_running_loop()
        rest = _Rest(asyncio.current_task(), until, signal, loop, loop.create_future())
        with self._mutex:
            if self._seconds >= until or (signal is not None and signal.done()):
                return
            self._rests.append(rest)
        try:
            await asyncio.wait([rest.woken, *([] if signal is None else [signal])], return_when=asyncio.FIRST_COMPLETED)
        finally:
            with self._mutex:
                self._rests = [other for other in self._rests if other is not rest]

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
        """Moves the clock by `seconds` itself."""
        self.jump(seconds)
        await asyncio.sleep(0)

    def watch(self, task: "asyncio.Task[Any]") -> None:
        """From now on `settle` waits for this task."""
        with self._mutex:
            self._watched.add(task)
        task.add_done_callback(self._watched.discard)

    def _wake(self) -> None:
        due = [rest for rest in self._rests if rest.until <= self._seconds]
        self._rests = [rest for rest in self._rests if rest.until > self._seconds]
        for rest in due:
            with contextlib.suppress(RuntimeError):  # its loop is closed: nobody rests there any more
                rest.loop.call_soon_threadsafe(done, rest.woken)

    def _settled(self) -> bool:
        with self._mutex:
            resting = {rest.task: rest for rest in self._rests}
            return all(task.done() or _at_rest(task, resting) for task in list(self._watched))

    def _check(self, give_up: float) -> None:
        if time.monotonic() > give_up:
            names = sorted(task.get_name() for task in list(self._watched) if not task.done())
            raise TimeoutError(f"background tasks do not come to rest: {', '.join(names)}")


def _at_rest(task: "asyncio.Task[Any]", resting: "dict[asyncio.Task[Any] | None, _Rest]") -> bool:
    """Waiting on the clock, and not for a request which is itself still on its way."""
    rest = resting.get(task)
    if rest is None or (rest.signal is not None and rest.signal.done()):
        return False
    return not isinstance(rest.signal, asyncio.Task) or _at_rest(rest.signal, resting)


def _forget(task: "asyncio.Task[Any]") -> None:
    if not task.cancelled():
        task.exception()


def done(future: "asyncio.Future[None]") -> None:
    """Mark it, if it is not yet."""
    if not future.done():
        future.set_result(None)
