"""Three nodes over PostgreSQL, whose server, sessions and primary die under load: nothing acknowledged is lost."""

import asyncio
import signal
from collections.abc import Callable, Iterator

import pytest
from tests.engines import postgres
from tests.engines.postgres import Postgres
from tests.faults.conftest import ServerProcess
from tests.faults.crowd import now

from .crowd import NodesCrowd

NODES = 3
pytestmark = pytest.mark.real_time


@pytest.fixture
def server() -> Iterator[Postgres]:
    """A server that writes to disk before it answers."""
    with postgres.primary() as started:
        yield started


@pytest.fixture
def pair() -> Iterator[tuple[Postgres, Postgres]]:
    """A primary and the synchronous standby that it waits for."""
    with postgres.primary() as primary, postgres.standby(primary) as standby:
        yield primary, standby


async def test_a_promotion_loses_nothing(
    pair: tuple[Postgres, Postgres],
    new_nodes: Callable[..., list[ServerProcess]],
    measured: Callable[[str, float], None],
) -> None:
    """LEASE-3, LEASE-6, LEASE-14, case 25, case 26: the primary crashes, its standby is promoted, and each node is back
    within 10 s."""
    primary, standby = pair
    store = f"postgresql://postgres@127.0.0.1:{primary.port},127.0.0.1:{standby.port}/postgres"
    nodes = new_nodes(*[store] * NODES)
    async with NodesCrowd([node.url for node in nodes], nodes[0].new_service_key()) as crowd:
        await asyncio.sleep(2)
        await asyncio.to_thread(primary.stop, signal.SIGQUIT)
        await asyncio.sleep(1)
        await asyncio.to_thread(standby.promote)
        promoted_at = now()
        for node in nodes:
            took = await crowd.seconds_to_a_grant(promoted_at, node.url)
            measured("PostgreSQL: the standby was promoted a second after the primary's crash", took)
        await asyncio.sleep(2)
        await crowd.dismiss()
    crowd.check()
    assert crowd.counted()["acquire", "granted"] > 100
    assert crowd.counted()["renew", "granted"] > 100
    assert crowd.unavailable > 0, "nobody met the fault"


async def test_restarts_and_lost_sessions_lose_nothing(
    server: Postgres, new_nodes: Callable[..., list[ServerProcess]], measured: Callable[[str, float], None]
) -> None:
    """LEASE-3, LEASE-6, LEASE-14, case 25: the server is restarted, crashes, and ends all sessions."""
    nodes = new_nodes(*[server.url()] * NODES)
    async with NodesCrowd([node.url for node in nodes], nodes[0].new_service_key()) as crowd:
        for how in (signal.SIGINT, signal.SIGQUIT):
            await asyncio.sleep(1)
            await asyncio.to_thread(server.stop, how)
            await asyncio.to_thread(server.start)
            took = await crowd.seconds_to_a_grant(now())
            measured(f"PostgreSQL: the server was started again after {how.name}", took)
        for _ in range(5):
            await asyncio.sleep(0.5)
            ended_at = now()
            await asyncio.to_thread(
                server.execute,
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'volcano-locks'",
            )
            took = await crowd.seconds_to_a_grant(ended_at)
        measured("PostgreSQL: all sessions were ended", took)
        await crowd.dismiss()
    crowd.check()
    assert crowd.counted()["acquire", "granted"] > 100
    assert crowd.counted()["renew", "granted"] > 100
