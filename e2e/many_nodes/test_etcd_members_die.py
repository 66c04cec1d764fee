"""Three nodes over an etcd cluster of three, whose members die and hang under load: nothing acknowledged is lost."""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack

import pytest
from e2e.one_node.conftest import ServerProcess
from e2e.one_node.crowd import now
from testsupport.engines import etcd
from testsupport.engines.etcd import Cluster
from testsupport.fault_proxy import Wire

from .crowd import NodesCrowd

NODES = 3
ASIDE_SECONDS = 5  # several elections long
ELECTED_SECONDS_MAX = 30
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
        await crowd.work_until(lambda: crowd.has_had(100))
        await crowd.dismiss()
    crowd.check()


async def test_members_that_hang_lose_nothing(
    cluster: Cluster, new_nodes: Callable[..., list[ServerProcess]], measured: Callable[[str, float], None]
) -> None:
    """LEASE-6, LEASE-14, case 25, case 31: a follower is stopped for a while; then the leader, until another leads, and
    it goes on as if it led."""
    nodes = new_nodes(*[cluster.url()] * NODES)
    async with NodesCrowd([node.url for node in nodes], nodes[0].new_service_key()) as crowd:
        await asyncio.sleep(1)
        for who, seconds in (("follower", 0), ("leader", ASIDE_SECONDS)):
            leader = await asyncio.to_thread(cluster.leader)
            # The first one is the one that all nodes use, unless it leads.
            victim = leader if who == "leader" else next(one for one in cluster.members if one is not leader)
            stopped_at = now()
            victim.signal(signal.SIGSTOP)
            for node in nodes:
                measured(f"etcd: the {who} hung", await crowd.seconds_to_a_grant(stopped_at, node.url))
            await asyncio.sleep(max(0.0, stopped_at + seconds - now()))
            victim.signal(signal.SIGCONT)
        await asyncio.sleep(1)
        await crowd.work_until(lambda: crowd.has_had(100))
        await crowd.dismiss()
    crowd.check()


@pytest.fixture
async def divisible() -> AsyncIterator[tuple[Cluster, list[Wire]]]:
    """A cluster whose members reach each other by these ways, one to each member."""
    with etcd.cluster(3, is_started=False) as cluster:
        async with AsyncExitStack() as stack:
            wires = [await stack.enter_async_context(Wire(member.peer_port)) for member in cluster.members]
            for member, wire in zip(cluster.members, wires, strict=True):
                member.peer_url = f"http://127.0.0.1:{wire.port}"
            await asyncio.to_thread(cluster.start)
            yield cluster, wires


async def test_a_leader_cut_off_from_its_members_loses_nothing(
    divisible: tuple[Cluster, list[Wire]],
    new_nodes: Callable[..., list[ServerProcess]],
    measured: Callable[[str, float], None],
) -> None:
    """LEASE-6, LEASE-14, case 25, case 31: it still believes to lead, and our nodes still reach it."""
    cluster, wires = divisible
    nodes = await asyncio.to_thread(new_nodes, *[cluster.url()] * NODES)
    service_key = await asyncio.to_thread(nodes[0].new_service_key)
    async with NodesCrowd([node.url for node in nodes], service_key) as crowd:
        await asyncio.sleep(1)
        leader = await asyncio.to_thread(cluster.leader)
        identity = int((await asyncio.to_thread(leader.ask, "maintenance/status"))["header"]["member_id"])
        cut_off_at = now()
        for member, wire in zip(cluster.members, wires, strict=True):
            wire.held_up = b"" if member is leader else b"X-Server-From: %x" % identity  # who opened it
            wire.keep_all()
        for node in nodes:
            measured("etcd: the leader was cut off", await crowd.seconds_to_a_grant(cut_off_at, node.url))
        await asyncio.sleep(max(0.0, cut_off_at + ASIDE_SECONDS - now()))
        other = next(one for one in cluster.members if one is not leader)
        while int((await asyncio.to_thread(other.ask, "maintenance/status")).get("leader", 0)) in (0, identity):
            assert now() < cut_off_at + ELECTED_SECONDS_MAX, "nobody else leads: the way was not cut"
            await asyncio.sleep(0.1)
        for wire in wires:
            wire.pass_all()
        await asyncio.sleep(1)
        await crowd.work_until(lambda: crowd.has_had(50))
        await crowd.dismiss()
    crowd.check()
