"""The one thread that touches the file, so that the event loop never waits for a disk.

Work is done in order of arrival, one piece at a time. At most JOBS_MAX pieces wait; one more is refused at once.
A piece whose caller gave up before it began is left out; one that began runs to its end. `close` does what is
queued, then a last piece, and ends the thread. What apsw raises comes back as `StoreUnavailableError`.
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
    answer: asyncio.Future[Any]
    is_last: bool


class Writer:
    """A thread and its queue, for the event loop that made it."""

    def __init__(self) -> None:
        self._loop: Final = asyncio.get_running_loop()
        self._jobs: Final[SimpleQueue[_Job]] = SimpleQueue()
        self._waiting = 0
        self._closing: asyncio.Future[Any] | None = None
        # A daemon: a process that forgets to close must still be able to end; what was acknowledged is durable.
        self._thread: Final = threading.Thread(target=self._serve, name="sqlite-writer", daemon=True)
        self._thread.start()

    async def run(self, work: Callable[[], T]) -> T:
        """What `work` returns or raises, called on the thread."""
        if self._closing is not None:
            raise StoreUnavailableError("stopping", "the store is closed")
        if self._waiting >= JOBS_MAX:
            raise StoreUnavailableError("overloaded", f"{JOBS_MAX} requests wait for the store already")
        return cast("T", await self._queued(work, is_last=False))

    async def close(self, last: Callable[[], object]) -> None:
        """Refuse new work, do what is queued and then `last`, and end the thread. Once; later calls only wait."""
        if self._closing is None:
            self._closing = self._queued(last, is_last=True)
        await asyncio.shield(self._closing)
        self._thread.join()  # it has nothing left to do but to return

    def _queued(self, work: Callable[[], object], *, is_last: bool) -> asyncio.Future[Any]:
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._waiting += 1
        self._jobs.put(_Job(work, answer, is_last))
        return answer

    def _serve(self) -> None:
        while True:
            job = self._jobs.get()
            result: object = None
            error: BaseException | None = None
            if job.is_last or not job.answer.cancelled():
                try:
                    result = job.work()
                except apsw.Error as raised:
                    error = store_fault(raised)
                except BaseException as raised:  # noqa: BLE001 - it is raised again where it is awaited
                    error = raised
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self._loop.call_soon_threadsafe(self._settle, job.answer, result, error)
            if job.is_last:
                return
            del job, result, error

    def _settle(self, answer: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
        self._waiting -= 1
        if answer.done():
            return
        if error is None:
            answer.set_result(result)
        else:
            answer.set_exception(error)
