"""Three nodes over PostgreSQL whose server, sessions and primary fail under load: no acknowledged lease is lost."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
from e2e.load_clients import now
from testsupport.engines import postgres
from testsupport.engines.postgres import Postgres
from testsupport.fault_proxy import FaultProxy
from testsupport.server_process import ServerProcess

from .multi_node_load import MultiNodeLoadClients

NODES = 3
WITHOUT_STANDBY_SECONDS = 0.5
LATEST_KEYS = [f"latest.{number}" for number in range(20)]
pytestmark = pytest.mark.real_time


@pytest.fixture
def server() -> Iterator[Postgres]:
    """A server that syncs to disk before it acknowledges."""
    with postgres.primary() as started:
        yield started


@pytest.fixture
async def pair(server: Postgres) -> AsyncIterator[tuple[Postgres, FaultProxy]]:
    """A synchronous standby of the server, and the proxy between them."""
    async with FaultProxy(server.port) as proxy:
        standby = postgres.standby(server, proxy.port)
        try:
            yield await asyncio.to_thread(standby.__enter__), proxy
        finally:
            await asyncio.to_thread(standby.__exit__, None, None, None)


@pytest.mark.parametrize("primary_survives", [False, True])
async def test_a_promotion_loses_no_lease(
    primary_survives: bool,
    server: Postgres,
    pair: tuple[Postgres, FaultProxy],
    new_nodes: Callable[..., list[ServerProcess]],
    measured: Callable[[str, float], None],
) -> None:
    """LEASE-3, LEASE-6, LEASE-14, case 25, case 26: the primary is isolated from its standby, then crashes or survives
    as a second primary. The standby is promoted, and each node recovers within 10 s. No write of the old primary in the
    meantime was acknowledged."""
    standby, proxy = pair
    store = f"postgresql://postgres@127.0.0.1:{server.port},127.0.0.1:{standby.port}/postgres"
    nodes = await asyncio.to_thread(new_nodes, *[store] * NODES)
    service_key = await asyncio.to_thread(nodes[0].new_service_key)
    async with MultiNodeLoadClients([node.url for node in nodes], service_key) as clients:
        await asyncio.sleep(2)
        proxy.hold_all()
        pending = []
        for key in LATEST_KEYS:
            pending.append(asyncio.create_task(clients.call("acquire", key, key)))
            await asyncio.sleep(WITHOUT_STANDBY_SECONDS / len(LATEST_KEYS))
        proxy.cut()
        if not primary_survives:
            await asyncio.to_thread(server.crash)
            await asyncio.sleep(0.5)
        await asyncio.to_thread(standby.promote)
        promoted_at = now()
        for node in nodes:
            took = await clients.seconds_to_a_grant(promoted_at, node.url)
            after = "while the old primary survives" if primary_survives else "half a second after the primary's crash"
            measured(f"PostgreSQL: the standby was promoted {after}", took)
        await asyncio.gather(*pending, *(clients.call("get", key) for key in LATEST_KEYS))
        await asyncio.sleep(2)
        await clients.work_until(lambda: clients.has_completed(100))
        await clients.finish()
    clients.check()
    assert clients.unavailable > 0, "no request met the fault"


async def test_restarts_and_lost_sessions_lose_no_lease(
    server: Postgres, new_nodes: Callable[..., list[ServerProcess]], measured: Callable[[str, float], None]
) -> None:
    """LEASE-3, LEASE-6, LEASE-14, case 25: the server restarts, crashes, and terminates all sessions."""
    nodes = new_nodes(*[server.url()] * NODES)
    async with MultiNodeLoadClients([node.url for node in nodes], nodes[0].new_service_key()) as clients:
        for how, end in (("a stop", server.stop), ("a crash", server.crash)):
            await asyncio.sleep(1)
            await asyncio.to_thread(end)
            await asyncio.to_thread(server.start)
            took = await clients.seconds_to_a_grant(now())
            measured(f"PostgreSQL: the server was restarted after {how}", took)
        for _ in range(5):
            await asyncio.sleep(0.5)
            ended_at = now()
            await asyncio.to_thread(
                server.execute,
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'volcano-locks'",
            )
            took = await clients.seconds_to_a_grant(ended_at)
        measured("PostgreSQL: all sessions were terminated", took)
        await clients.work_until(lambda: clients.has_completed(100))
        await clients.finish()
    clients.check()
