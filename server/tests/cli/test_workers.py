"""CLI-22, CLI-23, OPS-7: several processes share one port, are replaced, and end together.

Each worker has its own memory store: these tests are about processes, not leases.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest

from .conftest import PROGRAM as VOLCANO_LOCKS
from .conftest import WAIT_SECONDS, Completed
from .test_startup_errors import USAGE, assert_one_message

pytestmark = pytest.mark.real_time

TOKEN = "admin-token-of-the-test"
PROGRAM = f"""
import os
import sys
from volcano_locks_server.runtime.settings import Settings
from volcano_locks_server.runtime.prefork import run_workers
async def announce(server): print(server.url, flush=True)
settings = Settings(store="memory://", port=0, admin_token="{TOKEN}")
run_workers(settings, int(sys.argv[1]), announce, os.environ)
print("ended", flush=True)
"""


class Prefork:
    """The supervisor process, and the events that it and its workers logged."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.log: list[dict[str, object]] = []
        assert process.stdout is not None
        assert process.stderr is not None
        self._stderr: IO[str] = process.stderr
        self.url = process.stdout.readline().strip()
        self.port = int(self.url.rpartition(":")[2])

    def read_until(self, **wanted: object) -> dict[str, object]:
        """The next logged event with these fields."""
        while True:
            line = self._stderr.readline()
            assert line, self.log
            self.log.append(event := json.loads(line))
            if wanted.items() <= event.items():
                return event

    def pids(self) -> list[int]:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(pid) for pid in children.split()]

    def read_log_to_end(self) -> None:
        """Reads until the last process has closed the log."""
        self.log += [json.loads(line) for line in self._stderr]


@pytest.fixture
def start_workers() -> Iterator[Callable[[int], Prefork]]:
    started: list[subprocess.Popen[str]] = []
    watchdogs: list[threading.Timer] = []

    def run(count: int) -> Prefork:
        command = [sys.executable, "-c", PROGRAM, str(count)]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        watchdogs.append(threading.Timer(2 * WAIT_SECONDS, started[-1].kill))  # a silent log would never end
        watchdogs[-1].start()
        workers = Prefork(started[-1])
        workers.read_until(event="workers_ready")
        return workers

    yield run
    for watchdog in watchdogs:
        watchdog.cancel()
    for process in started:
        process.kill()
        process.communicate()


def worker_that_answers(url: str) -> int:
    """The number of the worker that accepts a new connection."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=WAIT_SECONDS) as response:
        numbers = set(re.findall(r'worker="(\d+)"', text := response.read().decode()))
    assert len(numbers) == 1, text
    return int(numbers.pop())


def started_request(port: int) -> socket.socket:
    """A connection that has sent a request's head to a worker, but not its body."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=WAIT_SECONDS)
    head = f"POST /projects HTTP/1.1\r\nHost: here\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 16\r\n"
    connection.sendall(f"{head}Expect: 100-continue\r\n\r\n".encode())
    assert connection.recv(4096).startswith(b"HTTP/1.1 100 ")
    return connection


def test_workers_share_the_port_and_log_their_number(start_workers: Callable[[int], Prefork]) -> None:
    workers = start_workers(2)
    assert len(workers.pids()) == 2
    began, seen = time.monotonic(), set()
    while seen != {1, 2}:
        seen.add(worker_that_answers(workers.url))
        assert time.monotonic() - began < WAIT_SECONDS
    workers.process.send_signal(signal.SIGTERM)
    assert workers.process.wait(WAIT_SECONDS) == 0
    workers.read_log_to_end()
    for number in (1, 2):
        events = [event["event"] for event in workers.log if event.get("worker") == number]
        assert events == ["started", "stopping", "stopped"]
    assert workers.log[-1]["event"] == "workers_stopped"


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGKILL, -9), (signal.SIGTERM, 0)])
def test_a_worker_that_ends_is_replaced_and_the_others_continue(
    start_workers: Callable[[int], Prefork], number: signal.Signals, exit_code: int
) -> None:
    workers = start_workers(2)
    first, second = workers.pids()
    os.kill(first, number)
    result = workers.read_until(event="worker_ended")
    assert (result["pid"], result["exit_code"]) == (first, exit_code)
    assert worker_that_answers(workers.url) in (1, 2)
    assert workers.read_until(event="started")["worker"] == result["worker"]
    assert second in workers.pids()
    assert len(workers.pids()) == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_requests_in_progress_finish_and_ends_all(
    start_workers: Callable[[int], Prefork], number: signal.Signals
) -> None:
    """HTTP-23. A worker gets the signal twice, directly and from the supervisor, which changes nothing."""
    workers = start_workers(2)
    with started_request(workers.port) as connection:
        for pid in workers.pids():
            os.kill(pid, number)
        workers.process.send_signal(number)
        workers.read_until(event="stopping")
        workers.read_until(event="stopping")
        connection.sendall(b'{"name": "late"}')
        assert connection.recv(4096).startswith(b"HTTP/1.1 201 ")
    assert workers.process.communicate(timeout=WAIT_SECONDS)[0] == "ended\n"
    assert workers.process.returncode == 0


def test_every_worker_gets_a_hangup_and_goes_on(start_workers: Callable[[int], Prefork]) -> None:
    """OPS-7, case 54."""
    workers = start_workers(2)
    pids = workers.pids()
    workers.process.send_signal(signal.SIGHUP)
    numbers = {workers.read_until(event="reload_ignored")["worker"] for _ in range(2)}
    assert numbers == {1, 2}
    assert worker_that_answers(workers.url) in (1, 2)
    assert workers.pids() == pids


def test_a_second_signal_ends_all_at_once(start_workers: Callable[[int], Prefork]) -> None:
    workers = start_workers(2)
    with started_request(workers.port):
        workers.process.send_signal(signal.SIGTERM)
        workers.read_until(event="stopping")
        began = time.monotonic()
        workers.process.send_signal(signal.SIGTERM)
        assert workers.process.wait(WAIT_SECONDS) == -signal.SIGTERM
        workers.read_log_to_end()
        assert time.monotonic() - began < 10, "a graceful stop may take 15 s"


def test_workers_stop_by_themselves_if_the_supervisor_is_killed(start_workers: Callable[[int], Prefork]) -> None:
    workers = start_workers(2)
    workers.process.kill()
    workers.read_log_to_end()
    assert [event["event"] for event in workers.log].count("stopped") == 2


def test_a_first_worker_that_cannot_start_ends_all_with_its_message() -> None:
    arguments = ("serve", "--workers", "3", "--store", "postgresql://127.0.0.1:1/locks", "--port", "0")
    result = subprocess.run(
        [VOLCANO_LOCKS, *arguments, "--tls-certificate", "no.pem", "--tls-key", "no.key"],
        capture_output=True, text=True, check=False, timeout=WAIT_SECONDS,
    )  # fmt: skip
    assert_one_message(Completed(result.returncode, result.stdout, result.stderr), USAGE, "no.pem", "No such file")


def test_a_taken_port_is_found_before_anything_starts(command: Callable[..., Completed]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = command("serve", "--workers", "2", "--store", "postgresql://127.0.0.1:1/locks", "--port", port)
    assert_one_message(result, 69, port, "another program listens there")
