"""APScheduler 3: under N processes with the same jobs, each fire of a job runs once.

    scheduler = BackgroundScheduler(executors={"default": ExclusiveThreadPoolExecutor(10)})
    scheduler.add_job(rollup, "cron", hour=3, id="rollup")

Each fire has a lock of its own, named by the job's id and the fire time. It is not released when the job ends, because
a busy process, or one with a late clock, may come later. So no fire runs twice, not even if its process is killed:
the next fire runs in another process. If the lock service does not respond, the job fails.
"""

import asyncio
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from math import ceil
from typing import TYPE_CHECKING, Any

from apscheduler.executors.asyncio import AsyncIOExecutor
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.triggers.interval import IntervalTrigger

from volcano_locks import AsyncClient, Client, LockHeldError
from volcano_locks.contrib._clients import default_client
from volcano_locks.features.exclusive import GuardedFunction
from volcano_locks.log import log

if TYPE_CHECKING:
    from apscheduler.job import Job

GRACE_SECONDS = 3600
"""How late a fire may run in a job with `misfire_grace_time=None`, which has no limit of its own."""
CLOCK_SECONDS = 60
"""How far the clocks of the processes may differ."""
_GENERATED_ID = re.compile(r"[0-9a-f]{32}")


class _RunTimes:
    """The fire times of one submission. The executor iterates over them; `current` is the one that runs now."""

    def __init__(self, times: Sequence[datetime]) -> None:
        self._times = times
        self.current = times[0]

    def __iter__(self) -> Iterator[datetime]:
        for time in self._times:
            self.current = time
            yield time


class _LockedJob:
    """A job as its executor sees it, with another function. A copy would need a function that can be pickled."""

    def __init__(self, job: "Job", function: Any) -> None:
        self._job = job
        self.func = function

    def __getattr__(self, name: str) -> Any:
        return getattr(self._job, name)

    def __str__(self) -> str:
        return str(self._job)


class _Exclusive:
    """What both executors add: each run of a job's function takes the lock of its fire time."""

    _client: Client | None = None

    def _do_submit_job(self, job: "Job", run_times: Sequence[datetime]) -> None:
        times = _RunTimes(run_times)
        locked = _LockedJob(job, self._under_lock(checked_job(job), times))
        super()._do_submit_job(locked, times)  # type: ignore[misc]  # of the executor beside this class

    def _under_lock(self, job: "Job", times: _RunTimes) -> Any:
        guarded = GuardedFunction("", "raise", job.func)
        seconds = hold_seconds(job)

        def run(*args: Any, **kwargs: Any) -> Any:
            locks = (self._client or default_client()).locks
            entered = False
            try:
                with locks.with_lock(fire_key(job, times.current), ttl=seconds, hold_at_least=seconds) as guard:
                    entered = True
                    return job.func(*args, **guarded.with_guard(guard, args, kwargs))
            except LockHeldError:
                if entered:
                    raise
            log.debug("skipped job %s, fired at %s: another process runs it", job.id, times.current)
            return None

        return run


class ExclusiveThreadPoolExecutor(_Exclusive, ThreadPoolExecutor):
    """The executor of `BackgroundScheduler` and `BlockingScheduler`: each fire runs in one of the processes.

        BackgroundScheduler(executors={"default": ExclusiveThreadPoolExecutor(10)})

    `client` defaults to one with the settings of `VOLCANO_API_URL` and `VOLCANO_SERVICE_KEY`. A job whose function has
    an argument `guard` gets the lease's guard.
    """

    def __init__(self, max_workers: int = 10, *, client: Client | None = None, **options: Any) -> None:
        super().__init__(max_workers, **options)
        self._client = client


class ExclusiveAsyncIOExecutor(_Exclusive, AsyncIOExecutor):
    """The executor of `AsyncIOScheduler`: each fire runs in one of the processes. A loss cancels a coroutine.

    AsyncIOScheduler(executors={"default": ExclusiveAsyncIOExecutor()})
    """

    def __init__(self, *, client: Client | None = None, async_client: AsyncClient | None = None) -> None:
        super().__init__()
        self._client = client
        self._async_client = async_client

    def _under_lock(self, job: "Job", times: _RunTimes) -> Any:
        if not asyncio.iscoroutinefunction(getattr(job.func, "func", job.func)):
            return super()._under_lock(job, times)
        guarded = GuardedFunction("", "raise", job.func)
        seconds = hold_seconds(job)
        if self._async_client is None:
            self._async_client = AsyncClient()
        locks = self._async_client.locks

        async def run(*args: Any, **kwargs: Any) -> Any:
            entered = False
            try:
                async with locks.with_lock(fire_key(job, times.current), ttl=seconds, hold_at_least=seconds) as guard:
                    entered = True
                    return await job.func(*args, **guarded.with_guard(guard, args, kwargs))
            except LockHeldError:
                if entered:
                    raise
            log.debug("skipped job %s, fired at %s: another process runs it", job.id, times.current)
            return None

        return run


def checked_job(job: "Job") -> "Job":
    """Return `job` if all processes give its fires the same keys; raise `ValueError` otherwise."""
    if _GENERATED_ID.fullmatch(job.id):
        raise ValueError(f"job {job.name!r} has a generated id, which differs between processes: add it with id=…")
    if getattr(job.trigger, "jitter", None):
        raise ValueError(f"job {job.id!r} has jitter, so its fire times differ between processes: leave jitter out")
    return job


def fire_key(job: "Job", fire_time: datetime) -> str:
    """The lock's key for one fire: the job's id and the time in UTC.

    An interval without a start date begins when its process starts, so its fires are counted from 1970 on: the first
    process that fires in an interval runs the job.
    """
    seconds = fire_time.timestamp()
    if isinstance(job.trigger, IntervalTrigger):
        length = job.trigger.interval.total_seconds()
        seconds = seconds // length * length
    return f"{job.id}:{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S.%f}"


def hold_seconds(job: "Job") -> int:
    """How long a fire's lock stays held: as long as another process may still come with the same fire."""
    late = GRACE_SECONDS if job.misfire_grace_time is None else job.misfire_grace_time
    if isinstance(job.trigger, IntervalTrigger):
        late = max(late, job.trigger.interval.total_seconds())
    return ceil(late) + CLOCK_SECONDS
