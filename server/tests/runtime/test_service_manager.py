"""OPS-16: the messages to a service manager, on real sockets."""

import asyncio
import io
import json
import os
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from testsupport.server_ports import FaultyStore

from volcano_locks_server.ports.clock import SystemClock
from volcano_locks_server.rules.errors import StoreUnavailableError
from volcano_locks_server.runtime.service_manager import ServiceManager, Unsupervised, report_alive
from volcano_locks_server.stores.memory import MemoryStore
from volcano_locks_server.telemetry import Log, PlainWriter
from volcano_locks_server.testing import memory_store, running_server_async

WATCHDOG_SECONDS = 0.1


class ManagerSocket:
    """The socket of a service manager. `name` is its NOTIFY_SOCKET."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(name.replace("@", "\0", 1))
        self._socket.setblocking(False)

    def received(self) -> list[dict[str, str]]:
        """The messages since the last call."""
        messages = []
        while True:
            try:
                text = self._socket.recv(4096).decode()
            except BlockingIOError:
                return messages
            messages.append(dict(line.split("=", 1) for line in text.splitlines()))

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["file", "abstract"])
def manager_socket(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ManagerSocket]:
    name = str(tmp_path / "notify") if request.param == "file" else f"@volcano-locks-test-{os.getpid()}"
    manager = ManagerSocket(name)
    yield manager
    manager.close()


def new_log() -> tuple[Log, io.StringIO]:
    stream = io.StringIO()
    return Log(PlainWriter(stream), "info"), stream


def logged(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_each_state_is_one_message(manager_socket: ManagerSocket) -> None:
    log, stream = new_log()
    manager = ServiceManager({"NOTIFY_SOCKET": manager_socket.name}, log)
    manager.ready("serving here")
    manager.alive("still serving")
    manager.stopping()
    assert manager_socket.received() == [
        {"READY": "1", "STATUS": "serving here"},
        {"WATCHDOG": "1", "STATUS": "still serving"},
        {"STOPPING": "1", "STATUS": "stopping: completing the requests in progress"},
    ]
    assert logged(stream) == []


def test_a_reload_is_announced_with_its_time_and_ends_with_ready(manager_socket: ManagerSocket) -> None:
    manager = ServiceManager({"NOTIFY_SOCKET": manager_socket.name}, new_log()[0])
    manager.ready("serving")
    manager_socket.received()
    during: list[dict[str, str]] = []
    manager.reload(lambda: during.extend(manager_socket.received()))
    (announced,) = during
    assert announced.keys() == {"RELOADING", "MONOTONIC_USEC"}
    with Path("/proc/uptime").open() as uptime:  # CLOCK_MONOTONIC is at most the time since the boot
        assert 0 < int(announced["MONOTONIC_USEC"]) <= (float(uptime.read().split()[0]) + 1) * 1_000_000
    assert manager_socket.received() == [{"READY": "1"}]


def test_a_reload_before_ready_or_while_stopping_is_not_announced(manager_socket: ManagerSocket) -> None:
    """READY=1 would be wrong: the server does not serve."""
    manager, reloads = ServiceManager({"NOTIFY_SOCKET": manager_socket.name}, new_log()[0]), []
    manager.reload(lambda: reloads.append("starting"))
    assert manager_socket.received() == []
    manager.ready("serving")
    manager.stopping()
    manager_socket.received()
    manager.reload(lambda: reloads.append("stopping"))
    assert manager_socket.received() == []
    assert reloads == ["starting", "stopping"]


def test_without_a_socket_nothing_happens() -> None:
    log, stream = new_log()
    manager, reloads = ServiceManager({"WATCHDOG_USEC": "1000000"}, log), []
    manager.ready("serving")
    manager.reload(lambda: reloads.append("reload"))
    manager.stopping()
    assert (manager.watchdog_seconds, reloads, logged(stream)) == (None, ["reload"], [])


@pytest.mark.parametrize("name", ["/nothing/listens/here", "@nothing-listens-here", "vsock:2:1", "/" + "long" * 50])
def test_a_manager_that_cannot_be_reached_is_logged_once(name: str) -> None:
    log, stream = new_log()
    manager = ServiceManager({"NOTIFY_SOCKET": name}, log)
    manager.ready("serving")
    manager.alive("serving")
    (line,) = logged(stream)
    assert (line["event"], line["socket"]) == ("service_manager_unreachable", name)
    assert line["why"]


def test_a_manager_that_does_not_read_delays_a_message_by_half_a_second_at_most(tmp_path: Path) -> None:
    busy = ManagerSocket(str(tmp_path / "busy"))
    log, stream = new_log()
    manager = ServiceManager({"NOTIFY_SOCKET": busy.name}, log)
    began = time.monotonic()
    while not stream.getvalue():
        manager.alive("serving")
    assert 0.4 < time.monotonic() - began < 10
    busy.close()
    assert [line["event"] for line in logged(stream)] == ["service_manager_unreachable"]


@pytest.mark.parametrize(
    ("interval", "pid", "seconds"),
    [
        ("30000000", "", 30.0),
        ("30000000", "own", 30.0),
        ("30000000", "1", None),  # meant for another process
        ("0", "", None),
        ("soon", "", None),
        ("", "", None),
    ],
)
def test_the_watchdog_is_that_of_this_process(interval: str, pid: str, seconds: float | None) -> None:
    environ = {
        "NOTIFY_SOCKET": "@here",
        "WATCHDOG_USEC": interval,
        "WATCHDOG_PID": pid.replace("own", str(os.getpid())),
    }
    assert ServiceManager(environ, new_log()[0]).watchdog_seconds == seconds


class ProbedStore(FaultyStore):
    """Its probe waits while the gate is cleared, as that of SQLite does while its disk hangs."""

    async def ready(self) -> None:
        await self.gate.wait()
        await super().ready()


class Reports(Unsupervised):
    """A supervisor that collects the reports."""

    def __init__(self) -> None:
        self.received: asyncio.Queue[str] = asyncio.Queue()

    def alive(self, status: str) -> None:
        self.received.put_nowait(status)

    async def next(self) -> str:
        return await asyncio.wait_for(self.received.get(), 10)


@asynccontextmanager
async def reports_of(store: FaultyStore) -> AsyncIterator[tuple[Reports, str]]:
    """The reports about a server on that store, and its URL."""
    async with running_server_async(store=memory_store(store)) as running:
        reports = Reports()
        task = asyncio.create_task(report_alive(reports, WATCHDOG_SECONDS, running.server))
        yield reports, running.url
        assert not task.done()
        task.cancel()


@pytest.mark.real_time
async def test_signs_of_life_stop_while_the_probe_hangs_and_go_on_after_it() -> None:
    store = ProbedStore(MemoryStore(SystemClock()))
    async with reports_of(store) as (reports, url):
        for _ in range(3):
            assert await reports.next() == f"serving {url}"
        store.gate.clear()
        await asyncio.sleep(1.5)  # a probe is shared for a second
        reports.received = asyncio.Queue()
        await asyncio.sleep(10 * WATCHDOG_SECONDS)
        assert reports.received.empty()
        store.gate.set()
        assert await reports.next() == f"serving {url}"


@pytest.mark.real_time
async def test_a_probe_that_fails_is_a_sign_of_life_and_its_cause_is_in_the_status() -> None:
    """A restart does not repair a database."""
    store = FaultyStore(MemoryStore(SystemClock()))
    store.failure = StoreUnavailableError("connection_lost", "the database is down")
    async with reports_of(store) as (reports, url):
        for _ in range(3):
            assert await reports.next() == f"serving {url}, but the store cannot answer (connection_lost)"


@pytest.mark.real_time
async def test_a_bug_in_the_probe_is_no_sign_of_life() -> None:
    store = FaultyStore(MemoryStore(SystemClock()))
    store.failure = RuntimeError("a bug")
    async with reports_of(store) as (reports, _):
        await asyncio.sleep(10 * WATCHDOG_SECONDS)
        assert reports.received.empty()
