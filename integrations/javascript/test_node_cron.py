"""node-cron: two processes with the same distributed task; each fire runs once, and fails closed."""

from collections import Counter
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path

from integrations.workers import Journal, example, started

APPS = Path(__file__).parent / "apps"


def program(folder: Path) -> list[str]:
    """The process of the tests, next to the packages that Node finds there."""
    (folder / "cron.mjs").write_text((APPS / "cron.mjs").read_text())
    return ["node", "cron.mjs"]


def test_each_fire_runs_once_in_two_processes(environment: dict[str, str], tmp_path: Path, journal: Journal) -> None:
    """The second process is killed on the way, and the first goes on alone: no fire waits for another one's lock."""
    with started(program(tmp_path), environment, tmp_path) as (_, second):
        journal.wait_for("ready", 2)
        journal.wait_for("fire", 4)
        second.kill()
        journal.wait_for("fire", len(journal.events("fire")) + 4)
    fires = Counter(event.job for event in journal.events("fire"))
    assert set(fires.values()) == {1}, fires
    at = sorted(map(datetime.fromisoformat, fires))
    assert all(later - earlier <= timedelta(seconds=2) for earlier, later in pairwise(at)), fires
    assert journal.events("not-elected")


def test_a_fire_is_not_released_when_its_run_ends(
    environment: dict[str, str], tmp_path: Path, journal: Journal
) -> None:
    """A process that comes seconds later, when the run has ended long ago, must not run the same fire."""
    with started(program(tmp_path), environment, tmp_path, 1, "first"):
        fires = [event.job for event in journal.wait_for("fire", 2)]
        ask = (
            'import { lockCoordinator } from "volcano-locks/node-cron";'
            f'console.log(await lockCoordinator().shouldRun("tick:{fires[0]}", 5000));'
        )
        (tmp_path / "late.mjs").write_text(ask)
        with started(["node", "late.mjs"], environment, tmp_path, 1, "late") as (asking,):
            assert asking.wait() == 0, asking.output()
            assert asking.output() == "false\n"


def test_without_the_service_no_fire_runs(environment: dict[str, str], tmp_path: Path, journal: Journal) -> None:
    unreachable = environment | {"VOLCANO_API_URL": "http://127.0.0.1:9"}
    with started(program(tmp_path), unreachable, tmp_path, count=1):
        journal.wait_for("coordinator-error", 2)
    assert journal.events("fire") == []


def test_the_example_of_the_page_runs(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "jobs.mjs").write_text(example("node-cron.md"))
    with started(["node", "jobs.mjs"], environment, tmp_path, count=1) as (worker,):
        worker.wait_for_output("rolled up for ")
