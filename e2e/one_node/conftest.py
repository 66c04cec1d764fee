"""A real server process on a real file, which the tests kill, stop, starve and start again."""

import contextlib
import os
import queue
import re
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest
from testsupport.engines.processes import free_port

PROGRAM = Path(sys.executable).with_name("volcano-locks")
ADMIN_TOKEN = "admin-token-of-the-test"
WAIT_SECONDS = 60


class EndedError(Exception):
    """The server ended before it listened; its exit code and what it said."""

    def __init__(self, exit_code: int, said: str) -> None:
        super().__init__(f"exit code {exit_code}, having said:\n{said}")
        self.exit_code = exit_code
        self.said = said


class ServerProcess:
    """`volcano-locks serve` on one store and one port, whenever it is started.

    `limits` are options of the shell's `ulimit` that each of its processes runs under, `environment` is added to ours.
    """

    def __init__(self, store: str, limits: str = "", environment: dict[str, str] | None = None) -> None:
        self._store = store
        self._environment = environment or {}
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._limits = limits
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def begin(self) -> None:
        """Start the process, and do not wait until it listens."""
        environment = {name: value for name, value in os.environ.items() if "VOLCANO" not in name}
        under = ["sh", "-c", f'ulimit {self._limits} && exec "$@"', "sh"] if self._limits else []
        self._process = process = subprocess.Popen(
            [*under, PROGRAM, "serve", "--store", self._store, "--port", str(self.port)],
            env=environment | {"VOLCANO_LOCKS_ADMIN_TOKEN": ADMIN_TOKEN} | self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._lines = lines

        def listen() -> None:
            assert process.stdout is not None
            with process.stdout as said:
                for line in said:
                    lines.put(line)
            lines.put(None)

        threading.Thread(target=listen, daemon=True).start()

    def start(self) -> None:
        """Start the process and return when it listens. Raises EndedError."""
        self.begin()
        self.wait_until_it_listens()

    def wait_until_it_listens(self) -> None:
        """What `start` waits for. Raises EndedError."""
        said = ""
        while re.search(r"listening on \S+,", said) is None:
            line = self._lines.get(timeout=WAIT_SECONDS)
            if line is None:
                raise EndedError(self.wait(), said)
            said += line

    def said(self) -> str:
        """What it has said since this was asked last, or since it listened."""
        lines = []
        with contextlib.suppress(queue.Empty):
            while (line := self._lines.get_nowait()) is not None:
                lines.append(line)
        return "".join(lines)

    def kill(self) -> None:
        """kill -9."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(WAIT_SECONDS)

    def terminate(self) -> int:
        """SIGTERM; the exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        assert self._process is not None
        return self._process.wait(WAIT_SECONDS)

    def close(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self.kill()

    def new_service_key(self) -> str:
        """The key of a new project without a quota."""
        headers = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
        with httpx2.Client(base_url=self.url, headers=headers, timeout=WAIT_SECONDS) as admin:
            project = answered(admin.post("/projects", json={"name": "test"}))["id"]
            answered(admin.patch(f"/projects/{project}", json={"requests_per_minute": 0}))
            return str(answered(admin.post(f"/projects/{project}/service-keys", json={"name": "test"}))["key_value"])


def answered(response: httpx2.Response) -> dict[str, object]:
    assert response.is_success, response.text
    body: dict[str, object] = response.json()
    return body


@pytest.fixture
def new_server(tmp_path: Path) -> Iterator[Callable[..., ServerProcess]]:
    """Servers that are not started yet, and are gone after the test."""
    made: list[ServerProcess] = []

    def new(database: Path = tmp_path / "locks.db", limits: str = "") -> ServerProcess:
        made.append(ServerProcess(f"sqlite:///{database}", limits))
        return made[-1]

    yield new
    for server in made:
        server.close()


@pytest.fixture
def server(new_server: Callable[..., ServerProcess]) -> ServerProcess:
    """A server that listens."""
    one = new_server()
    one.start()
    return one


@pytest.fixture
def many_files() -> Iterator[int]:
    """Lets this process open as many files as it may; how many that is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
