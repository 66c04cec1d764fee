"""A server that gets SIGTERM under load completes its requests and exits in time."""

import asyncio
import time

import pytest
from e2e.load_clients import LoadClients
from testsupport.server_process import ServerProcess

from volcano_locks_server.runtime.server import DRAIN_SECONDS_MAX

STOPS = 4
pytestmark = pytest.mark.real_time


async def test_a_shutdown_under_load_completes_requests_and_loses_no_lease(server: ServerProcess) -> None:
    """HTTP-23, LEASE-14: each response is a success or a documented refusal and holds after the restart; the exit code
    is 0."""
    async with LoadClients(server.url, server.new_service_key()) as clients:
        for _ in range(STOPS):
            await asyncio.sleep(0.5)
            began = time.monotonic()
            assert await asyncio.to_thread(server.terminate) == 0
            assert time.monotonic() - began < DRAIN_SECONDS_MAX + 5
            await asyncio.to_thread(server.start)
        await asyncio.sleep(0.2)
        await clients.work_until(lambda: clients.has_completed(100))
        await clients.finish()
    clients.check()
