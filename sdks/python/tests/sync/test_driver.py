# ruff: noqa: PT012 - a block is entered, used and left in one statement
"""Calls in the calling thread: interrupts, closing, `stop`, threads (SDK-2, SDK-5, SDK-11, SDK-23)."""

import contextlib
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from volcano_locks import Client, LockHeldError, VolcanoError
from volcano_locks.sync import driver
from volcano_locks.sync.connection import Connection
from volcano_locks.testing import FakeLocks, FaultyTransport, Hang, ManualClock

from ..helpers import client_threads, eventually
from ..socket_server import FREED, GRANTED, ServerConnection, header, socket_server

PATIENCE_SECONDS = 60
AT_ONCE_SECONDS = 5.0

pytestmark = pytest.mark.real_time


class SilentServer:
    """A server that responds to everything except an acquire. `heads` are the requests it received."""

    def __init__(self) -> None:
        self.heads: list[str] = []
        self.received = threading.Event()
        self.released = threading.Event()

    def __call__(self, connection: ServerConnection, number: int) -> None:
        while head := connection.request():
            self.heads.append(head)
            if head.startswith("POST"):
                self.received.set()
                continue
            connection.respond(FREED)
            self.released.set()

    def released_the_token_it_received(self) -> bool:
        assert self.released.wait(PATIENCE_SECONDS)
        received, released = self.heads
        return header(received, "X-Volcano-Lock-Token") == header(released, "X-Volcano-Lock-Token")


@contextlib.contextmanager
def called_in_a_thread(call: Callable[[], Any]) -> Iterator[list[str]]:
    """Run `call` in a thread; yield its errors. It must end at once after the body."""
    errors: list[str] = []

    def run() -> None:
        try:
            call()
        except VolcanoError as error:
            errors.append(str(error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield errors
    began = time.monotonic()
    thread.join(PATIENCE_SECONDS)
    assert time.monotonic() - began < AT_ONCE_SECONDS


@pytest.mark.parametrize("wait", [None, 60])
@pytest.mark.parametrize("in_block", [False, True])
def test_ctrl_c_during_an_acquire_releases_the_lock(wait: float | None, in_block: bool) -> None:
    """SDK-2, SDK-11, case 17: the client does not know whether the server granted it, and leaves no waiter."""
    server = SilentServer()

    def interrupt() -> None:
        server.received.wait(PATIENCE_SECONDS)
        time.sleep(0.05)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    with socket_server(server) as url, Client(url, "sk-x") as client:
        threading.Thread(target=interrupt, daemon=True).start()
        with pytest.raises(KeyboardInterrupt):
            if in_block:
                client.locks.with_lock("k", ttl=30, wait=wait).__enter__()
            else:
                client.locks.acquire("k", ttl=30, wait=wait)
        assert server.released_the_token_it_received()


@pytest.mark.parametrize("wait", [None, 60])
def test_closing_a_client_interrupts_its_calls_and_releases(wait: float | None) -> None:
    """SDK-2, SDK-23: also calls of other threads, at once."""
    server = SilentServer()
    with socket_server(server) as url:
        client = Client(url, "sk-x")
        with called_in_a_thread(lambda: client.locks.acquire("k", ttl=30, wait=wait)) as errors:
            assert server.received.wait(PATIENCE_SECONDS)
            client.close()
        assert errors == ["this client is closed"]
        assert server.released_the_token_it_received()
        with pytest.raises(VolcanoError, match="this client is closed"):
            client.locks.get("k")


def test_closing_a_client_interrupts_the_pauses_of_its_waits() -> None:
    """SDK-11: a `Retry-After` of a minute does not delay closing."""
    received = threading.Event()

    def serve(connection: ServerConnection, number: int) -> None:
        while head := connection.request():
            busy = b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 50\r\nContent-Length: 0\r\n\r\n"
            connection.respond(busy if head.startswith("POST") else FREED)
            received.set()

    with socket_server(serve) as url:
        client = Client(url, "sk-x")
        with called_in_a_thread(lambda: client.locks.acquire("k", ttl=30, wait=3600)) as errors:
            assert received.wait(PATIENCE_SECONDS)
            client.close()
        assert errors == ["this client is closed"]


def test_closing_a_client_ends_a_connect_and_a_tls_handshake() -> None:
    """SDK-23: to an address that does not answer, and to a server that never begins TLS."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, contextlib.ExitStack() as clogging:
        for _ in range(3):  # fill the backlog, so that a further connection stays unanswered
            sock = clogging.enter_context(socket.socket())
            sock.setblocking(False)
            sock.connect_ex(full.getsockname())
        for url in (f"http://127.0.0.1:{full.getsockname()[1]}", silent_tls(clogging)):
            client = Client(url, "sk-x")
            with called_in_a_thread(lambda: client.locks.acquire("k", ttl=30)) as errors:  # noqa: B023
                time.sleep(0.2)
                client.close()
            assert errors == ["this client is closed"]


def silent_tls(stack: contextlib.ExitStack) -> str:
    return stack.enter_context(socket_server(lambda connection, number: None)).replace("http://", "https://")


def test_closing_a_client_ends_a_watch() -> None:
    """SDK-14, SDK-23."""
    streaming = threading.Event()

    def serve(connection: ServerConnection, number: int) -> None:
        connection.request()
        connection.respond(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        streaming.set()

    with socket_server(serve) as url:
        client = Client(url, "sk-x")
        with called_in_a_thread(lambda: next(iter(client.locks.watch("k")))) as errors:
            assert streaming.wait(PATIENCE_SECONDS)
            client.close()
        assert errors == ["this client is closed"]


def test_another_thread_ends_a_wait_without_closing_the_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    """SDK-23: the system may give a closed descriptor to another file, which the waiting thread would then read."""
    server = SilentServer()
    with socket_server(server) as url:
        client = Client(url, "sk-x")
        with called_in_a_thread(lambda: client.locks.acquire("k", ttl=30)) as errors:
            assert server.received.wait(PATIENCE_SECONDS)
            closed_by: list[int] = []
            monkeypatch.setattr(Connection, "close", recorded(Connection.close, closed_by))
            client.close()
            eventually(lambda: errors == ["this client is closed"])
        monkeypatch.undo()
    assert closed_by
    assert threading.get_ident() not in closed_by[:1]


def recorded(close: Callable[[Connection], None], closed_by: list[int]) -> Callable[[Connection], None]:
    def record(connection: Connection) -> None:
        closed_by.append(threading.get_ident())
        close(connection)

    return record


def test_stop_ends_a_campaign_at_once() -> None:
    """SDK-13: within 0.3 seconds, unless the machine is busy."""
    assert min(seconds_until_a_campaign_stops() for _ in range(3)) < 0.3


def seconds_until_a_campaign_stops() -> float:
    server = SilentServer()
    stop = threading.Event()
    with socket_server(server) as url, Client(url, "sk-x") as client:
        results: list[object] = []
        with called_in_a_thread(lambda: results.append(client.locks.lead("k", lambda guard: 1, ttl=30, stop=stop))):
            assert server.received.wait(PATIENCE_SECONDS)
            began = time.monotonic()
            stop.set()
        seconds = time.monotonic() - began
        assert results == [None]
        assert server.released_the_token_it_received()
    return seconds


def test_a_client_may_be_shared_by_threads(client: Client) -> None:
    won: list[int] = []

    def compete() -> None:
        for _ in range(20):
            try:
                with client.locks.with_lock("k", ttl=30) as guard:
                    won.append(guard.fencing_token)
            except LockHeldError:
                continue

    workers = [threading.Thread(target=compete) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert won
    assert won == sorted(set(won)), "two holders, or a fencing token twice"


def test_closing_a_client_under_an_open_block_ends_its_renewal(
    server: FakeLocks, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The guard reports the missing release; no thread waits without end."""
    client = server.client()
    with client.locks.with_lock("k", ttl=30) as guard:
        client.close()
        clock.jump(29)
        assert guard.wait_lost(0) is False
    assert isinstance(guard.release_error, VolcanoError)
    assert "lock k was not released" in caplog.text
    eventually(lambda: not client_threads())


class SlowRelease:
    """A server whose first release waits for `goes_on`."""

    def __init__(self) -> None:
        self.releasing = threading.Event()
        self.goes_on = threading.Event()

    def __call__(self, connection: ServerConnection, number: int) -> None:
        while head := connection.request():
            if head.startswith("DELETE"):
                self.releasing.set()
                self.goes_on.wait(PATIENCE_SECONDS)
            connection.respond(GRANTED if head.startswith("POST") else FREED)


def test_closing_a_client_lets_a_running_release_finish() -> None:
    """SDK-5: so the lock is not held until its lease expires."""
    server = SlowRelease()
    with socket_server(server) as url:
        client = Client(url, "sk-x")
        block = client.locks.with_lock("k", ttl=30)
        guard = block.__enter__()
        with called_in_a_thread(lambda: block.__exit__(None, None, None)) as errors:
            assert server.releasing.wait(PATIENCE_SECONDS)
            threading.Timer(0.1, server.goes_on.set).start()
            client.close()
        assert (errors, guard.release_error) == ([], None)
        eventually(lambda: not client_threads())


def test_closing_a_client_does_not_wait_for_a_hanging_release(
    client: Client, network: FaultyTransport, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SDK-6, SDK-23: the wait is bounded; the guard reports the missing release."""
    monkeypatch.setattr(driver, "CLEAN_UP_SECONDS_MAX", 0.05)
    block = client.locks.with_lock("k", ttl=30)
    guard = block.__enter__()
    network.otherwise = Hang()
    with called_in_a_thread(lambda: block.__exit__(None, None, None)):
        eventually(lambda: len(network.seen) == 2)
        client.close()
        clock.jump(10)
    assert isinstance(guard.release_error, VolcanoError)
