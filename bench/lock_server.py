"""The server under test, started as its users start it: `volcano-locks serve`, durable, one process."""

import http.client
import json
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from . import wrk
from .baselines import Load
from .processes import BenchError, free_port, resident_megabytes, running, volcano_locks_program, wait_until
from .source_tree import ROOT, python_path
from .wrk import CONNECTIONS, KeyOrder, RoundResult

ADMIN_TOKEN: Final = "bench-admin-token-that-guards-nothing"
RELEASE_LAG: Final = 8


class LockServer(NamedTuple):
    """A running server: its URL, its process id, and its time from start to ready."""

    url: str
    pid: int
    startup_seconds: float

    @property
    def resident_megabytes(self) -> float:
        return resident_megabytes(self.pid)

    @property
    def peak_megabytes(self) -> float:
        return resident_megabytes(self.pid, peak=True)

    @property
    def waiters(self) -> int:
        """The number of waiters in its metrics."""
        _, text = _request(self.url, "GET", "/metrics", "")
        found = re.search(rb"^volcano_locks_waiters ([0-9.e+]+)$", text, re.MULTILINE)
        if found is None:
            raise BenchError("the server's metrics do not show the number of waiters")
        return round(float(found[1]))

    def admin(self, method: str, path: str, body: Mapping[str, object]) -> dict[str, object]:
        """The response of the admin API. Raises BenchError if it is not a success."""
        status, response = _request(self.url, method, path, json.dumps(body))
        if status not in {200, 201}:
            raise BenchError(f"{method} {path} returned {status}: {response.decode(errors='replace')}")
        parsed: dict[str, object] = json.loads(response)
        return parsed

    def load(
        self,
        service_key: str,
        seconds: float,
        *,
        connections: int = CONNECTIONS,
        refused_every: int = 0,
        keys: KeyOrder = "random",
        release: bool = True,
        locks: int = 0,
    ) -> RoundResult:
        """Acquire locks and release them: fresh ones, or so many `locks` again and again. One request in
        `refused_every` asks for a held lock (0: none).

        A lock is released RELEASE_LAG x `connections` acquires after its acquire was sent. If the server had not
        accepted that acquire's connection by then, the release comes first and the acquire is refused. This happens at
        most once for each connection, and only if there are more than CONNECTIONS.
        """
        return wrk.load(
            self.url,
            "acquire_release",
            f"b{time.time_ns()}",
            str(refused_every),
            str(RELEASE_LAG * connections) if release else "never",
            keys,
            str(locks),
            seconds=seconds,
            connections=connections,
            environment={"BENCH_SERVICE_KEY": service_key},
            refused_share=1 / refused_every if refused_every else 0.0,
            refused_slack=connections if connections > CONNECTIONS else 0,
        )


class Project(NamedTuple):
    """A project without a quota, and one of its service keys."""

    project_id: str
    service_key: str


@contextmanager
def running_server(database: Path, *, log_level: str = "info", tree: Path = ROOT) -> Iterator[LockServer]:
    """The server on that SQLite file, which is created if it does not exist."""
    log = database.with_suffix(".log")
    with running_server_on(f"sqlite:///{database}", log, log_level=log_level, tree=tree) as server:
        yield server


@contextmanager
def running_server_on(
    store: str, log: Path, *, log_level: str = "info", tree: Path = ROOT, history_days: int | None = None
) -> Iterator[LockServer]:
    """The server on the store at this URL, with the code of the source tree `tree`."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [
        *(volcano_locks_program(), "serve", "--store", store, "--host", "127.0.0.1"),
        *("--port", str(port), "--log-level", log_level),
        *(() if history_days is None else ("--history-days", str(history_days))),
    ]
    environment = {"VOLCANO_LOCKS_ADMIN_TOKEN": ADMIN_TOKEN, "PYTHONPATH": python_path(tree)}
    with running(command, log=log, environment=environment) as process:
        seconds = wait_until(lambda: _is_ready(url), process, log)
        yield LockServer(url, process.pid, seconds)


def create_project(server: LockServer) -> Project:
    """Create a project without a quota, and a service key for it."""
    project = str(server.admin("POST", "/projects", {"name": "bench"})["id"])
    server.admin("PATCH", f"/projects/{project}", {"requests_per_minute": 0})
    key = server.admin("POST", f"/projects/{project}/service-keys", {"name": "bench"})
    return Project(project, str(key["key_value"]))


@contextmanager
def sqlite_load(folder: Path) -> Iterator[Load]:
    """A fresh server on SQLite, as a target of interleaved rounds."""
    with server_load(f"sqlite:///{folder / 'locks.db'}", folder / "locks.log") as load:
        yield load


@contextmanager
def server_load(store: str, log: Path) -> Iterator[Load]:
    """A fresh server on that empty store."""
    with running_server_on(store, log) as server:
        project = create_project(server)
        yield lambda seconds: server.load(project.service_key, seconds)


def _is_ready(url: str) -> bool:
    try:
        return _request(url, "GET", "/readyz", "")[0] == 200
    except OSError:
        return False


def _request(url: str, method: str, path: str, body: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
    try:
        headers = {"Authorization": f"Bearer {ADMIN_TOKEN}", "Content-Type": "application/json"}
        connection.request(method, path, body or None, headers)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()
