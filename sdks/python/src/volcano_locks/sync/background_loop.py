"""The one background thread of a threaded client: an event loop in which its requests and renewals run.

All renewals of a client share it and wait for their answers side by side, so a stuck one delays no other.
Requests of the calling threads run there too, which gives them what a blocking socket cannot: a limit on the
whole request, one pool of connections, and an interrupt (Ctrl-C) which cancels the request under way and lets
it clean up.

SDK-6: the thread starts with the first request, ends when the client is closed or has had nothing to do for a
while, and never keeps the process alive. A forked child finds no thread and no sockets of its parent's: it
starts its own, and leaves the parent's objects untouched, since closing them would disturb the parent.
"""

import asyncio
import contextlib
import os
import threading
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

from volcano_locks.errors import CLOSED, VolcanoError

IDLE_SECONDS_MAX = 30.0
LOOK_SECONDS = 0.2
CLEAN_UP_SECONDS_MAX = 8.0
LEAVING_SECONDS_MAX = CLEAN_UP_SECONDS_MAX / 2
CANCELLING_SECONDS_MAX = CLEAN_UP_SECONDS_MAX - LEAVING_SECONDS_MAX

T = TypeVar("T")

TO_THE_END = "to the end"

_left_by_parents: list[object] = []


class Background:
    """Runs coroutines for blocking callers. `on_end` is awaited in the loop before it closes."""

    def __init__(self, name: str, on_end: Callable[[], Awaitable[None]]) -> None:
        self._name = name
        self._on_end = on_end
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._kept: weakref.WeakSet[AsyncGenerator[Any, None]] = weakref.WeakSet()
        self._begin()

    def run(
        self,
        work: Callable[[], Coroutine[Any, Any, T]],
        undo: Callable[[T], Coroutine[Any, Any, object]] | None = None,
        *,
        to_the_end: bool = False,
        stop: threading.Event | None = None,
    ) -> T:
        """`work()`'s result. If this thread is interrupted, the work is cancelled and may clean up, bounded;
        a result that was there already is handed to `undo`. Work that goes `to_the_end` is not cancelled, only
        waited for. Then the interrupt goes on. Setting `stop` interrupts with `StoppedError`."""
        outcome: Future[T] = Future()
        call = _Call(to_the_end=to_the_end)
        try:
            self._submit(call, work, outcome)
            return outcome.result() if stop is None else _unless(stop, outcome)
        except BaseException as error:
            if call.loop is not None and not (outcome.done() and outcome.exception() is error):
                call.settle(outcome)
                self._interrupted(outcome, undo)
            raise
        finally:
            del outcome  # its exception's traceback holds this frame

    def iterate(self, items: AsyncGenerator[T, None]) -> Iterator[T]:
        """The items, each made in the loop when it is asked for. Whoever stops asking ends it by letting go of it."""
        pid = os.getpid()
        self._kept.add(items)

        async def one() -> T:
            return await anext(items)

        while True:
            if os.getpid() != pid:
                _left_by_parents.append(items)
                raise VolcanoError("it belongs to the process that began it, not to its fork: begin anew")
            try:
                item = self.run(one)
            except StopAsyncIteration:
                return
            yield item

    def close(self) -> None:
        """Wait for what goes `to_the_end`, cancel the rest, close the connections and end the thread; bounded."""
        self._after_fork()
        with self._mutex:
            self._closed = True
            loop, thread = self._loop, self._thread
            if loop is not None:
                loop.call_soon_threadsafe(loop.stop)
            self._loop = None
        if thread is not None and thread is not threading.current_thread():
            thread.join(CLEAN_UP_SECONDS_MAX)

    def _begin(self) -> None:
        self._mutex = threading.Lock()
        self._loop = None
        self._thread = None
        self._used = False
        self._pid = os.getpid()  # last: another thread of a forked child must not find it with the parent's mutex

    def _after_fork(self) -> None:
        if self._pid != os.getpid():
            _left_by_parents.append((self._mutex, self._loop, self._thread))
            self._begin()

    def _submit(self, call: "_Call", work: Callable[[], Coroutine[Any, Any, T]], outcome: "Future[T]") -> None:
        self._after_fork()
        with self._mutex:
            if self._closed:
                raise VolcanoError(CLOSED)
            loop = self._loop or self._start()
            self._used = True
            call.loop = loop
            loop.call_soon_threadsafe(call.start, loop, work, outcome)

    def _interrupted(
        self,
        outcome: "Future[T]",
        undo: Callable[[T], Coroutine[Any, Any, object]] | None,
    ) -> None:
        with contextlib.suppress(BaseException):
            result = outcome.result(CLEAN_UP_SECONDS_MAX)
            if undo is not None:
                undone: Future[object] = Future()
                self._submit(_Call(to_the_end=True), lambda: undo(result), undone)
                undone.result(CLEAN_UP_SECONDS_MAX)

    def _start(self) -> asyncio.AbstractEventLoop:
        """The thread makes its loop itself: an interrupt, which comes here, cannot leave one half made."""
        made: Future[asyncio.AbstractEventLoop] = Future()
        thread = threading.Thread(target=self._main, args=(made,), name=self._name, daemon=True)
        try:
            thread.start()
            self._loop, self._thread = made.result(), thread
        except BaseException:
            # No thread or no loop to be had; or an interrupt, after which there may be both. Nobody waits for them.
            self._loop = self._thread = None
            made.add_done_callback(_stop)
            raise
        return self._loop

    def _main(self, made: "Future[asyncio.AbstractEventLoop]") -> None:
        try:
            loop = asyncio.new_event_loop()
        except BaseException as error:  # noqa: BLE001 - whoever started this thread is told
            made.set_exception(error)
            return
        asyncio.set_event_loop(loop)
        loop.call_later(IDLE_SECONDS_MAX, self._end_if_idle, loop)
        made.set_result(loop)

        try:
            loop.run_forever()
        finally:
            with self._mutex:
                if self._loop is loop:
                    self._loop = None
            self._wind_up(loop)

    def _end_if_idle(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._mutex:
            if asyncio.all_tasks(loop) or self._kept or (self._used and self._loop is loop):
                self._used = False
                loop.call_later(IDLE_SECONDS_MAX, self._end_if_idle, loop)
                return
            if self._loop is loop:
                self._loop = None
        loop.stop()

    def _wind_up(self, loop: asyncio.AbstractEventLoop) -> None:
        with contextlib.suppress(Exception):
            if leaving := [task for task in asyncio.all_tasks(loop) if task.get_name() == TO_THE_END]:
                loop.run_until_complete(asyncio.wait(leaving, timeout=LEAVING_SECONDS_MAX))
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        with contextlib.suppress(Exception):
            if tasks:
                loop.run_until_complete(asyncio.wait(tasks, timeout=CANCELLING_SECONDS_MAX))
            loop.run_until_complete(self._on_end())
            loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


class StoppedError(Exception):
    """The work was given up since somebody set the event given."""


def _unless(stop: threading.Event, outcome: "Future[T]") -> T:
    """The outcome, once it is there; an event wakes nobody who waits for something else, so it is looked at."""
    while not stop.is_set():
        try:
            return outcome.result(LOOK_SECONDS)
        except TimeoutError:
            if outcome.done():
                return outcome.result()
    raise StoppedError


def _stop(made: "Future[asyncio.AbstractEventLoop]") -> None:
    """End the thread of a loop that nobody is going to use."""
    if made.exception() is None:
        made.result().call_soon_threadsafe(made.result().stop)


class _Call:
    """One piece of work under way in the loop."""

    def __init__(self, *, to_the_end: bool) -> None:
        self._to_the_end = to_the_end
        self.loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None

    def start(
        self,
        loop: asyncio.AbstractEventLoop,
        work: Callable[[], Coroutine[Any, Any, T]],
        outcome: "Future[T]",
    ) -> None:
        def tell(task: asyncio.Task[T]) -> None:
            if task.cancelled():
                outcome.set_exception(VolcanoError(CLOSED))
            elif (error := task.exception()) is not None:
                outcome.set_exception(error)
            else:
                outcome.set_result(task.result())

        try:
            self._task = task = loop.create_task(work(), name=TO_THE_END if self._to_the_end else None)
        except BaseException as error:  # noqa: BLE001 - the caller waits for it
            outcome.set_exception(error)
            return
        task.add_done_callback(tell)

    def settle(self, outcome: "Future[Any]") -> None:
        """See to it that there will be an outcome soon, also if an interrupt kept `start` from being called."""

        def end() -> None:
            if self._task is None:
                if not outcome.done():
                    outcome.set_exception(VolcanoError(CLOSED))
            elif not self._to_the_end:
                self._task.cancel()

        assert self.loop is not None
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(end)  # `start`, if it was called at all, comes before
