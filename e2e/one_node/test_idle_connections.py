"""Thousands of connections that want nothing, and some that never finish asking, beside lock traffic."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest

from volcano_locks import AsyncClient

from .conftest import ServerProcess

HALF_BODY = (
    b"POST /locks/a/lease HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer KEY\r\nContent-Length: 20\r\n"
    b"X-Volcano-Lock-Token: 5b0c3f43-6f3c-4b53-9d3b-0c8f2a1f7f10\r\n\r\n{"
)
HALF_SENT = (b"GET /lo", b"POST /locks/a/lease HTTP/1.1\r\nHost: x\r\nX-Slow: ", HALF_BODY)
CLIENTS = 8
TURNS = 40
pytestmark = pytest.mark.real_time


@contextlib.asynccontextmanager
async def idlers(
    server: ServerProcess, count: int, sent: tuple[bytes, ...] = ()
) -> AsyncIterator[list[asyncio.Transport]]:
    """So many connections that send nothing, and fifty more for each piece in `sent` that send just that."""
    loop = asyncio.get_running_loop()
    transports: list[asyncio.Transport] = []
    try:
        for piece in [b""] * count + list(sent) * 50:
            transport, _ = await loop.create_connection(asyncio.Protocol, "127.0.0.1", server.port)
            transports.append(transport)
            if piece:
                transport.write(piece)
        yield transports
    finally:
        for transport in transports:
            transport.abort()
        await asyncio.sleep(0)


async def traffic(server: ServerProcess, service_key: str) -> None:
    """Locks taken, renewed and freed by clients of their own; whatever is not as it should be is raised."""

    async def turns(name: str) -> None:
        async with AsyncClient(server.url, service_key) as client:
            for number in range(TURNS):
                async with client.locks.with_lock(f"{name}.{number % 3}", ttl=60) as guard:
                    renewed = await client.locks.renew(guard.key, guard.lease)
                    assert renewed.fencing_token == guard.fencing_token

    await asyncio.gather(*(turns(f"client.{number}") for number in range(CLIENTS)))


async def test_lock_traffic_goes_on_beside_thousands_of_idle_connections(
    server: ServerProcess, many_files: int
) -> None:
    """HTTP-24: all are kept, and every lock request is answered as if they were not there."""
    service_key = server.new_service_key()
    count = min(2_500, many_files - 500)
    sent = tuple(piece.replace(b"KEY", service_key.encode()) for piece in HALF_SENT)
    async with idlers(server, count, sent) as transports:
        await traffic(server, service_key)
        assert sum(transport.is_closing() for transport in transports[:count]) == 0
        assert count >= 2_000


async def test_a_server_that_may_open_few_files_still_serves(new_server: Callable[..., ServerProcess]) -> None:
    """HTTP-24: idle connections make room before the process has no files left, for sockets or for the store."""
    server = new_server(limits="-n 256")
    server.start()
    service_key = server.new_service_key()
    async with idlers(server, 600) as transports:
        await traffic(server, service_key)
        assert sum(transport.is_closing() for transport in transports) >= 600 - 256
