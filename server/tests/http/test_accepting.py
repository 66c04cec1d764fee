"""How connections are accepted: many in a turn of the event loop, and what happens if there is no room for more."""

import asyncio
import contextlib
import io
import itertools
import json
import os
import resource
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from volcano_locks_server.http.server import acceptor
from volcano_locks_server.http.server.acceptor import ACCEPTS_PER_TURN
from volcano_locks_server.testing import RunningServer, running_server_async

SMALL_GET = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
SECOND_TRY_SECONDS = 0.9  # before the kernel of a client tries again
TURNS_TO_A_RESPONSE = 10  # accept, transport, request, response, and some to spare


@contextlib.contextmanager
def clients(running: RunningServer, count: int) -> Iterator[list[socket.socket]]:
    """Connections that the kernel has accepted, without a turn of the server's event loop."""
    port = int(running.url.rsplit(":", 1)[1])
    opened = [socket.create_connection(("127.0.0.1", port), timeout=SECOND_TRY_SECONDS) for _ in range(count)]
    for one in opened:
        one.setblocking(False)
    yield opened
    for one in opened:
        one.close()


def has_response(client: socket.socket) -> bool:
    try:
        return client.recv(12, socket.MSG_PEEK) == b"HTTP/1.1 200"
    except BlockingIOError:
        return False


async def test_many_connections_get_their_turn_at_once() -> None:
    """Case 60: clients that connect together are served within a few turns of the event loop, not one in each turn."""
    async with running_server_async() as running:
        with clients(running, 3 * ACCEPTS_PER_TURN) as opened:
            for client in opened:
                client.send(SMALL_GET)
            accepted = [running.server.listener.connections]
            for _ in range(TURNS_TO_A_RESPONSE):
                await asyncio.sleep(0)
                accepted.append(running.server.listener.connections)
            assert all(map(has_response, opened))
            per_turn = [after - before for before, after in itertools.pairwise(accepted)]
            assert max(per_turn) == ACCEPTS_PER_TURN


async def test_thousands_of_clients_connect_at_once_without_a_second_try() -> None:
    """Case 60: after a restart, those that do not find room in the kernel's queue lose a second or more."""
    allowed = int(Path("/proc/sys/net/core/somaxconn").read_text())
    async with running_server_async() as running:
        with clients(running, min(3_000, allowed)) as opened:
            assert running.server.listener.connections == 0
            assert len({client.getsockname() for client in opened}) == len(opened)


async def test_accepted_connections_send_without_delay() -> None:
    """HTTP-24: TCP_NODELAY is on, so that no response waits for an acknowledgement of the one before."""
    async with running_server_async() as running:
        with clients(running, 1):
            while not running.server.listener.limits.open:
                await asyncio.sleep(0)
            (connection,) = running.server.listener.limits.open
            of_server = connection.transport.get_extra_info("socket")
            assert of_server.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@contextlib.contextmanager
def no_more_files() -> Iterator[None]:
    """The process may open no file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.real_time
async def test_a_lack_of_files_pauses_accepting(monkeypatch: pytest.MonkeyPatch) -> None:
    """HTTP-24: the server neither spins nor stops: it logs the cause once for each pause, and then accepts."""
    monkeypatch.setattr(acceptor, "ACCEPT_PAUSE_SECONDS", 0.2)
    log = io.StringIO()
    async with running_server_async(log_stream=log) as running:
        with clients(running, 2) as opened:
            opened[0].send(SMALL_GET)
            with no_more_files():
                until = time.monotonic() + 0.3
                while time.monotonic() < until:
                    await asyncio.sleep(0.01)
                assert not running.server.listener.connections
            async with asyncio.timeout(30):
                while not has_response(opened[0]):
                    await asyncio.sleep(0.01)
    paused = [line for line in map(json.loads, log.getvalue().splitlines()) if line["event"] == "accept_paused"]
    assert {line["cause"] for line in paused} == {"EMFILE"}
    assert len(paused) <= 3


def open_sockets() -> int:
    """The number of sockets that this process has open."""
    count = 0
    for name in os.listdir("/dev/fd"):  # noqa: PTH208 - names, not paths
        with contextlib.suppress(OSError):  # the descriptor of the listing itself
            count += stat.S_ISSOCK(os.fstat(int(name)).st_mode)
    return count


@pytest.mark.parametrize("turns", range(5))
async def test_a_stop_leaks_no_connection(turns: int) -> None:
    """HTTP-23: connections that are being accepted when the server stops are closed, and so are those in the queue."""
    before = open_sockets()
    async with running_server_async() as running:
        with clients(running, 2 * ACCEPTS_PER_TURN) as opened:
            for _ in range(turns):
                await asyncio.sleep(0)
            await running.server.close()
            for client in opened:
                client.setblocking(True)
                client.settimeout(30)
                with contextlib.suppress(ConnectionResetError):
                    assert client.recv(1) == b""
    assert len(asyncio.all_tasks()) == 1
    await asyncio.sleep(0)
    assert open_sockets() <= before
