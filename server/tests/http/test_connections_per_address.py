"""The limit of connections of one client address (HTTP-29)."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from volcano_locks_server.http.client_networks import network_of
from volcano_locks_server.runtime.settings import Settings
from volcano_locks_server.testing import RunningServer, running_server_async

from .raw_connection import RawConnection, lock_request

SMALL_GET = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
PER_ADDRESS = 2
Connect = Callable[[str], Awaitable[RawConnection]]


@pytest.fixture
async def running() -> AsyncIterator[RunningServer]:
    settings = Settings(store="memory://", port=0, log_level="warning", connections_per_address=PER_ADDRESS)
    async with running_server_async(settings) as running:
        yield running


@pytest.fixture
async def connect(running: RunningServer) -> AsyncIterator[Connect]:
    """Opens connections from a loopback address, which are closed at the end of the test."""
    opened: list[RawConnection] = []

    async def connected(address: str) -> RawConnection:
        port = int(running.url.rsplit(":", 1)[1])
        opened.append(RawConnection(*await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))))
        return opened[-1]

    yield connected
    for connection in opened:
        await connection.close()


async def served(connect: Connect, address: str) -> RawConnection:
    connection = await connect(address)
    connection.send(SMALL_GET)
    assert await connection.status() == 200
    return connection


async def test_the_longest_idle_connection_of_the_address_is_closed(connect: Connect) -> None:
    """HTTP-29: the connections of other addresses stay open."""
    other = await served(connect, "127.0.0.2")
    first = await served(connect, "127.0.0.1")
    loop = asyncio.get_running_loop()
    first_is_idle_at = loop.time()
    while loop.time() == first_is_idle_at:  # uvloop's time has steps of a millisecond
        await asyncio.sleep(0)
    second = await served(connect, "127.0.0.1")
    await served(connect, "127.0.0.1")
    assert await first.is_closed()
    for connection in (other, second):
        connection.send(SMALL_GET)
        assert await connection.status() == 200


@pytest.mark.real_time
async def test_an_address_with_busy_connections_gets_503(running: RunningServer, connect: Connect) -> None:
    """HTTP-29: requests in flight are never displaced, and other addresses are served."""
    holder = await connect("127.0.0.2")
    holder.send(lock_request(running, "POST", "/locks/a/lease", str(uuid.uuid4()), '{"ttl_seconds":30}'))
    assert await holder.status() == 201
    await holder.close()
    for _ in range(PER_ADDRESS):
        wait = '{"ttl_seconds":30,"wait_seconds":60}'
        (await connect("127.0.0.1")).send(lock_request(running, "POST", "/locks/a/lease", str(uuid.uuid4()), wait))
    limits = running.server.listener.limits
    async with asyncio.timeout(30):
        while len(limits.open) < PER_ADDRESS or any(one.is_idle() for one in limits.open):
            await asyncio.sleep(0.001)
    refused = await connect("127.0.0.1")
    assert await refused.problem() == (503, "lock_service_unavailable")
    assert await refused.is_closed()
    await served(connect, "127.0.0.2")


async def test_closed_connections_do_not_count(running: RunningServer, connect: Connect) -> None:
    """HTTP-29."""
    for _ in range(2 * PER_ADDRESS):
        connection = await served(connect, "127.0.0.1")
        await connection.close()
        async with asyncio.timeout(30):
            while running.server.listener.connections:
                await asyncio.sleep(0.001)


@pytest.mark.parametrize(
    ("address", "peer"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8::ffff:1", "2001:db8::/64"),
        ("2001:db8:0:1::1", "2001:db8:0:1::/64"),
        ("fe80::1%eth0", "fe80::/64"),
    ],
)
def test_an_ipv6_network_counts_as_one_address(address: str, peer: str) -> None:
    """HTTP-29."""
    assert network_of(address) == peer
