"""APScheduler 3: two processes with the same jobs; each fire runs once, also if a process is killed."""

import sys
import time
from collections import Counter
from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.interval import IntervalTrigger
from integrations.workers import Journal, example, started

from volcano_locks.contrib.apscheduler import checked_job, fire_key, hold_seconds

APPS = Path(__file__).parent / "apps"


@pytest.mark.parametrize("scheduler", ["background", "asyncio", "asyncio-threads"])
@pytest.mark.parametrize("trigger", ["cron", "interval"])
def test_each_fire_runs_once_in_two_processes(
    environment: dict[str, str], tmp_path: Path, journal: Journal, scheduler: str, trigger: str
) -> None:
    """The second process is killed on the way, and the first goes on alone."""
    command = [sys.executable, APPS / "schedule.py", scheduler, trigger]
    with started(command, environment, tmp_path) as (_, second):
        journal.wait_for("ready", 2)
        journal.wait_for("fire", 4)
        second.kill()
        before = len(journal.events("fire"))
        journal.wait_for("fire", before + 3)
    fires = Counter(event.job for event in journal.events("fire"))
    assert set(fires.values()) == {1}, fires
    seconds = sorted(datetime.strptime(job, "tick:%Y-%m-%dT%H:%M:%S.%f").replace(tzinfo=UTC) for job in fires)
    assert all(later - earlier <= timedelta(seconds=1) for earlier, later in pairwise(seconds)), seconds


def test_without_the_service_a_job_does_not_run(environment: dict[str, str], tmp_path: Path, journal: Journal) -> None:
    unreachable = environment | {"VOLCANO_API_URL": "http://127.0.0.1:9"}
    with started([sys.executable, APPS / "schedule.py", "background", "cron"], unreachable, tmp_path, 1) as (worker,):
        worker.wait_for_output("raised an exception", 2)
    assert journal.events("fire") == []


def test_the_example_of_the_page_runs(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text(example("apscheduler.md") + "\nimport time\ntime.sleep(60)\n")
    with started([sys.executable, "jobs.py"], environment, tmp_path) as workers:
        give_up_at = time.monotonic() + 30
        while sum(worker.output().count("rolled up under fencing token") for worker in workers) < 2:
            assert time.monotonic() < give_up_at, [worker.output() for worker in workers]
            time.sleep(0.05)


def job(trigger: Any, **changes: Any) -> Any:
    return SimpleNamespace(
        **{"id": "nightly", "name": "nightly", "trigger": trigger, "misfire_grace_time": 1} | changes
    )


def test_a_fire_has_the_same_key_in_every_time_zone() -> None:
    fired_at = datetime(2026, 3, 29, 1, 30, tzinfo=UTC)
    elsewhere = fired_at.astimezone(timezone(timedelta(hours=9)))
    one = job(CronTrigger(minute=30))
    assert fire_key(one, fired_at) == fire_key(one, elsewhere) == "nightly:2026-03-29T01:30:00.000000"


def test_interval_fires_within_one_step_have_the_same_key() -> None:
    one = job(IntervalTrigger(seconds=10))
    at = datetime(2026, 1, 1, tzinfo=UTC)
    keys = [fire_key(one, at + timedelta(seconds=seconds)) for seconds in (0, 3.5, 9.9, 10)]
    assert keys[0] == keys[1] == keys[2] != keys[3]


def test_a_fire_stays_locked_while_another_process_may_come_late() -> None:
    cron, interval = CronTrigger(minute=30), IntervalTrigger(minutes=10)
    assert hold_seconds(job(cron, misfire_grace_time=300)) == 360
    assert hold_seconds(job(cron, misfire_grace_time=None)) == 3660
    assert hold_seconds(job(interval)) == 660


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (job(CronTrigger(minute=1), id="0" * 32), "has a generated id"),
        (job(CronTrigger(minute=1, jitter=5)), "has jitter"),
    ],
)
def test_jobs_whose_fires_differ_between_processes_are_refused(bad: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        checked_job(bad)
