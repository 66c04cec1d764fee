"""Sidekiq and Active Job: two Sidekiq processes over Redis; a killed process's key moves on."""

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from integrations.workers import Journal, Worker, example, started

APPS = Path(__file__).parent / "apps"
Send = Callable[..., None]


@pytest.fixture
def environment(environment: dict[str, str], redis_database: str, tmp_path: Path) -> dict[str, str]:
    (tmp_path / "jobs.rb").write_text((APPS / "jobs.rb").read_text())
    return environment | {"REDIS_URL": redis_database}


@pytest.fixture
def send(environment: dict[str, str], tmp_path: Path) -> Send:
    """Sends jobs, as a program that runs none: `send("NativeSkipping a 1")`."""

    def send(*calls: str) -> None:
        done = subprocess.run(
            ["ruby", "jobs.rb", *calls], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr

    return send


@contextmanager
def processes(environment: dict[str, str], folder: Path, file: str = "./jobs.rb") -> Iterator[list[Worker]]:
    """Two Sidekiq processes that are ready."""
    with started(["sidekiq", "-r", file, "-c", "2", "-t", "2"], environment, folder) as workers:
        for worker in workers:
            worker.wait_for_output("Running in ruby")
        yield workers


@pytest.mark.parametrize("kind", ["Native", "Active"])
def test_at_most_one_run_per_key_and_a_held_key_is_skipped(
    environment: dict[str, str], tmp_path: Path, journal: Journal, send: Send, kind: str
) -> None:
    with processes(environment, tmp_path) as workers:
        send(f"{kind}Skipping a -1")
        journal.wait_for("start")
        send(f"{kind}Skipping a 0", f"{kind}Skipping a 0", f"{kind}Skipping b 0")
        journal.wait_for("end", 1, "b")
        time.sleep(1)
        go_on(journal)
        journal.wait_for("end", 2)
        assert "fail" not in "".join(worker.output() for worker in workers)
    assert sorted(event.job for event in journal.events("start")) == ["a", "b"]


@pytest.mark.parametrize("kind", ["NativeRetrying", "ActiveRetrying", "NativeRaising", "ActiveRaising"])
def test_a_held_job_runs_later(
    environment: dict[str, str], tmp_path: Path, journal: Journal, send: Send, kind: str
) -> None:
    with processes(environment, tmp_path):
        send(f"{kind} a -1")
        journal.wait_for("start")
        send(f"{kind} a 0")
        time.sleep(2)
        assert len(journal.events()) == 1
        go_on(journal)
        journal.wait_for("end", 2)
    journal.check_no_overlap()


@pytest.mark.parametrize("kind", ["NativeRetrying", "ActiveRetrying"])
def test_another_process_takes_over_from_a_killed_one(
    environment: dict[str, str], tmp_path: Path, journal: Journal, send: Send, kind: str
) -> None:
    """kill -9 loses the running job, as Sidekiq without its paid parts does; the next job of the key is not lost."""
    with processes(environment, tmp_path) as workers:
        send(f"{kind} a 60")
        (first,) = journal.wait_for("start")
        send(f"{kind} a 0")
        (killed,) = [worker for worker in workers if worker.process.pid == first.pid]
        killed.kill()
        journal.add("killed", "a", first.pid)
        (ended,) = journal.wait_for("end")
    assert ended.pid != first.pid
    journal.check_no_overlap()


@pytest.mark.parametrize("page", ["sidekiq.md", "active-job.md"])
def test_the_example_of_the_page_runs(environment: dict[str, str], tmp_path: Path, page: str) -> None:
    (tmp_path / "app.rb").write_text(example(page))
    with processes(environment, tmp_path, "./app.rb") as workers:
        send = "perform_async" if page == "sidekiq.md" else "perform_later"
        program = f'require "./app"; InvoiceJob.{send}("ada")'
        subprocess.run(["ruby", "-e", program], env=environment, cwd=tmp_path, check=True, capture_output=True)
        wait_for_any(workers, "invoiced ada under fencing token")


def go_on(journal: Journal) -> None:
    """End the jobs that wait for it."""
    Path(f"{journal.path}.go-on").touch()


def wait_for_any(workers: list[Worker], text: str) -> None:
    """Return when one of the workers printed `text`."""
    give_up_at = time.monotonic() + 30
    while not any(text in worker.output() for worker in workers):
        assert time.monotonic() < give_up_at, [worker.output() for worker in workers]
        time.sleep(0.05)
