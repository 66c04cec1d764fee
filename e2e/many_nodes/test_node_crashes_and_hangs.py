"""Nodes that are killed with -9, or paused and resumed under load: no acknowledged lease is lost."""

import asyncio
import os
import random
import signal
from collections.abc import Callable

import pytest
from e2e.load_clients import TTL_SECONDS, now
from testsupport.server_process import ServerProcess

from .multi_node_load import MultiNodeLoadClients

NODES = 3
KILLS = {"postgresql": 5, "etcd": 2}  # over etcd, a restarted node waits until its former process is known to be silent
KILLS_MAX = 12
PAUSED_SECONDS = TTL_SECONDS + 4  # longer than a lease granted just before, with its grace
pytestmark = pytest.mark.real_time


async def test_killed_nodes_lose_no_lease(
    store: str, new_nodes: Callable[..., list[ServerProcess]], measured: Callable[[str, float], None]
) -> None:
    """LEASE-3, LEASE-6, LEASE-14, case 25, case 30."""
    engine = store.partition("://")[0]
    random_source = random.Random(9)
    nodes = new_nodes(*[store] * NODES)
    async with MultiNodeLoadClients([node.url for node in nodes], nodes[0].new_service_key()) as clients:
        for number in range(KILLS_MAX):
            if (
                number >= KILLS[engine] and clients.broken_connections
            ):  # a kill without a request in flight proves nothing
                break
            await asyncio.sleep(random_source.uniform(0.3, 0.8))
            victim = nodes[number % NODES]
            killed_at = now()
            victim.kill()
            others = [node.url for node in nodes if node is not victim]
            measured(
                f"{engine}: a node was killed; by another node", await clients.seconds_to_a_grant(killed_at, *others)
            )
            started_at = now()
            await asyncio.to_thread(victim.start)
            took = await clients.seconds_to_a_grant(started_at, victim.url)
            measured(f"{engine}: a node was restarted after its kill; by that node", took)
        await asyncio.sleep(0.5)
        await clients.work_until(lambda: clients.has_completed(50))
        await clients.finish()
    clients.check()
    assert clients.broken_connections > 0


async def test_hanging_nodes_lose_no_lease(
    store: str, new_nodes: Callable[..., list[ServerProcess]], measured: Callable[[str, float], None]
) -> None:
    """LEASE-6, LEASE-14, case 30: one node is paused until every lease that it knew has ended, another repeatedly for a
    moment. The work that they resume loses no lease."""
    engine = store.partition("://")[0]
    random_source = random.Random(5)
    nodes = new_nodes(*[store] * NODES)
    paused, stuttering, steady = nodes
    async with MultiNodeLoadClients([node.url for node in nodes], nodes[0].new_service_key()) as clients:
        await asyncio.sleep(1)
        paused_at = now()
        os.kill(paused.pid, signal.SIGSTOP)
        measured(f"{engine}: a node hung; by another node", await clients.seconds_to_a_grant(paused_at, steady.url))
        while now() < paused_at + PAUSED_SECONDS:
            os.kill(stuttering.pid, signal.SIGSTOP)
            await asyncio.sleep(random_source.uniform(0.1, 0.9))
            os.kill(stuttering.pid, signal.SIGCONT)
            await asyncio.sleep(random_source.uniform(0.1, 0.9))
        resumed_at = now()
        os.kill(paused.pid, signal.SIGCONT)
        took = await clients.seconds_to_a_grant(resumed_at, paused.url)
        measured(f"{engine}: a node resumed after {PAUSED_SECONDS} s; by that node", took)
        await asyncio.sleep(0.5)
        await clients.work_until(lambda: clients.has_completed(50, takeovers=3))
        await clients.finish()
    clients.check()
