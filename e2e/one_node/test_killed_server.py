"""A server that is killed with -9 under load, again and again, keeps what it promised."""

import asyncio
import random
from collections.abc import Callable

import pytest

from .conftest import ServerProcess
from .crowd import Crowd

KILLS = 10
pytestmark = pytest.mark.real_time


async def test_ten_kills_under_load_lose_nothing(
    server: ServerProcess, new_server: Callable[..., ServerProcess]
) -> None:
    """LEASE-3, LEASE-6, LEASE-14, case 20, case 25, case 30: no acknowledged lease is lost, no fencing token comes
    twice, and never are there two holders, in what every worker was told and when."""
    dice = random.Random(9)
    kills_in_flight = 0
    async with Crowd(server.url, server.new_service_key()) as crowd:
        for number in range(KILLS):
            await asyncio.sleep(dice.uniform(0.2, 0.9))
            cut_off = crowd.cut_off
            server.kill()
            if number % 3 == 2:  # and once more, while it comes up
                server.begin()
                await asyncio.sleep(dice.uniform(0.1, 0.6))
                server.kill()
            await asyncio.to_thread(server.start)
            kills_in_flight += crowd.cut_off > cut_off
        await asyncio.sleep(0.5)
        await crowd.work_until(lambda: crowd.has_had(200, takeovers=5))
        await crowd.work_until(lambda: crowd.counted()["release", "done"] > 100)
        await crowd.work_until(lambda: crowd.counted()["acquire", "held"] > 20)
        await crowd.dismiss()
    crowd.check()
    assert kills_in_flight >= KILLS / 2, "a kill while nothing is asked proves nothing"
