"""Rake and Rails: two real processes; exit codes, the migration guard, a killed host."""

import shutil
import subprocess
from pathlib import Path

import pytest
from integrations.workers import Journal, example, started

from volcano_locks import Client

APPS = Path(__file__).parent / "apps"
HELD, LOST = 75, 76


def rake(folder: Path, environment: dict[str, str], *arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        ["rake", *arguments], env=environment, cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def host(tmp_path: Path) -> Path:
    shutil.copy(APPS / "Rakefile", tmp_path)
    return tmp_path


@pytest.fixture
def application(tmp_path: Path) -> Path:
    shutil.copytree(APPS / "rails", tmp_path, dirs_exist_ok=True)
    return tmp_path


def test_exit_codes(host: Path, environment: dict[str, str], journal: Journal, client: Client) -> None:
    with started(["rake", "work_fail"], environment | {"SECONDS": "8"}, host, count=1) as (holder,):
        journal.wait_for("start")
        code, output = rake(host, environment, "work_fail")
        assert (code, "not run: " in output, "before" in output) == (HELD, True, True), output
        code, output = rake(host, environment, "work_skip")
        assert (code, "skipped: " in output) == (0, True), output
        client.locks.force_release("work")
        assert holder.wait() == LOST
        assert "stopped: " in holder.output()
    assert rake(host, environment, "work_wait")[0] == 0
    code, output = rake(host, environment, "own_error")
    assert (code, "of the task itself" in output) == (1, True), output


def test_another_host_runs_the_task_when_the_first_is_killed(
    host: Path, environment: dict[str, str], journal: Journal
) -> None:
    with started(["rake", "work_wait"], environment | {"SECONDS": "60"}, host, 1, "first") as (first,):
        journal.wait_for("start")
        with started(["rake", "work_wait"], environment, host, 1, "second") as (second,):
            first.kill()
            journal.add("killed", "work", first.process.pid)
            assert second.wait() == 0
    journal.check_no_overlap()


def test_the_example_of_the_page_runs_once_on_two_hosts(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "Rakefile").write_text(example("rake.md"))
    with started(["rake", "rollup"], environment, tmp_path) as hosts:
        assert [host.wait() for host in hosts] == [0, 0]
        output = "".join(host.output() for host in hosts)
    assert output.count("rolled up under fencing token") == 1
    assert output.count("skipped: ") == 1


def test_one_host_migrates_and_the_other_waits(
    application: Path, environment: dict[str, str], journal: Journal
) -> None:
    with started(["rake", "db:migrate"], environment, application) as hosts:
        codes = [host.wait() for host in hosts]
        assert codes == [0, 0], [host.output() for host in hosts]
    assert len(journal.events("start")) == 1


def test_another_host_migrates_when_the_first_is_killed(
    application: Path, environment: dict[str, str], journal: Journal
) -> None:
    with started(["rake", "db:migrate"], environment | {"MIGRATION_SECONDS": "60"}, application, 1, "first") as (
        first,
    ):
        journal.wait_for("start")
        with started(["rake", "db:migrate"], environment, application, 1, "second") as (second,):
            first.kill()
            journal.add("killed", "migrate", first.process.pid)
            assert second.wait() == 0, second.output()
    assert len(journal.events("end")) == 1
    journal.check_no_overlap()


def test_guarded_tasks_may_invoke_each_other(application: Path, environment: dict[str, str], journal: Journal) -> None:
    assert rake(application, environment, "db:prepare")[0] == 0
    assert rake(application, environment, "db:migrate", "db:rollback")[0] == 0
    assert len(journal.events("end")) >= 1
