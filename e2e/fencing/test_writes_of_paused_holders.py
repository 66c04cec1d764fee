"""Late writes of paused holders, with real processes, a real server and real databases, in each client's language."""

import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from volcano_locks_server.testing import RunningServer, running_server

from .databases import REFUSAL, TABLE, Database, fencing_sql
from .worker_process import SDKS, FencedTable, Worker, command

pytestmark = pytest.mark.real_time


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server() as running:
        yield running


@pytest.fixture(scope="module")
def javascript_client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The client as packaged, built in a temporary folder."""
    package, built = SDKS / "javascript", tmp_path_factory.mktemp("javascript")
    if not (package / "node_modules").exists():
        subprocess.run(["npm", "ci", "--silent"], cwd=package, check=True)
    subprocess.run(["node_modules/.bin/tsdown", "--silent", "--out-dir", built], cwd=package, check=True)
    return built / "index.mjs"


@pytest.fixture(params=["python", "javascript", "ruby"])
def new_worker(request: pytest.FixtureRequest, server: RunningServer) -> Iterator[Callable[[], Worker]]:
    """Starts workers of one language for one lock. They are killed after the test, paused ones included."""
    language: str = request.param
    environment = {}
    if language == "javascript":
        environment["FENCING_CLIENT"] = str(request.getfixturevalue("javascript_client"))
    assert shutil.which(command(language)[0]), f"the tests need {command(language)[0]}"
    workers: list[Worker] = []

    def new() -> Worker:
        workers.append(Worker(command(language), server, f"monday-{language}", **environment))
        return workers[-1]

    yield new
    for worker in workers:
        worker.close()


@pytest.fixture
def tables(postgresql: Database, mariadb: Database, sqlite: Database, tmp_path: Path) -> list[FencedTable]:
    """A fenced table with one row in each database."""
    folder = tmp_path / "lines"
    folder.mkdir()
    for database in (postgresql, mariadb, sqlite):
        row = "INSERT INTO report (day, total) VALUES ('monday', 0);"
        database.apply(f"{TABLE};\n{fencing_sql(database.dialect)}\n{row}")
    return [FencedTable(database, folder) for database in (postgresql, mariadb, sqlite)]


def test_a_holder_paused_past_its_lease_sees_the_loss_and_its_writes_are_refused(
    new_worker: Callable[[], Worker], tables: list[FencedTable], tmp_path: Path
) -> None:
    """CLI-20, SDK-4, cases 10 and 11: a holder checks its guard, is paused before its write, and is taken over.

    Only the database refuses that write. From then on the holder's client reports the loss too.
    """
    first = new_worker()
    first_token = first.read_message()["held"]
    for table in tables:
        first.run_command(table.fenced_write("first"))
        assert first.read_message() == {"lost": False}
        assert first.read_message() == {"exit_code": 0, "output": "1\n", "lost": False}

    gate = tmp_path / "gate"
    first.run_command(f"while [ ! -e {gate} ]; do sleep 0.05; done; {tables[0].unfenced_write('first, late')}")
    assert first.read_message() == {"lost": False}
    first.send(signal.SIGSTOP)
    gate.touch()

    second = new_worker()
    assert second.read_message()["held"] > first_token
    for table in tables:
        second.run_command(table.fenced_write("second"))
        assert second.read_message() == {"lost": False}
        assert second.read_message()["output"] == "1\n"

    first.send(signal.SIGCONT)
    message = first.read_message()
    assert REFUSAL in message["output"]
    assert message["exit_code"] != 0
    assert message["lost"], "the client knows of the loss by the time the write is refused"
    for table in tables:
        first.run_command(table.unfenced_write("first, later"))
        assert first.read_message() == {"lost": True}
        message = first.read_message()
        assert REFUSAL in message["output"]
        assert message["exit_code"] != 0
        first.run_command(table.fenced_write("first, later"))
        assert first.read_message() == {"lost": True}
        assert first.read_message() == {"exit_code": 0, "output": "0\n", "lost": True}

    assert first.ended() == {"ended": "lost"}
    assert second.ended() == {"ended": "held"}
    for table in tables:
        with closing(table.database.connect()) as connection:
            assert table.database.rows(connection, "SELECT writer FROM report") == [("second",)]
