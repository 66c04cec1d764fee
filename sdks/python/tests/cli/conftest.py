"""A running server, and the command line run against it: as a process, or in the test's process."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

import httpx2
import pytest
from click.testing import CliRunner, Result

from volcano_locks import Client
from volcano_locks.cli.app import app
from volcano_locks_server.testing import RunningServer, running_server

from .terminal_session import PROGRAM, WAIT_SECONDS, Session


class Process(subprocess.Popen[str]):
    """A process; `communicate` waits for its end with a time-out."""

    def communicate(self, input: str | None = None, timeout: float | None = WAIT_SECONDS) -> tuple[str, str]:  # noqa: A002
        return super().communicate(input, timeout)


class Start(Protocol):
    """Starts the command line as a process."""

    def __call__(self, *arguments: str, env: Mapping[str, str] | None = None) -> Process: ...


@pytest.fixture(scope="session")
def server() -> Iterator[RunningServer]:
    """One server for all tests, each with its own lock keys. It has no quota, because the tests send many
    requests.
    """
    with running_server() as running:
        httpx2.patch(
            f"{running.url}/projects/{running.project_id}",
            headers={"Authorization": f"Bearer {running.admin_token}"},
            json={"requests_per_minute": 0},
        ).raise_for_status()
        yield running


@pytest.fixture
def environment(server: RunningServer) -> dict[str, str]:
    """A worker's environment."""
    return {
        **os.environ,
        "VOLCANO_API_URL": server.url,
        "VOLCANO_SERVICE_KEY": server.service_key,
        "VOLCANO_LOCKS_ADMIN_TOKEN": server.admin_token,
    }


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    """A lock key for this test alone."""
    return re.sub(r"[^A-Za-z0-9]+", "-", request.node.name)[:100]


@pytest.fixture
def client(server: RunningServer) -> Iterator[Client]:
    """A client, to check from outside what the command line did."""
    with Client(server.url, server.service_key) as found:
        yield found


@pytest.fixture(autouse=True)
def restored_interrupt_handler() -> Iterator[None]:
    """Restores SIGINT, which a command in this process may have ignored until its end."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def invoke(environment: dict[str, str]) -> Callable[..., Result]:
    """Runs a command in this process."""

    def run(*arguments: str, stdin: str | None = None, **env: str | None) -> Result:
        return CliRunner(env={**environment, **env}).invoke(app, arguments, input=stdin)

    return run


@pytest.fixture
def start(environment: dict[str, str]) -> Iterator[Start]:
    """Starts a command as a process; kills it after the test if it still runs."""
    started: list[Process] = []

    def start_process(*arguments: str, env: Mapping[str, str] | None = None) -> Process:
        process = Process(
            [*PROGRAM, *arguments],
            env=environment if env is None else dict(env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start_process
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def until() -> Callable[[Callable[[], object]], None]:
    """Waits until a condition holds; fails after a time-out."""

    def wait(condition: Callable[[], object]) -> None:
        end = time.monotonic() + WAIT_SECONDS
        while not condition():
            assert time.monotonic() < end, "the condition never held"
            time.sleep(0.01)

    return wait


@pytest.fixture
def pid_in(until: Callable[[Callable[[], object]], None]) -> Callable[[Path], int]:
    """The process id that a command wrote to a file, once it is there."""

    def read(file: Path) -> int:
        until(lambda: file.exists() and file.read_text().endswith("\n"))
        return int(file.read_text())

    return read


@pytest.fixture
def running() -> Callable[[int], bool]:
    """Whether a process exists and is not a zombie."""

    def is_running(process_id: int) -> bool:
        try:
            stat = Path(f"/proc/{process_id}/stat").read_text()
        except OSError:
            return False
        return stat.rpartition(")")[2].split()[0] != "Z"

    return is_running


@pytest.fixture
def open_terminal(environment: dict[str, str]) -> Iterator[Callable[..., Session]]:
    """Starts the command line on a terminal of its own."""
    opened: list[Session] = []

    def begin(*arguments: str, piped: bool = False) -> Session:
        opened.append(Session(environment, *arguments, piped=piped))
        return opened[-1]

    yield begin
    for each in opened:
        each.close()
