"""NestJS: two real applications; `@Exclusive()` beside `@Cron()` in both orders, shutdown, a killed process."""

import json
import subprocess
from pathlib import Path

import pytest
from integrations.workers import ROOT, Journal, example, started

from volcano_locks import Client

APPS = Path(__file__).parent / "apps"
TTL = 5
OPTIONS = {
    "target": "ES2022",
    "module": "NodeNext",
    "moduleResolution": "NodeNext",
    "strict": True,
    "experimentalDecorators": True,
    "emitDecoratorMetadata": True,
    "skipLibCheck": True,
    "types": ["node"],
}


def compiled(folder: Path, source: str) -> list[str]:
    """The command that runs a TypeScript program, after its types were checked."""
    (folder / "package.json").write_text('{"type": "module"}')
    (folder / "app.ts").write_text(source)
    (folder / "tsconfig.json").write_text(json.dumps({"compilerOptions": OPTIONS, "files": ["app.ts"]}))
    compiler = ROOT / "sdks/javascript/node_modules/typescript/bin/tsc"
    done = subprocess.run(["node", compiler], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    return ["node", "app.js"]


@pytest.fixture
def app(environment: dict[str, str], tmp_path: Path) -> list[str]:
    assert environment
    return compiled(tmp_path, (APPS / "nest.ts").read_text())


@pytest.mark.parametrize("job", ["outer", "inner"])
def test_a_method_runs_in_one_process_at_a_time_and_moves_on(
    app: list[str], environment: dict[str, str], tmp_path: Path, journal: Journal, job: str
) -> None:
    with started(app, environment | {"SECONDS": "1.5"}, tmp_path) as workers:
        journal.wait_for("end", 2, job)
        (running,) = [worker for worker in workers if worker.process.pid == journal.events("start")[-1].pid]
        running.kill()
        for one in ("outer", "inner"):
            journal.add("killed", one, running.process.pid)
        seen = len([event for event in journal.events("end") if event.job == job])
        journal.wait_for("end", seen + 2, job)
    assert {event.job for event in journal.events("start")} == {"outer", "inner"}
    journal.check_no_overlap()


def test_a_shutdown_waits_for_running_methods_and_releases_their_locks(
    app: list[str], environment: dict[str, str], tmp_path: Path, journal: Journal, client: Client
) -> None:
    with started(app, environment | {"SECONDS": "2"}, tmp_path, count=1) as (worker,):
        journal.wait_for("start", 2)
        worker.stop()
        assert not any(client.locks.get(key).held for key in ("outer", "inner"))
        assert len(journal.events("end")) == len(journal.events("start"))


def test_a_shutdown_does_not_wait_longer_than_its_limit(
    app: list[str], environment: dict[str, str], tmp_path: Path, journal: Journal, client: Client
) -> None:
    """The lock of a method that still runs is not released: it expires."""
    with started(app, environment | {"SECONDS": "60"}, tmp_path, count=1) as (worker,):
        journal.wait_for("start", 2)
        worker.stop()
        assert client.locks.get("outer").held


def test_without_the_module_the_application_does_not_start(
    app: list[str], environment: dict[str, str], tmp_path: Path, journal: Journal
) -> None:
    with started(app, environment | {"NO_MODULE": "1"}, tmp_path, count=1) as (worker,):
        assert worker.wait() != 0
        assert "VolcanoLocksModule.forRoot()" in worker.output()
    assert journal.events() == []


def test_the_example_of_the_page_runs(environment: dict[str, str], tmp_path: Path) -> None:
    with started(compiled(tmp_path, example("nestjs.md")), environment, tmp_path, count=1) as (worker,):
        worker.wait_for_output("rolled up")
