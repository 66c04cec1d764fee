"""OPS-16: `serve` reports its state to a service manager such as systemd, with one process and with several."""

import itertools
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from .conftest import WAIT_SECONDS, ServerProcess, status_of
from .test_workers import Prefork, start_workers

__all__ = ["start_workers"]  # a fixture
pytestmark = pytest.mark.real_time

WATCHDOG_SECONDS = 2.0
Message = dict[str, str]


class Manager:
    """A service manager: its socket, and the variables that it gives to its service."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.settimeout(WAIT_SECONDS)
        self.environment = {"NOTIFY_SOCKET": str(path)}

    def watch(self) -> None:
        self.environment["WATCHDOG_USEC"] = str(int(WATCHDOG_SECONDS * 1_000_000))

    def next(self) -> tuple[Message, int]:
        """The next message, and the process that sent it."""
        data, ancillary, _, _ = self._socket.recvmsg(4096, socket.CMSG_SPACE(12))
        ((_, _, credentials),) = ancillary
        return dict(line.split("=", 1) for line in data.decode().splitlines()), int.from_bytes(
            credentials[:4], "little"
        )

    def read_until(self, key: str) -> Message:
        """The next message with this key."""
        while key not in (message := self.next()[0]):
            pass
        return message

    def unread(self) -> int:
        """Read what has arrived, and return the number of messages."""
        self._socket.setblocking(False)
        count = 0
        with suppress(BlockingIOError):
            while self._socket.recv(4096):
                count += 1
        self._socket.settimeout(WAIT_SECONDS)
        return count

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    one = Manager(tmp_path / "notify")
    yield one
    one.close()


def serve(start: Callable[..., ServerProcess], manager: Manager) -> ServerProcess:
    return start("serve", "--store", "sqlite:///locks.db", "--port", "0", **manager.environment)


def test_it_is_ready_once_it_serves_and_reports_its_stop(start: Callable[..., ServerProcess], manager: Manager) -> None:
    server = serve(start, manager)
    ready, pid = manager.next()
    assert ready["READY"] == "1"
    assert pid == server.process.pid
    url = ready["STATUS"].removeprefix("serving ")
    assert status_of(f"{url}/readyz") == 200
    server.process.send_signal(signal.SIGHUP)
    assert manager.next()[0].keys() == {"RELOADING", "MONOTONIC_USEC"}
    assert manager.next()[0] == {"READY": "1"}
    assert server.stop(signal.SIGTERM) == 0
    assert manager.next()[0]["STOPPING"] == "1"


def test_a_server_that_cannot_start_is_never_ready(start: Callable[..., ServerProcess], manager: Manager) -> None:
    server = start("serve", "--store", "sqlite:////no/such/folder/locks.db", "--port", "0", **manager.environment)
    assert server.process.wait(WAIT_SECONDS) != 0
    assert manager.unread() == 0


def test_it_gives_signs_of_life_twice_in_the_interval(start: Callable[..., ServerProcess], manager: Manager) -> None:
    manager.watch()
    server = serve(start, manager)
    manager.read_until("READY")
    signs = []
    for _ in range(4):
        assert manager.read_until("WATCHDOG")["STATUS"].startswith("serving http://")
        signs.append(time.monotonic())
    assert max(b - a for a, b in itertools.pairwise(signs)) < WATCHDOG_SECONDS
    assert signs[-1] - signs[0] > 0.9 * WATCHDOG_SECONDS
    assert server.stop(signal.SIGTERM) == 0


def test_a_stopped_process_gives_no_sign_of_life(start: Callable[..., ServerProcess], manager: Manager) -> None:
    manager.watch()
    server = serve(start, manager)
    manager.read_until("WATCHDOG")
    server.process.send_signal(signal.SIGSTOP)
    time.sleep(0.2)
    manager.unread()
    time.sleep(WATCHDOG_SECONDS)
    assert manager.unread() == 0
    server.process.send_signal(signal.SIGCONT)
    manager.read_until("WATCHDOG")


def test_dev_under_a_service_manager_is_ready_too(start: Callable[..., ServerProcess], manager: Manager) -> None:
    start("dev", "--port", "0", **manager.environment)
    assert manager.next()[0]["READY"] == "1"


def test_only_the_parent_of_workers_reports(
    start_workers: Callable[..., Prefork], manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager.watch()
    for name, value in manager.environment.items():
        monkeypatch.setenv(name, value)
    workers = start_workers(2)
    seen, senders = [], set()
    while sum("WATCHDOG" in message for message in seen) < 3:
        message, pid = manager.next()
        seen.append(message)
        senders.add(pid)
    assert senders == {workers.process.pid}
    assert seen[0]["READY"] == "1"
    assert seen[-1]["STATUS"] == "serving with 2 of 2 workers"
    workers.process.send_signal(signal.SIGHUP)
    manager.read_until("RELOADING")
    assert manager.read_until("READY") == {"READY": "1"}
    workers.process.send_signal(signal.SIGTERM)
    manager.read_until("STOPPING")
    assert workers.process.wait(WAIT_SECONDS) == 0


def test_a_worker_that_hangs_is_replaced_and_the_service_goes_on(
    start_workers: Callable[..., Prefork], manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a service manager that watches, a hung worker keeps its connections, as any hung process does."""
    manager.watch()
    for name, value in manager.environment.items():
        monkeypatch.setenv(name, value)
    workers = start_workers(2)
    hung, other = workers.pids()
    os.kill(hung, signal.SIGSTOP)
    assert workers.read_until(event="worker_hangs")["pid"] == hung
    assert workers.read_until(event="worker_ended")["exit_code"] == -signal.SIGKILL
    workers.read_until(event="started")
    while manager.read_until("WATCHDOG")["STATUS"] != "serving with 2 of 2 workers":
        pass
    assert other in workers.pids()


def test_the_log_has_no_line_about_a_manager_that_listens(
    start: Callable[..., ServerProcess], manager: Manager
) -> None:
    server = start("serve", "--store", "memory://", "--port", "0", announces_on="stderr", **manager.environment)
    manager.read_until("READY")
    assert server.stop(signal.SIGTERM) == 0
    server.read_until(r'("event":"stopped")')
    assert [json.loads(line)["event"] for line in server.text.splitlines()] == ["started", "stopping", "stopped"]
