"""Celery: two real workers over Redis, prefork and gevent pools; a killed worker's key moves on."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from integrations.workers import EVENT_SECONDS_MAX, Journal, Worker, example, started

from volcano_locks import Client
from volcano_locks.contrib.celery import exclusive_task

APPS = Path(__file__).parent / "apps"
TTL = 5


class Tasks:
    """Sends tasks, as a program without workers does."""

    def __init__(self, environment: dict[str, str], folder: Path) -> None:
        self.environment = environment
        self.folder = folder

    def run(self, code: str) -> str:
        """Run Python code beside the tasks and return what it printed."""
        program = f"from tasks import *\n{code}"
        command = [sys.executable, "-c", program]
        done = subprocess.run(
            command, env=self.environment, cwd=self.folder, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def send(self, *calls: str) -> None:
        """Send tasks: `skipping.delay("a", 1)`."""
        self.run("\n".join(calls))

    @contextmanager
    def workers(self, pool: str = "prefork", concurrency: int = 1, count: int = 2) -> Iterator[list[Worker]]:
        """Two workers that are ready."""
        command = [sys.executable, "-m", "celery", "-A", "tasks", "worker", "-P", pool, "-c", str(concurrency)]
        command += ["-n", "w{n}", "--without-gossip", "--without-mingle", "-l", "INFO"]
        with started(command, self.environment, self.folder, count) as workers:
            for worker in workers:
                worker.wait_for_output(" ready.")
            yield workers


@pytest.fixture
def tasks(environment: dict[str, str], redis_database: str, tmp_path: Path) -> Tasks:
    (tmp_path / "tasks.py").write_text((APPS / "tasks.py").read_text())
    return Tasks(environment | {"BROKER": redis_database}, tmp_path)


@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_at_most_one_run_per_key_and_a_held_key_is_skipped(tasks: Tasks, journal: Journal, pool: str) -> None:
    with tasks.workers(pool, concurrency=2):
        tasks.send('skipping.delay("a", -1)')
        journal.wait_for("start", 1)
        tasks.send(
            'assert [one.get(20) for one in [skipping.delay("a", 0) for _ in range(3)]] == [None] * 3',
            'assert skipping.delay("b", 0).get(20) == "b"',  # another key is not held
        )
        go_on(journal)
        journal.wait_for("end", 2)
    assert sorted(event.job for event in journal.events("start")) == ["a", "b"]


def test_a_retried_task_runs_later_and_blocks_no_worker(tasks: Tasks, journal: Journal) -> None:
    """Six tasks wait for the key, and there are four processes. `max_retries` does not count how often it was held."""
    with tasks.workers(concurrency=2):
        tasks.send('retrying.delay("a", -1)')
        journal.wait_for("start", 1)
        tasks.send('for _ in range(6): retrying.delay("a", 0)', 'plain.delay("x")')
        journal.wait_for("plain", 1)
        time.sleep(3)
        assert len(journal.events("end")) == 0
        go_on(journal)
        journal.wait_for("end", 7)
    journal.check_no_overlap()


def test_a_held_key_may_fail_the_task(tasks: Tasks, journal: Journal) -> None:
    """At once, or after `retries_max` retries."""
    with tasks.workers(concurrency=2):
        tasks.send('failing.delay("a", -1)')
        journal.wait_for("start", 1)
        for name in ("failing", "limited"):
            assert "LockHeldError" in tasks.run(f'print(type({name}.delay("a", 0).get(20, propagate=False)).__name__)')
    assert len(journal.events("start")) == 1


@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_a_loss_is_raised_in_the_running_task(tasks: Tasks, journal: Journal, client: Client, pool: str) -> None:
    with tasks.workers(pool, count=1):
        tasks.send('skipping.delay("a", 30)')
        journal.wait_for("start", 1)
        client.locks.force_release("job-a")
        journal.wait_for("lost", 1)
        tasks.send('assert skipping.delay("b", 0).get(10) == "b"')  # the worker goes on
    assert len(journal.events("end")) == 1


def test_a_soft_time_limit_frees_the_key(tasks: Tasks, journal: Journal, client: Client) -> None:
    with tasks.workers(count=1):
        tasks.send('skipping.apply_async(("a", 30), soft_time_limit=1)')
        journal.wait_for("soft-limit", 1)
        wait_until_free(client, "job-a", TTL - 2)


def test_a_hard_time_limit_frees_the_key_when_the_lease_expires(tasks: Tasks, journal: Journal) -> None:
    with tasks.workers(count=1):
        tasks.send('skipping.apply_async(("a", 30), time_limit=1)')
        journal.wait_for("start", 1)
        tasks.send('assert failing.delay("b", 0).get(20) == "b"', 'retrying.delay("a", 0)')
        journal.wait_for("end", 1, job="a")


@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_a_revoked_run_frees_the_key(tasks: Tasks, journal: Journal, client: Client, pool: str) -> None:
    with tasks.workers(pool, count=1):
        task_id = tasks.run('print(skipping.delay("a", 30).id)').strip()
        journal.wait_for("start", 1)
        tasks.send(f'app.control.revoke("{task_id}", terminate=True)')
        wait_until_free(client, "job-a", TTL - 2)


def test_a_redelivered_task_waits_for_the_lease_of_its_killed_run(tasks: Tasks, journal: Journal) -> None:
    """kill -9 of the child that runs it, with `acks_late`: a key held by a dead run does not skip the work."""
    with tasks.workers():
        tasks.send('late.delay("a", 30)')
        (first,) = journal.wait_for("start", 1)
        Path(f"{journal.path}.quick").touch()
        journal.add("killed", "a", first.pid)
        os.kill(first.pid, signal.SIGKILL)
        (_, second) = journal.wait_for("start", 2)
        journal.wait_for("end", 1)
    assert second.pid != first.pid
    journal.check_no_overlap()


def test_another_worker_takes_over_from_a_killed_one(tasks: Tasks, journal: Journal) -> None:
    """kill -9 of a whole worker: Redis delivers the task again after its visibility timeout."""
    tasks.environment["VISIBILITY_SECONDS"] = "2"
    with tasks.workers() as workers:
        tasks.send('late.delay("a", 30)')
        (first,) = journal.wait_for("start", 1)
        (of_first,) = [worker for worker in workers if os.getpgid(first.pid) == worker.process.pid]
        Path(f"{journal.path}.quick").touch()
        of_first.kill()
        journal.add("killed", "a", first.pid)
        journal.wait_for("end", 1)
    journal.check_no_overlap()


def test_the_example_of_the_page_runs(environment: dict[str, str], redis_database: str, tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(example("celery.md"))
    urls = {"CELERY_BROKER_URL": redis_database, "CELERY_RESULT_BACKEND": redis_database}
    tasks = Tasks(environment | urls, tmp_path)
    with tasks.workers() as workers:
        tasks.send('invoice.delay("ada")', 'invoice.delay("grace")')
        give_up_at = time.monotonic() + EVENT_SECONDS_MAX
        while not all(f"invoiced {one}" in "".join(w.output() for w in workers) for one in ("ada", "grace")):
            assert time.monotonic() < give_up_at, [worker.output() for worker in workers]
            time.sleep(0.05)


def test_bad_arguments_are_refused_when_the_task_is_declared() -> None:
    app = Any
    with pytest.raises(ValueError, match="on_held must be skip, retry or raise, got 'wait'"):
        exclusive_task(app, key="a", on_held="wait")  # type: ignore[arg-type]


def go_on(journal: Journal) -> None:
    """End the tasks that wait for it."""
    Path(f"{journal.path}.go-on").touch()


def wait_until_free(client: Client, key: str, seconds: float) -> None:
    """The lock must be released, which is sooner than its expiry."""
    give_up_at = time.monotonic() + seconds
    while client.locks.get(key).held:
        assert time.monotonic() < give_up_at, f"{key} is still held"
        time.sleep(0.05)
