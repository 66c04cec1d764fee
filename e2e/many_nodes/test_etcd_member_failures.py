"""Three nodes over an etcd cluster whose members crash, hang and are isolated: no acknowledged lease is lost."""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack

import pytest
from e2e.load_clients import now
from testsupport.engines import etcd
from testsupport.engines.etcd import Cluster
from testsupport.fault_proxy import FaultProxy
from testsupport.server_process import ServerProcess

from .multi_node_load import MultiNodeLoadClients

NODES = 3
FAULT_SECONDS = 5  # longer than several elections
ELECTED_SECONDS_MAX = 30
pytestmark = pytest.mark.real_time


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with etcd.cluster(3) as started:
        yield started


async def test_killed_members_and_a_killed_leader_lose_no_lease(
    cluster: Cluster, new_nodes: Callable[..., list[ServerProcess]], measured: Callable[[str, float], None]
) -> None:
    """LEASE-3, LEASE-6, LEASE-14, case 25, case 31."""
    nodes = new_nodes(*[cluster.url()] * NODES)
    async with MultiNodeLoadClients([node.url for node in nodes], nodes[0].new_service_key()) as clients:
        for role in ("follower", "leader", "leader"):
            await asyncio.sleep(1)
            leader = await asyncio.to_thread(cluster.leader)
            victim = leader if role == "leader" else next(one for one in cluster.members if one is not leader)
            killed_at = now()
            await asyncio.to_thread(victim.kill)
            for node in nodes:
                took = await clients.seconds_to_a_grant(killed_at, node.url)
                measured(f"etcd: the {role} was killed", took)
            await asyncio.to_thread(cluster.start, victim)
        await asyncio.sleep(1)
        await clients.work_until(lambda: clients.has_completed(100))
        await clients.finish()
    clients.check()


async def test_hanging_members_lose_no_lease(
    cluster: Cluster, new_nodes: Callable[..., list[ServerProcess]], measured: Callable[[str, float], None]
) -> None:
    """LEASE-6, LEASE-14, case 25, case 31: first a follower is paused. Then the leader is paused until another is
    elected, and resumes as if it still led."""
    nodes = new_nodes(*[cluster.url()] * NODES)
    async with MultiNodeLoadClients([node.url for node in nodes], nodes[0].new_service_key()) as clients:
        await asyncio.sleep(1)
        for role, seconds in (("follower", 0), ("leader", FAULT_SECONDS)):
            leader = await asyncio.to_thread(cluster.leader)
            # All nodes use the first member, unless it leads.
            victim = leader if role == "leader" else next(one for one in cluster.members if one is not leader)
            stopped_at = now()
            victim.signal(signal.SIGSTOP)
            for node in nodes:
                measured(f"etcd: the {role} hung", await clients.seconds_to_a_grant(stopped_at, node.url))
            await asyncio.sleep(max(0.0, stopped_at + seconds - now()))
            victim.signal(signal.SIGCONT)
        await asyncio.sleep(1)
        await clients.work_until(lambda: clients.has_completed(100))
        await clients.finish()
    clients.check()


@pytest.fixture
async def proxied_cluster() -> AsyncIterator[tuple[Cluster, list[FaultProxy]]]:
    """A cluster whose members reach each other through these proxies, one in front of each member."""
    with etcd.cluster(3, is_started=False) as cluster:
        async with AsyncExitStack() as stack:
            proxies = [await stack.enter_async_context(FaultProxy(member.peer_port)) for member in cluster.members]
            for member, proxy in zip(cluster.members, proxies, strict=True):
                member.peer_url = f"http://127.0.0.1:{proxy.port}"
            await asyncio.to_thread(cluster.start)
            yield cluster, proxies


async def test_an_isolated_leader_loses_no_lease(
    proxied_cluster: tuple[Cluster, list[FaultProxy]],
    new_nodes: Callable[..., list[ServerProcess]],
    measured: Callable[[str, float], None],
) -> None:
    """LEASE-6, LEASE-14, case 25, case 31: the leader still considers itself the leader, and our nodes reach it."""
    cluster, proxies = proxied_cluster
    nodes = await asyncio.to_thread(new_nodes, *[cluster.url()] * NODES)
    service_key = await asyncio.to_thread(nodes[0].new_service_key)
    async with MultiNodeLoadClients([node.url for node in nodes], service_key) as clients:
        await asyncio.sleep(1)
        leader = await asyncio.to_thread(cluster.leader)
        identity = int((await asyncio.to_thread(leader.ask, "maintenance/status"))["header"]["member_id"])
        isolated_at = now()
        for member, proxy in zip(cluster.members, proxies, strict=True):
            proxy.held_if_contains = (
                b"" if member is leader else b"X-Server-From: %x" % identity
            )  # the member that opened the connection
            proxy.hold_all()
        for node in nodes:
            measured("etcd: the leader was isolated", await clients.seconds_to_a_grant(isolated_at, node.url))
        await asyncio.sleep(max(0.0, isolated_at + FAULT_SECONDS - now()))
        other = next(one for one in cluster.members if one is not leader)
        while int((await asyncio.to_thread(other.ask, "maintenance/status")).get("leader", 0)) in (0, identity):
            assert now() < isolated_at + ELECTED_SECONDS_MAX, "no other member leads: the leader was not isolated"
            await asyncio.sleep(0.1)
        for proxy in proxies:
            proxy.forward_all()
        await asyncio.sleep(1)
        await clients.work_until(lambda: clients.has_completed(50))
        await clients.finish()
    clients.check()
