"""Waiting in an event loop on the client's clock, cancelling a task, and work that a cancellation does not end."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from volcano_locks.clock import Clock

T = TypeVar("T")


class LoopWakeup:
    """A `Wakeup` for tasks of the loop in which it was created. `callback` runs in the loop when it is set."""

    def __init__(self, callback: Callable[[], None] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._callback = callback
        self._woken: asyncio.Future[None] | None = None
        self._set = False

    def set(self) -> None:
        self._set = True
        with contextlib.suppress(RuntimeError):  # the loop is closed, so no task waits in it
            self._loop.call_soon_threadsafe(self._callback or self._wake)

    def is_set(self) -> bool:
        return self._set

    async def wait(self, seconds: float) -> None:
        """Return when it is set, or after that time."""
        self._woken = woken = self._loop.create_future()
        if not self._set:
            await asyncio.wait((woken,), timeout=seconds)

    def _wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)


class OwnCancellation:
    """At most one cancellation of the task that created it, distinguished from others as `asyncio.timeout` does."""

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._cancelling_before = task.cancelling()
        self._requested = False

    def cancel(self) -> None:
        """Cancel the task. May be repeated."""
        if not self._requested:
            self._requested = True
            self._task.cancel()

    def uncancel(self, error: BaseException | None) -> bool:
        """Undo `cancel`; return whether `error` came from it and from no other cancellation."""
        if not self._requested:
            return False
        others = self._task.uncancel() > self._cancelling_before
        return isinstance(error, asyncio.CancelledError) and not others


async def sleep(clock: Clock, until: float, wakeup: LoopWakeup | None = None) -> None:
    """Return when `now() >= until` or `wakeup` is set."""
    wakeup = wakeup or LoopWakeup()
    cancel_alarm = clock.alarm(until, wakeup, asleep=True)
    try:
        while not wakeup.is_set() and (seconds := clock.timeout(until)) > 0:
            await wakeup.wait(seconds)
    finally:
        cancel_alarm()


async def within(clock: Clock, until: float, work: Awaitable[T]) -> T:
    """Return the result of `work`; when `now() >= until`, cancel it and raise `TimeoutError`."""
    # In the caller's own task: a task per request would cost as much as sending it.
    loop = asyncio.get_running_loop()
    limit = asyncio.timeout(None)
    timer: asyncio.TimerHandle
    ended = False

    def check() -> None:
        nonlocal timer
        if ended:
            return
        seconds = clock.timeout(until)
        if seconds > 0:
            timer = loop.call_later(seconds, check)
        elif not limit.expired():
            limit.reschedule(loop.time())

    async with limit:
        timer = loop.call_later(clock.timeout(until), check)
        cancel_alarm = clock.alarm(until, LoopWakeup(check))
        try:
            return await work
        finally:
            ended = True
            timer.cancel()
            cancel_alarm()


async def run_shielded(work: Coroutine[Any, Any, T]) -> T:
    """Finish `work` even if the caller is cancelled meanwhile; then raise the cancellation or return the result."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None:
        return task.result()
    if not task.cancelled():
        task.exception()  # marks it as retrieved, so that asyncio does not log it
    raise cancelled
