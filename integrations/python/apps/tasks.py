"""The Celery application of the tests. Its tasks write what happens to the journal."""

import os
import time

from celery import Celery
from celery.exceptions import SoftTimeLimitExceeded

from volcano_locks import LockGuard, LockOwnershipLostError
from volcano_locks.contrib.celery import exclusive_task

app = Celery("tasks", broker=os.environ["BROKER"], backend=os.environ["BROKER"])
app.conf.update(
    broker_transport_options={
        "visibility_timeout": float(os.environ.get("VISIBILITY_SECONDS", "3600")),
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
    },
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
)
TTL = 5


def note(what: str, job: str) -> None:
    with open(os.environ["JOURNAL"], "a") as journal:
        journal.write(f"{what} {job} {os.getpid()}\n")


def work(job: str, seconds: float, guard: LockGuard) -> str:
    """Sleep for `seconds`, or, if they are negative, until the test creates the file that ends the task."""
    note("start", job)
    try:
        if seconds >= 0:
            time.sleep(seconds)
        while seconds < 0 and not os.path.exists(f"{os.environ['JOURNAL']}.go-on"):
            time.sleep(0.05)
    except SoftTimeLimitExceeded:
        note("soft-limit", job)
        raise
    except LockOwnershipLostError:
        note("lost", job)
        raise
    except BaseException as error:
        note(type(error).__name__, job)
        raise
    assert not guard.lost
    note("end", job)
    return job


@exclusive_task(app, key="job-{job}", ttl=TTL)
def skipping(job: str, seconds: float, guard: LockGuard) -> str:
    return work(job, seconds, guard)


@exclusive_task(app, key="job-{job}", ttl=TTL, on_held="retry", retry_every=0.5, max_retries=1, bind=True)
def retrying(self, job: str, seconds: float, guard: LockGuard) -> str:
    assert self.request.retries == 0
    return work(job, seconds, guard)


@exclusive_task(app, key="job-{job}", ttl=TTL, on_held="retry", retry_every=0.2, retries_max=2)
def limited(job: str, seconds: float, guard: LockGuard) -> str:
    return work(job, seconds, guard)


@exclusive_task(app, key="job-{job}", ttl=TTL, on_held="raise")
def failing(job: str, seconds: float, guard: LockGuard) -> str:
    return work(job, seconds, guard)


@exclusive_task(app, key="job-{job}", ttl=TTL, retry_every=0.5, acks_late=True, reject_on_worker_lost=True)
def late(job: str, seconds: float, guard: LockGuard) -> str:
    return work(job, 0.1 if os.path.exists(os.environ["JOURNAL"] + ".quick") else seconds, guard)


@app.task
def plain(job: str) -> None:
    note("plain", job)
