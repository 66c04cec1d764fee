"""Three nodes over PostgreSQL, whose server, sessions and primary die under load: nothing acknowledged is lost."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
from e2e.one_node.conftest import ServerProcess
from e2e.one_node.crowd import now
from testsupport.engines import postgres
from testsupport.engines.postgres import Postgres
from testsupport.fault_proxy import Wire

from .crowd import NodesCrowd

NODES = 3
ALONE_SECONDS = 0.5
LATEST = [f"latest.{number}" for number in range(20)]
pytestmark = pytest.mark.real_time


@pytest.fixture
def server() -> Iterator[Postgres]:
    """A server that writes to disk before it answers."""
    with postgres.primary() as started:
        yield started


@pytest.fixture
async def pair(server: Postgres) -> AsyncIterator[tuple[Postgres, Wire]]:
    """A synchronous standby of the server, and its way there."""
    async with Wire(server.port) as wire:
        standby = postgres.standby(server, wire.port)
        try:
            yield await asyncio.to_thread(standby.__enter__), wire
        finally:
            await asyncio.to_thread(standby.__exit__, None, None, None)


@pytest.mark.parametrize("lives_on", [False, True])
async def test_a_promotion_loses_nothing(
    lives_on: bool,
    server: Postgres,
    pair: tuple[Postgres, Wire],
    new_nodes: Callable[..., list[ServerProcess]],
    measured: Callable[[str, float], None],
) -> None:
    """LEASE-3, LEASE-6, LEASE-14, case 25, case 26: the primary loses its standby, and crashes just after that or lives
    on and takes itself for the primary; the standby is promoted, and each node is back within 10 s. What the old
    primary wrote meanwhile was told to nobody."""
    standby, wire = pair
    store = f"postgresql://postgres@127.0.0.1:{server.port},127.0.0.1:{standby.port}/postgres"
    nodes = await asyncio.to_thread(new_nodes, *[store] * NODES)
    service_key = await asyncio.to_thread(nodes[0].new_service_key)
    async with NodesCrowd([node.url for node in nodes], service_key) as crowd:
        await asyncio.sleep(2)
        wire.keep_all()
        asking = []
        for key in LATEST:
            asking.append(asyncio.create_task(crowd.call("acquire", key, key)))
            await asyncio.sleep(ALONE_SECONDS / len(LATEST))
        wire.cut()
        if not lives_on:
            await asyncio.to_thread(server.crash)
            await asyncio.sleep(0.5)
        await asyncio.to_thread(standby.promote)
        promoted_at = now()
        for node in nodes:
            took = await crowd.seconds_to_a_grant(promoted_at, node.url)
            after = "while the old primary lives on" if lives_on else "half a second after the primary's crash"
            measured(f"PostgreSQL: the standby was promoted {after}", took)
        await asyncio.gather(*asking, *(crowd.call("get", key) for key in LATEST))
        await asyncio.sleep(2)
        await crowd.work_until(lambda: crowd.has_had(100))
        await crowd.dismiss()
    crowd.check()
    assert crowd.unavailable > 0, "nobody met the fault"


async def test_restarts_and_lost_sessions_lose_nothing(
    server: Postgres, new_nodes: Callable[..., list[ServerProcess]], measured: Callable[[str, float], None]
) -> None:
    """LEASE-3, LEASE-6, LEASE-14, case 25: the server is restarted, crashes, and ends all sessions."""
    nodes = new_nodes(*[server.url()] * NODES)
    async with NodesCrowd([node.url for node in nodes], nodes[0].new_service_key()) as crowd:
        for how, end in (("a stop", server.stop), ("a crash", server.crash)):
            await asyncio.sleep(1)
            await asyncio.to_thread(end)
            await asyncio.to_thread(server.start)
            took = await crowd.seconds_to_a_grant(now())
            measured(f"PostgreSQL: the server was started again after {how}", took)
        for _ in range(5):
            await asyncio.sleep(0.5)
            ended_at = now()
            await asyncio.to_thread(
                server.execute,
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'volcano-locks'",
            )
            took = await crowd.seconds_to_a_grant(ended_at)
        measured("PostgreSQL: all sessions were ended", took)
        await crowd.work_until(lambda: crowd.has_had(100))
        await crowd.dismiss()
    crowd.check()
