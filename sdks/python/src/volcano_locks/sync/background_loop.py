"""The background thread of a threaded client: one event loop for its renewals and requests.

All renewals of a client share the loop and wait side by side, so a stuck one delays no other. Requests of the calling
threads get there what a blocking socket lacks: a limit on the whole request, one connection pool, and an interrupt
(Ctrl-C) that cancels the request and lets it clean up.

SDK-6: the thread starts with the first request, ends when the client is closed or idle for a while, and never keeps the
process alive. A forked child has neither this thread nor its parent's sockets: it starts its own, and leaves the
parent's objects untouched, because closing them would disturb the parent.
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
STOP_CHECK_SECONDS = 0.2
CLEAN_UP_SECONDS_MAX = 8.0
SHIELDED_SECONDS_MAX = CLEAN_UP_SECONDS_MAX / 2
CANCELLING_SECONDS_MAX = CLEAN_UP_SECONDS_MAX - SHIELDED_SECONDS_MAX

T = TypeVar("T")

SHIELDED = "shielded"

_abandoned_by_fork: list[object] = []


class BackgroundLoop:
    """Runs coroutines for blocking callers. `on_end` is awaited in the loop before it closes."""

    def __init__(self, name: str, on_end: Callable[[], Awaitable[None]]) -> None:
        self._name = name
        self._on_end = on_end
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._iterators: weakref.WeakSet[AsyncGenerator[Any, None]] = weakref.WeakSet()
        self._reset()

    def run(
        self,
        work: Callable[[], Coroutine[Any, Any, T]],
        undo: Callable[[T], Coroutine[Any, Any, object]] | None = None,
        *,
        shielded: bool = False,
        stop: threading.Event | None = None,
    ) -> T:
        """Return the result of `work()`.

        If this thread is interrupted, the work is cancelled and may clean up, bounded in time; a result that already
        exists is passed to `undo`. `shielded` work is only waited for, not cancelled. Then the interrupt propagates.
        Setting `stop` interrupts with `StoppedError`.
        """
        outcome: Future[T] = Future()
        job = _Job(shielded=shielded)
        try:
            self._submit(job, work, outcome)
            return outcome.result() if stop is None else _result_unless(stop, outcome)
        except BaseException as error:
            if job.loop is not None and not (outcome.done() and outcome.exception() is error):
                job.resolve(outcome)
                self._interrupted(outcome, undo)
            raise
        finally:
            del outcome  # its exception's traceback references this frame

    def iterate(self, items: AsyncGenerator[T, None]) -> Iterator[T]:
        """Yield the items, each produced in the loop on demand. Dropping the iterator ends it."""
        pid = os.getpid()
        self._iterators.add(items)

        async def one() -> T:
            return await anext(items)

        while True:
            if os.getpid() != pid:
                _abandoned_by_fork.append(items)
                raise VolcanoError("this iterator belongs to the parent process: create a new one in the child")
            try:
                item = self.run(one)
            except StopAsyncIteration:
                return
            yield item

    def close(self) -> None:
        """Wait for shielded work, cancel the rest, close the connections and end the thread; bounded in time."""
        self._after_fork()
        with self._mutex:
            self._closed = True
            loop, thread = self._loop, self._thread
            if loop is not None:
                loop.call_soon_threadsafe(loop.stop)
            self._loop = None
        if thread is not None and thread is not threading.current_thread():
            thread.join(CLEAN_UP_SECONDS_MAX)

    def _reset(self) -> None:
        self._mutex = threading.Lock()
        self._loop = None
        self._thread = None
        self._used = False
        self._pid = os.getpid()  # last: it must never be seen with the parent's mutex

    def _after_fork(self) -> None:
        if self._pid != os.getpid():
            _abandoned_by_fork.append((self._mutex, self._loop, self._thread))
            self._reset()

    def _submit(self, job: "_Job", work: Callable[[], Coroutine[Any, Any, T]], outcome: "Future[T]") -> None:
        self._after_fork()
        with self._mutex:
            if self._closed:
                raise VolcanoError(CLOSED)
            loop = self._loop or self._start()
            self._used = True
            job.loop = loop
            loop.call_soon_threadsafe(job.start, loop, work, outcome)

    def _interrupted(
        self,
        outcome: "Future[T]",
        undo: Callable[[T], Coroutine[Any, Any, object]] | None,
    ) -> None:
        with contextlib.suppress(BaseException):
            result = outcome.result(CLEAN_UP_SECONDS_MAX)
            if undo is not None:
                undone: Future[object] = Future()
                self._submit(_Job(shielded=True), lambda: undo(result), undone)
                undone.result(CLEAN_UP_SECONDS_MAX)

    def _start(self) -> asyncio.AbstractEventLoop:
        """Start the thread. It creates its loop itself, so an interrupt here cannot leave a loop half created."""
        created: Future[asyncio.AbstractEventLoop] = Future()
        thread = threading.Thread(target=self._main, args=(created,), name=self._name, daemon=True)
        try:
            thread.start()
            self._loop, self._thread = created.result(), thread
        except BaseException:
            # No thread or loop could be created, or an interrupt came, after which both may exist unused.
            self._loop = self._thread = None
            created.add_done_callback(_stop_unused)
            raise
        return self._loop

    def _main(self, created: "Future[asyncio.AbstractEventLoop]") -> None:
        try:
            loop = asyncio.new_event_loop()
        except BaseException as error:  # noqa: BLE001 - re-raised in the caller
            created.set_exception(error)
            return
        asyncio.set_event_loop(loop)
        loop.call_later(IDLE_SECONDS_MAX, self._end_if_idle, loop)
        created.set_result(loop)

        try:
            loop.run_forever()
        finally:
            with self._mutex:
                if self._loop is loop:
                    self._loop = None
            self._shut_down(loop)

    def _end_if_idle(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._mutex:
            if asyncio.all_tasks(loop) or self._iterators or (self._used and self._loop is loop):
                self._used = False
                loop.call_later(IDLE_SECONDS_MAX, self._end_if_idle, loop)
                return
            if self._loop is loop:
                self._loop = None
        loop.stop()

    def _shut_down(self, loop: asyncio.AbstractEventLoop) -> None:
        with contextlib.suppress(Exception):
            if shielded_tasks := [task for task in asyncio.all_tasks(loop) if task.get_name() == SHIELDED]:
                loop.run_until_complete(asyncio.wait(shielded_tasks, timeout=SHIELDED_SECONDS_MAX))
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
    """The work was cancelled because the caller's stop event was set."""


def _result_unless(stop: threading.Event, outcome: "Future[T]") -> T:
    """Wait for the outcome; poll `stop`, because a thread cannot wait for an event and a future at once."""
    while not stop.is_set():
        try:
            return outcome.result(STOP_CHECK_SECONDS)
        except TimeoutError:
            if outcome.done():
                return outcome.result()
    raise StoppedError


def _stop_unused(created: "Future[asyncio.AbstractEventLoop]") -> None:
    """End the thread of a loop that will not be used."""
    if created.exception() is None:
        created.result().call_soon_threadsafe(created.result().stop)


class _Job:
    """One piece of work in the loop."""

    def __init__(self, *, shielded: bool) -> None:
        self._shielded = shielded
        self.loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None

    def start(
        self,
        loop: asyncio.AbstractEventLoop,
        work: Callable[[], Coroutine[Any, Any, T]],
        outcome: "Future[T]",
    ) -> None:
        def set_outcome(task: asyncio.Task[T]) -> None:
            if task.cancelled():
                outcome.set_exception(VolcanoError(CLOSED))
            elif (error := task.exception()) is not None:
                outcome.set_exception(error)
            else:
                outcome.set_result(task.result())

        try:
            self._task = task = loop.create_task(work(), name=SHIELDED if self._shielded else None)
        except BaseException as error:  # noqa: BLE001 - re-raised in the caller
            outcome.set_exception(error)
            return
        task.add_done_callback(set_outcome)

    def resolve(self, outcome: "Future[Any]") -> None:
        """Make sure that `outcome` is set soon, even if an interrupt prevented `start`."""

        def end() -> None:
            if self._task is None:
                if not outcome.done():
                    outcome.set_exception(VolcanoError(CLOSED))
            elif not self._shielded:
                self._task.cancel()

        assert self.loop is not None
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(end)  # runs after `start`, if that was scheduled
