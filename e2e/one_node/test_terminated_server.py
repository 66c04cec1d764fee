"""A server that is asked to stop under load answers what it has begun, and ends in time."""

import asyncio
import time

import pytest

from volcano_locks_server.runtime.server import DRAIN_SECONDS_MAX

from .conftest import ServerProcess
from .crowd import Crowd

STOPS = 4
pytestmark = pytest.mark.real_time


async def test_a_stop_under_load_answers_done_or_unavailable_and_loses_nothing(server: ServerProcess) -> None:
    """HTTP-23, LEASE-14: each answer is a lease rule's or 503, and holds after the restart; the exit code is 0."""
    async with Crowd(server.url, server.new_service_key()) as crowd:
        for _ in range(STOPS):
            await asyncio.sleep(0.5)
            began = time.monotonic()
            assert await asyncio.to_thread(server.terminate) == 0
            assert time.monotonic() - began < DRAIN_SECONDS_MAX + 5
            await asyncio.to_thread(server.start)
        await asyncio.sleep(0.2)
        await crowd.work_until(lambda: crowd.has_had(100))
        await crowd.dismiss()
    crowd.check()
