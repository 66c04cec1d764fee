"""The one thread that uses the file, so that the event loop never waits for a disk.

Jobs run one at a time, in order of arrival. At most JOBS_MAX jobs wait; another is refused at once. A job whose caller
was cancelled before it began is skipped; one that began runs to its end. `close` runs the queued jobs and a final one,
then ends the thread. Errors of apsw are raised as `StoreUnavailableError`.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Final, NamedTuple, TypeVar, cast

import apsw

from ...rules.errors import StoreUnavailableError
from .faults import store_fault

JOBS_MAX: Final = 1_000

T = TypeVar("T")


class _Job(NamedTuple):
    work: Callable[[], object]
    future: asyncio.Future[Any]
    is_last: bool


class WriterThread:
    """A thread and its queue, for the event loop that created it."""

    def __init__(self) -> None:
        self._loop: Final = asyncio.get_running_loop()
        self._jobs: Final[SimpleQueue[_Job]] = SimpleQueue()
        self._waiting = 0
        self._closing: asyncio.Future[Any] | None = None
        self.around: Callable[[Callable[[], object]], object] = lambda work: work()
        """Runs each job."""
        # A daemon thread: a process that does not close it must still end; acknowledged work is durable.
        self._thread: Final = threading.Thread(target=self._serve, name="sqlite-writer", daemon=True)
        self._thread.start()

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work` on the thread; returns or raises what it does."""
        if self._closing is not None:
            raise StoreUnavailableError("stopping", "the store is closed")
        if self._waiting >= JOBS_MAX:
            raise StoreUnavailableError(
                "overloaded", f"{JOBS_MAX} requests already wait for the store: try again in a moment"
            )
        return cast("T", await self._enqueue(work, is_last=False))

    async def close(self, last: Callable[[], object]) -> None:
        """Refuse new jobs, run the queued ones and then `last`, and end the thread. Later calls only wait."""
        if self._closing is None:
            self._closing = self._enqueue(last, is_last=True)
        await asyncio.shield(self._closing)
        self._thread.join()  # it is about to return

    def _enqueue(self, work: Callable[[], object], *, is_last: bool) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self._loop.create_future()
        self._waiting += 1
        self._jobs.put(_Job(work, future, is_last))
        return future

    def _serve(self) -> None:
        while True:
            job = self._jobs.get()
            result: object = None
            error: BaseException | None = None
            if job.is_last or not job.future.cancelled():
                try:
                    result = self.around(job.work)
                except apsw.Error as raised:
                    error = store_fault(raised)
                except BaseException as raised:  # noqa: BLE001 - raised again in the awaiting caller
                    error = raised
            with suppress(RuntimeError):  # the loop is closed: no caller waits
                self._loop.call_soon_threadsafe(self._settle, job.future, result, error)
            if job.is_last:
                return
            del job, result, error

    def _settle(self, future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
        self._waiting -= 1
        if future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
