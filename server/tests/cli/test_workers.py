"""Several processes on one port: they share it, are replaced, and end together (CLI-22, CLI-23).

Each worker here has a memory store of its own: what is tried is the processes, not the leases.
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
from .conftest import WAIT_SECONDS, Ended
from .test_refused_starts_say_what_to_do import USAGE, assert_one_sentence

pytestmark = pytest.mark.real_time

TOKEN = "admin-token-of-the-test"
PROGRAM = f"""
import sys
from volcano_locks_server.runtime.settings import Settings
from volcano_locks_server.runtime.prefork import run_workers
async def announce(server): print(server.url, flush=True)
settings = Settings(store="memory://", port=0, admin_token="{TOKEN}")
run_workers(settings, int(sys.argv[1]), announce)
print("ended", flush=True)
"""


class Workers:
    """A watching process, and the events that it and its workers logged."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.log: list[dict[str, object]] = []
        assert process.stdout is not None
        assert process.stderr is not None
        self._stderr: IO[str] = process.stderr
        self.url = process.stdout.readline().strip()
        self.port = int(self.url.rpartition(":")[2])

    def read_until(self, **wanted: object) -> dict[str, object]:
        """The first event logged from now on that has these fields."""
        while True:
            line = self._stderr.readline()
            assert line, self.log
            self.log.append(event := json.loads(line))
            if wanted.items() <= event.items():
                return event

    def pids(self) -> list[int]:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(pid) for pid in children.split()]

    def rest_of_log(self) -> None:
        """Read to the end, which comes when no process has the log open any more."""
        self.log += [json.loads(line) for line in self._stderr]


@pytest.fixture
def start_workers() -> Iterator[Callable[[int], Workers]]:
    started: list[subprocess.Popen[str]] = []
    watchdogs: list[threading.Timer] = []

    def run(count: int) -> Workers:
        command = [sys.executable, "-c", PROGRAM, str(count)]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        watchdogs.append(threading.Timer(2 * WAIT_SECONDS, started[-1].kill))  # a log that says nothing has no end
        watchdogs[-1].start()
        workers = Workers(started[-1])
        workers.read_until(event="workers_ready")
        return workers

    yield run
    for watchdog in watchdogs:
        watchdog.cancel()
    for process in started:
        process.kill()
        process.communicate()


def worker_that_answers(url: str) -> int:
    """The number of whichever worker takes a new connection."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=WAIT_SECONDS) as answer:
        numbers = set(re.findall(r'worker="(\d+)"', text := answer.read().decode()))
    assert len(numbers) == 1, text
    return int(numbers.pop())


def begun_request(port: int) -> socket.socket:
    """A connection on which a request's head has arrived at a worker, and its body has not."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=WAIT_SECONDS)
    head = f"POST /projects HTTP/1.1\r\nHost: here\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 16\r\n"
    connection.sendall(f"{head}Expect: 100-continue\r\n\r\n".encode())
    assert connection.recv(4096).startswith(b"HTTP/1.1 100 ")
    return connection


def test_they_share_the_port_and_each_says_who_it_is(start_workers: Callable[[int], Workers]) -> None:
    workers = start_workers(2)
    assert len(workers.pids()) == 2
    began, seen = time.monotonic(), set()
    while seen != {1, 2}:
        seen.add(worker_that_answers(workers.url))
        assert time.monotonic() - began < WAIT_SECONDS
    workers.process.send_signal(signal.SIGTERM)
    assert workers.process.wait(WAIT_SECONDS) == 0
    workers.rest_of_log()
    for number in (1, 2):
        events = [event["event"] for event in workers.log if event.get("worker") == number]
        assert events == ["started", "stopping", "stopped"]
    assert workers.log[-1]["event"] == "workers_stopped"


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGKILL, -9), (signal.SIGTERM, 0)])
def test_a_worker_that_ends_is_replaced_and_the_others_go_on(
    start_workers: Callable[[int], Workers], number: signal.Signals, exit_code: int
) -> None:
    workers = start_workers(2)
    first, second = workers.pids()
    os.kill(first, number)
    ended = workers.read_until(event="worker_ended")
    assert (ended["pid"], ended["exit_code"]) == (first, exit_code)
    assert worker_that_answers(workers.url) in (1, 2)
    assert workers.read_until(event="started")["worker"] == ended["worker"]
    assert second in workers.pids()
    assert len(workers.pids()) == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_answers_in_flight_go_out_and_ends_all(
    start_workers: Callable[[int], Workers], number: signal.Signals
) -> None:
    """HTTP-23. That a worker gets the signal twice, from outside and passed on, changes nothing."""
    workers = start_workers(2)
    with begun_request(workers.port) as connection:
        for pid in workers.pids():
            os.kill(pid, number)
        workers.process.send_signal(number)
        workers.read_until(event="stopping")
        workers.read_until(event="stopping")
        connection.sendall(b'{"name": "late"}')
        assert connection.recv(4096).startswith(b"HTTP/1.1 201 ")
    assert workers.process.communicate(timeout=WAIT_SECONDS)[0] == "ended\n"
    assert workers.process.returncode == 0


def test_a_second_signal_ends_all_at_once(start_workers: Callable[[int], Workers]) -> None:
    workers = start_workers(2)
    with begun_request(workers.port):
        workers.process.send_signal(signal.SIGTERM)
        workers.read_until(event="stopping")
        began = time.monotonic()
        workers.process.send_signal(signal.SIGTERM)
        assert workers.process.wait(WAIT_SECONDS) == -signal.SIGTERM
        workers.rest_of_log()
        assert time.monotonic() - began < 10, "the time a graceful stop may take is 15 s"


def test_workers_whose_watcher_was_killed_stop_by_themselves(start_workers: Callable[[int], Workers]) -> None:
    workers = start_workers(2)
    workers.process.kill()
    workers.rest_of_log()
    assert [event["event"] for event in workers.log].count("stopped") == 2


def test_a_first_worker_that_cannot_start_ends_it_all_with_its_own_words() -> None:
    arguments = ("serve", "--workers", "3", "--store", "postgresql://127.0.0.1:1/locks", "--port", "0")
    ended = subprocess.run(
        [VOLCANO_LOCKS, *arguments, "--tls-certificate", "no.pem", "--tls-key", "no.key"],
        capture_output=True, text=True, check=False, timeout=WAIT_SECONDS,
    )  # fmt: skip
    assert_one_sentence(Ended(ended.returncode, ended.stdout, ended.stderr), USAGE, "no.pem", "No such file")


def test_a_port_that_is_taken_is_found_out_before_anything_starts(command: Callable[..., Ended]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ended = command("serve", "--workers", "2", "--store", "postgresql://127.0.0.1:1/locks", "--port", port)
    assert_one_sentence(ended, 69, port, "another program listens there")
