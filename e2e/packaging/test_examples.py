"""The examples run alone, beside another holder, and with a lost lease."""

import asyncio
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from volcano_locks import Client
from volcano_locks.testing import FakeAsyncClient, FakeClient, ManualClock

from .dev_server import dev_server

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    bare = {name: value for name, value in os.environ.items() if "VOLCANO" not in name}
    with dev_server(Path(sys.executable).with_name("volcano-locks"), bare, tmp_path_factory.mktemp("dev")) as ready:
        yield ready


def run(environment: dict[str, str], name: str, *arguments: str | Path) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("name", "lock", "lines"), [("rollup.py", "daily-rollup", 3), ("async_worker.py", "newsletter", 3)]
)
def test_one_worker_works_and_another_exits_with_75(
    environment: dict[str, str], name: str, lock: str, lines: int
) -> None:
    exit_code, output, errors = run(environment, name)
    assert (exit_code, len(output.splitlines()), errors) == (0, lines, "")
    client = Client(environment["VOLCANO_API_URL"], environment["VOLCANO_SERVICE_KEY"])
    with client, client.locks.with_lock(lock, ttl=30):
        assert run(environment, name) == (75, "", f"another worker holds {lock}\n")


def test_the_fenced_write_succeeds(environment: dict[str, str], tmp_path: Path) -> None:
    exit_code, output, errors = run(environment, "fenced_write.py", tmp_path / "app.db", "42")
    assert (exit_code, errors) == (0, "")
    assert output.startswith("wrote 42 with fencing token ")


def loaded(name: str) -> ModuleType:
    spec = spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_rollup_that_loses_its_lease_stops_and_reports_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rollup, clock = loaded("rollup"), ManualClock()

    def steps() -> Iterator[str]:
        yield "one"
        clock.jump(31)
        yield "two"

    monkeypatch.setattr(rollup, "Client", lambda: FakeClient(clock))
    monkeypatch.setattr(rollup, "STEPS", steps())
    assert rollup.main() == 76
    output, errors = capsys.readouterr()
    assert "one" in output
    assert "two" not in output
    assert errors == "daily-rollup was lost: the next holder runs the remaining steps\n"


def test_an_async_worker_that_loses_its_lease_stops_and_reports_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    worker, clock = loaded("async_worker"), ManualClock()

    async def send_mails(_count: int) -> None:
        clock.jump(31)
        await asyncio.sleep(60)

    monkeypatch.setattr(worker, "AsyncClient", lambda: FakeAsyncClient(clock))
    monkeypatch.setattr(worker, "send_mails", send_mails)
    assert asyncio.run(worker.main()) == 76
    assert capsys.readouterr().err == "newsletter was lost: the next holder sends the remaining mails\n"


@pytest.fixture
def fenced_write() -> ModuleType:
    return loaded("fenced_write")


def test_a_lower_fencing_token_writes_nothing(fenced_write: ModuleType) -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(fenced_write.CREATE)
        fenced_write.write_total(connection, "daily-rollup", 1, 10)
        fenced_write.write_total(connection, "daily-rollup", 2, 10)
        fenced_write.write_total(connection, "daily-rollup", 3, 11)
        with pytest.raises(fenced_write.StaleWriteError, match="later holder than fencing token 10"):
            fenced_write.write_total(connection, "daily-rollup", 4, 10)
        assert connection.execute("SELECT total, fencing_token FROM report").fetchall() == [(3, 11)]
