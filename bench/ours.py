"""This project's own server as its users start it: `volcano-locks serve`, durable, one process."""

import http.client
import json
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from . import wrk
from .peers import Load
from .processes import BenchError, free_port, our_program, resident_megabytes, running, wait_until
from .wrk import Measured

ADMIN_TOKEN: Final = "bench-admin-token-that-guards-nothing"


class Ours(NamedTuple):
    """A running server: where it is, which process, and how long it took until it was ready."""

    url: str
    pid: int
    start_seconds: float

    @property
    def resident_megabytes(self) -> float:
        return resident_megabytes(self.pid)

    @property
    def waiters(self) -> int:
        """How many wait for a lock now, as its metrics tell."""
        _, text = _call(self.url, "GET", "/metrics", "")
        found = re.search(rb"^volcano_locks_waiters ([0-9.e+]+)$", text, re.MULTILINE)
        if found is None:
            raise BenchError("the server's metrics do not tell how many wait")
        return round(float(found[1]))

    def admin(self, method: str, path: str, body: Mapping[str, object]) -> dict[str, object]:
        """The admin API's answer. Raises BenchError where it is no success."""
        status, answer = _call(self.url, method, path, json.dumps(body))
        if status not in {200, 201}:
            raise BenchError(f"{method} {path} was answered {status}: {answer.decode(errors='replace')}")
        parsed: dict[str, object] = json.loads(answer)
        return parsed

    def load(self, service_key: str, seconds: float, *, refused_every: int = 0) -> Measured:
        """Acquire fresh locks and release them; one in `refused_every` asks for a held one (0: none)."""
        return wrk.load(
            self.url,
            "locks",
            f"b{time.time_ns()}",
            str(refused_every),
            seconds=seconds,
            environment={"BENCH_SERVICE_KEY": service_key},
            refused_share=1 / refused_every if refused_every else 0.0,
        )


class Tenant(NamedTuple):
    """A project without a quota, and a service key of it."""

    project_id: str
    service_key: str


@contextmanager
def serving(database: Path, *, log_level: str = "info") -> Iterator[Ours]:
    """The server on that SQLite file, made if it is not there."""
    with serving_on(f"sqlite:///{database}", database.with_suffix(".log"), log_level=log_level) as server:
        yield server


@contextmanager
def serving_on(store: str, log: Path, *, log_level: str = "info") -> Iterator[Ours]:
    """The server on the store that this URL names."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [
        *(our_program(), "serve", "--store", store, "--host", "127.0.0.1"),
        *("--port", str(port), "--log-level", log_level),
    ]
    with running(command, log=log, environment={"VOLCANO_LOCKS_ADMIN_TOKEN": ADMIN_TOKEN}) as process:
        seconds = wait_until(lambda: _is_ready(url), process, log)
        yield Ours(url, process.pid, seconds)


def new_tenant(server: Ours) -> Tenant:
    """A new project without a quota and a key for it, through the admin API."""
    project = str(server.admin("POST", "/projects", {"name": "bench"})["id"])
    server.admin("PATCH", f"/projects/{project}", {"requests_per_minute": 0})
    made = server.admin("POST", f"/projects/{project}/service-keys", {"name": "bench"})
    return Tenant(project, str(made["key_value"]))


@contextmanager
def volcano_locks(folder: Path) -> Iterator[Load]:
    """As one of the peers: a fresh server on SQLite, loaded by the block's caller."""
    with loaded(f"sqlite:///{folder / 'locks.db'}", folder / "locks.log") as load:
        yield load


@contextmanager
def loaded(store: str, log: Path) -> Iterator[Load]:
    """A fresh server on that store, which is empty."""
    with serving_on(store, log) as server:
        tenant = new_tenant(server)
        yield lambda seconds: server.load(tenant.service_key, seconds)


def _is_ready(url: str) -> bool:
    try:
        return _call(url, "GET", "/readyz", "")[0] == 200
    except OSError:
        return False


def _call(url: str, method: str, path: str, body: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
    try:
        headers = {"Authorization": f"Bearer {ADMIN_TOKEN}", "Content-Type": "application/json"}
        connection.request(method, path, body or None, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()
