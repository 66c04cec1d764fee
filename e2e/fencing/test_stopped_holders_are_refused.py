"""The story that fencing is for, with real processes, a real server and real databases, in each client's language."""

import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from volcano_locks_server.testing import RunningServer, running_server

from .databases import REFUSAL, TABLE, Database, fencing_sql
from .story import SDKS, Desk, Worker, command

pytestmark = pytest.mark.real_time


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server() as running:
        yield running


@pytest.fixture(scope="module")
def javascript_client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The client as it is packed, built in a folder of the tests' own."""
    package, built = SDKS / "javascript", tmp_path_factory.mktemp("javascript")
    if not (package / "node_modules").exists():
        subprocess.run(["npm", "ci", "--silent"], cwd=package, check=True)
    subprocess.run(["node_modules/.bin/tsdown", "--silent", "--out-dir", built], cwd=package, check=True)
    return built / "index.mjs"


@pytest.fixture(params=["python", "javascript", "ruby"])
def new_worker(request: pytest.FixtureRequest, server: RunningServer) -> Iterator[Callable[[], Worker]]:
    """Workers of one language for one lock, which are gone after the test, stopped ones included."""
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
def desks(postgresql: Database, mariadb: Database, sqlite: Database, tmp_path: Path) -> list[Desk]:
    """A fenced table with one row in each database."""
    folder = tmp_path / "lines"
    folder.mkdir()
    for database in (postgresql, mariadb, sqlite):
        row = "INSERT INTO report (day, total) VALUES ('monday', 0);"
        database.apply(f"{TABLE};\n{fencing_sql(database.dialect)}\n{row}")
    return [Desk(database, folder) for database in (postgresql, mariadb, sqlite)]


def test_a_holder_that_was_stopped_past_its_lease_is_told_and_its_writes_are_refused(
    new_worker: Callable[[], Worker], desks: list[Desk], tmp_path: Path
) -> None:
    """CLI-20, SDK-4, cases 10 and 11: it looked, was stopped before its write came through, and was overtaken.

    The write that follows such a look is refused by the database alone; from then on its client says it too.
    """
    first = new_worker()
    first_token = first.hear()["held"]
    for desk in desks:
        first.say(desk.guarded("first"))
        assert first.hear() == {"lost": False}
        assert first.hear() == {"exit_code": 0, "said": "1\n", "lost": False}

    gate = tmp_path / "gate"
    first.say(f"while [ ! -e {gate} ]; do sleep 0.05; done; {desks[0].forgetful('first, late')}")
    assert first.hear() == {"lost": False}
    first.send(signal.SIGSTOP)
    gate.touch()

    second = new_worker()
    assert second.hear()["held"] > first_token
    for desk in desks:
        second.say(desk.guarded("second"))
        assert second.hear() == {"lost": False}
        assert second.hear()["said"] == "1\n"

    first.send(signal.SIGCONT)
    heard = first.hear()
    assert REFUSAL in heard["said"]
    assert heard["exit_code"] != 0
    assert heard["lost"], "its client knows by the time the write is refused"
    for desk in desks:
        first.say(desk.forgetful("first, later"))
        assert first.hear() == {"lost": True}
        heard = first.hear()
        assert REFUSAL in heard["said"]
        assert heard["exit_code"] != 0
        first.say(desk.guarded("first, later"))
        assert first.hear() == {"lost": True}
        assert first.hear() == {"exit_code": 0, "said": "0\n", "lost": True}

    assert first.ended() == {"ended": "lost"}
    assert second.ended() == {"ended": "held"}
    for desk in desks:
        with closing(desk.database.connect()) as connection:
            assert desk.database.rows(connection, "SELECT writer FROM report") == [("second",)]
