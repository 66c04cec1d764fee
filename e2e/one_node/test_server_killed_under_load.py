"""A server that is killed with -9 repeatedly under load loses no acknowledged lease."""

import asyncio
import random
from collections.abc import Callable

import pytest
from e2e.load_clients import LoadClients
from testsupport.server_process import ServerProcess

KILLS = 10
pytestmark = pytest.mark.real_time


async def test_ten_kills_under_load_lose_no_lease(
    server: ServerProcess, new_server: Callable[..., ServerProcess]
) -> None:
    """LEASE-3, LEASE-6, LEASE-14, case 20, case 25, case 30: no client's record shows a lost acknowledged lease, a
    repeated fencing token, or two holders at once."""
    random_source = random.Random(9)
    kills_in_flight = 0
    async with LoadClients(server.url, server.new_service_key()) as clients:
        for number in range(KILLS):
            await asyncio.sleep(random_source.uniform(0.2, 0.9))
            broken = clients.broken_connections
            server.kill()
            if number % 3 == 2:  # again, while it starts
                server.begin()
                await asyncio.sleep(random_source.uniform(0.1, 0.6))
                server.kill()
            await asyncio.to_thread(server.start)
            kills_in_flight += clients.broken_connections > broken
        await asyncio.sleep(0.5)
        await clients.work_until(lambda: clients.has_completed(200, takeovers=5))
        await clients.work_until(lambda: clients.counts()["release", "done"] > 100)
        await clients.work_until(lambda: clients.counts()["acquire", "held"] > 20)
        await clients.finish()
    clients.check()
    assert kills_in_flight >= KILLS / 2, "a kill without a request in flight proves nothing"
