"""Lock traffic beside thousands of idle connections and some with incomplete requests."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest
from testsupport.server_process import ServerProcess

from volcano_locks import AsyncClient

HALF_BODY = (
    b"POST /locks/a/lease HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer KEY\r\nContent-Length: 20\r\n"
    b"X-Volcano-Lock-Token: 5b0c3f43-6f3c-4b53-9d3b-0c8f2a1f7f10\r\n\r\n{"
)
HALF_SENT = (b"GET /lo", b"POST /locks/a/lease HTTP/1.1\r\nHost: x\r\nX-Slow: ", HALF_BODY)
CLIENTS = 8
ROUNDS = 40
pytestmark = pytest.mark.real_time


@contextlib.asynccontextmanager
async def idlers(
    server: ServerProcess, count: int, sent: tuple[bytes, ...] = ()
) -> AsyncIterator[list[asyncio.Transport]]:
    """Open `count` connections that send nothing, and fifty more for each part in `sent` that send only that."""
    loop = asyncio.get_running_loop()
    transports: list[asyncio.Transport] = []
    try:
        for part in [b""] * count + list(sent) * 50:
            transport, _ = await loop.create_connection(asyncio.Protocol, "127.0.0.1", server.port)
            transports.append(transport)
            if part:
                transport.write(part)
        yield transports
    finally:
        for transport in transports:
            transport.abort()
        await asyncio.sleep(0)


async def traffic(server: ServerProcess, service_key: str) -> None:
    """Several clients acquire, renew and release locks. Raises any failure."""

    async def rounds(name: str) -> None:
        async with AsyncClient(server.url, service_key) as client:
            for number in range(ROUNDS):
                async with client.locks.with_lock(f"{name}.{number % 3}", ttl=60) as guard:
                    renewed = await client.locks.renew(guard.key, guard.lease)
                    assert renewed.fencing_token == guard.fencing_token

    await asyncio.gather(*(rounds(f"client.{number}") for number in range(CLIENTS)))


async def test_locks_work_beside_thousands_of_idle_connections(server: ServerProcess, open_files_max: int) -> None:
    """HTTP-24: all connections are kept, and every lock request succeeds."""
    service_key = server.new_service_key()
    count = min(2_500, open_files_max - 500)
    sent = tuple(part.replace(b"KEY", service_key.encode()) for part in HALF_SENT)
    async with idlers(server, count, sent) as transports:
        await traffic(server, service_key)
        assert sum(transport.is_closing() for transport in transports[:count]) == 0
        assert count >= 2_000


async def test_a_server_with_a_low_open_file_limit_still_serves(new_server: Callable[..., ServerProcess]) -> None:
    """HTTP-24: idle connections are closed before the process runs out of files for sockets or the store."""
    server = new_server(limits="-n 256")
    server.start()
    service_key = server.new_service_key()
    async with idlers(server, 600) as transports:
        await traffic(server, service_key)
        assert sum(transport.is_closing() for transport in transports) >= 600 - 256


async def test_a_flood_of_connections_does_not_pause_accepting(
    new_server: Callable[..., ServerProcess], open_files_max: int
) -> None:
    """HTTP-24: the files of connections that make room close a moment later, and new ones need files meanwhile."""
    server = new_server(limits="-n 1200")
    server.start()
    connect = asyncio.get_running_loop().create_connection
    count = min(1_800, open_files_max - 500)
    for _ in range(3):
        opened = await asyncio.gather(*(connect(asyncio.Protocol, "127.0.0.1", server.port) for _ in range(count)))
        for transport, _ in opened:
            transport.abort()
    await traffic(server, server.new_service_key())
    assert "accept_paused" not in server.output()
