"""Three nodes over an etcd cluster of three, whose members die and hang under load: nothing acknowledged is lost."""

import asyncio
import signal
from collections.abc import Callable, Iterator

import pytest
from tests.engines import etcd
from tests.engines.etcd import Cluster
from tests.faults.conftest import ServerProcess
from tests.faults.crowd import now

from .crowd import NodesCrowd

NODES = 3
pytestmark = pytest.mark.real_time


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with etcd.cluster(3) as started:
        yield started


async def test_dead_members_and_a_dead_leader_lose_nothing(
    cluster: Cluster, new_nodes: Callable[..., list[ServerProcess]], measured: Callable[[str, float], None]
) -> None:
    """LEASE-3, LEASE-6, LEASE-14, case 25, case 31."""
    nodes = new_nodes(*[cluster.url()] * NODES)
    async with NodesCrowd([node.url for node in nodes], nodes[0].new_service_key()) as crowd:
        for who in ("follower", "leader", "leader"):
            await asyncio.sleep(1)
            leader = await asyncio.to_thread(cluster.leader)
            victim = leader if who == "leader" else next(one for one in cluster.members if one is not leader)
            killed_at = now()
            await asyncio.to_thread(victim.kill)
            for node in nodes:
                took = await crowd.seconds_to_a_grant(killed_at, node.url)
                measured(f"etcd: the {who} was killed", took)
            await asyncio.to_thread(cluster.start, victim)
        await asyncio.sleep(1)
        await crowd.dismiss()
    crowd.check()
    assert crowd.counted()["acquire", "granted"] > 100
    assert crowd.counted()["renew", "granted"] > 100


async def test_members_that_hang_lose_nothing(
    cluster: Cluster, new_nodes: Callable[..., list[ServerProcess]], measured: Callable[[str, float], None]
) -> None:
    """LEASE-6, LEASE-14, case 25, case 31: a member is stopped until another leads, then goes on as if it led."""
    nodes = new_nodes(*[cluster.url()] * NODES)
    async with NodesCrowd([node.url for node in nodes], nodes[0].new_service_key()) as crowd:
        for who, hangs_seconds in (("leader", 6), ("follower", 2)):
            await asyncio.sleep(1)
            leader = await asyncio.to_thread(cluster.leader)
            victim = leader if who == "leader" else next(one for one in cluster.members if one is not leader)
            stopped_at = now()
            victim.signal(signal.SIGSTOP)
            for node in nodes:
                took = await crowd.seconds_to_a_grant(stopped_at, node.url)
                measured(f"etcd: the {who} hung", took)
            await asyncio.sleep(max(0.0, stopped_at + hangs_seconds - now()))
            victim.signal(signal.SIGCONT)
        await asyncio.sleep(1)
        await crowd.dismiss()
    crowd.check()
    assert crowd.counted()["acquire", "granted"] > 100
    assert crowd.counted()["renew", "granted"] > 100
