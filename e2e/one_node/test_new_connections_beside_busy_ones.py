"""New connections beside hundreds that each send a request as soon as they have a response."""

import asyncio
import socket
import statistics
import time
from typing import cast

import pytest
from testsupport.server_process import ServerProcess

SMALL_GET = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
BUSY = 500
NEW = 200
BUSY_SECONDS = 2.0
RATIO_MAX = 30  # accept, transport, request and response take a few turns; one accept in each turn would take NEW


class Client(asyncio.Protocol):
    """Sends requests one after the other, and records how long each response took."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._began_at = time.monotonic()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(SMALL_GET)

    def data_received(self, _data: bytes) -> None:
        now = time.monotonic()
        self.seconds.append(now - self._began_at)
        self._began_at = now
        if self._transport is not None:
            self._transport.write(SMALL_GET)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


@pytest.mark.real_time
async def test_new_connections_are_served_beside_busy_ones(server: ServerProcess) -> None:
    """HTTP-24, case 60: many new connections at once wait for a few responses to the busy ones, not for hundreds."""
    loop = asyncio.get_running_loop()
    busy, new = [], []
    try:
        for _ in range(BUSY):
            busy.append((await loop.create_connection(Client, "127.0.0.1", server.port))[1])
        await asyncio.sleep(BUSY_SECONDS)
        sockets = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(NEW)]
        new = [one for _, one in await asyncio.gather(*(loop.create_connection(Client, sock=one) for one in sockets))]
        async with asyncio.timeout(60):
            while not all(client.seconds for client in new):
                await asyncio.sleep(0.01)
        usual = statistics.median(seconds for client in busy for seconds in client.seconds)
        slowest = max(client.seconds[0] for client in new)
        assert slowest < RATIO_MAX * usual, f"{slowest:.3f} s beside {usual:.3f} s"
    finally:
        for client in (*busy, *new):
            client.close()
        await asyncio.sleep(0)
