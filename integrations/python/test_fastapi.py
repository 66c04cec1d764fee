"""FastAPI under uvicorn: two processes, one leads; shutdown hands over, kill -9 does so when the lease expires."""

import sys
import time
from pathlib import Path

import httpx2
from integrations.workers import Journal, Worker, example, started
from testsupport.engines.processes import free_port

APPS = Path(__file__).parent / "apps"
TTL = 5


def ready(worker: Worker) -> None:
    worker.wait_for_output("Application startup complete")


def test_a_graceful_shutdown_hands_over_at_once(environment: dict[str, str], tmp_path: Path, journal: Journal) -> None:
    command = [sys.executable, "-m", "uvicorn", "--app-dir", APPS, "leader:app", "--port", "0"]
    with started(command, environment, tmp_path) as workers:
        for worker in workers:
            ready(worker)
        (first,) = journal.wait_for("start")
        leader, other = sorted(workers, key=lambda worker: worker.process.pid != first.pid)
        stopped_at = time.monotonic()
        assert leader.stop() in (0, -15)
        journal.wait_for("start", 2)
        assert time.monotonic() - stopped_at < TTL - 1
        assert [event.what for event in journal.events()] == ["start", "end", "start"]
        assert journal.events("start")[1].pid == other.process.pid


def test_another_worker_leads_when_the_leader_is_killed(
    environment: dict[str, str], tmp_path: Path, journal: Journal
) -> None:
    command = [sys.executable, "-m", "uvicorn", "--app-dir", APPS, "leader:app", "--port", "0"]
    with started(command, environment, tmp_path) as workers:
        (first,) = journal.wait_for("start")
        (leader,) = [worker for worker in workers if worker.process.pid == first.pid]
        leader.kill()
        journal.add("killed", "plan", first.pid)
        journal.wait_for("start", 2)
    journal.check_no_overlap()


def test_one_of_the_workers_says_that_it_leads_and_campaigns_again_after_an_error(
    environment: dict[str, str], tmp_path: Path, journal: Journal
) -> None:
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "--app-dir", APPS, "leader:app", "--port", str(port)]
    with started(command, environment | {"FAILS": "1"}, tmp_path, count=1) as (worker,):
        journal.wait_for("start", 2)
        worker.wait_for_output("campaigning again")
        ready(worker)
        assert httpx2.get(f"http://127.0.0.1:{port}/leads").json() is True


def test_the_example_of_the_page_runs(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(example("fastapi.md"))
    command = [sys.executable, "-m", "uvicorn", "app:app", "--port", "0"]
    with started(command, environment, tmp_path) as workers:
        for worker in workers:
            ready(worker)
        give_up_at = time.monotonic() + 20
        while sum(worker.output().count("planning under fencing token") for worker in workers) < 2:
            assert time.monotonic() < give_up_at, [worker.output() for worker in workers]
            time.sleep(0.05)
        assert sum("planning" in worker.output() for worker in workers) == 1
