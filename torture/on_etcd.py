"""Three nodes on three etcd members: faults of the members, of the networks, of the nodes' dates, and an alarm."""

import asyncio
import random
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from testsupport.engines import etcd
from testsupport.engines.etcd import Cluster, Member
from testsupport.faked_date import FakedDate
from testsupport.fault_proxy import FaultProxy
from testsupport.server_process import ServerExitedError, ServerProcess

from .faults import Deployment, Faults, NetworkFaults, kind, start, start_all
from .worker_process import now

NODES = 3
FAULT_SECONDS = (3, 8)  # an election takes a second or two


@asynccontextmanager
async def deployed(folder: Path, seed: object) -> AsyncIterator[Deployment]:
    """Three nodes, running. The members reach each other, and each node reaches the members, through proxies."""
    with etcd.cluster(3, is_started=False) as cluster:
        async with AsyncExitStack() as stack:
            peers = [await stack.enter_async_context(FaultProxy(member.peer_port)) for member in cluster.members]
            for member, proxy in zip(cluster.members, peers, strict=True):
                member.peer_url = f"http://127.0.0.1:{proxy.port}"
            await asyncio.to_thread(cluster.start)
            nodes, dates, networks = [], [], []
            for number in range(NODES):
                ports = [int(member.host.rpartition(":")[2]) for member in cluster.members]
                network = [await stack.enter_async_context(FaultProxy(port)) for port in ports]
                hosts = ",".join(f"127.0.0.1:{proxy.port}" for proxy in network)
                date = FakedDate(folder / f"date-{number}")
                node = ServerProcess(f"etcd://{hosts}/locks", environment=date.environment)
                stack.callback(node.close)
                nodes.append(node)
                dates.append(date)
                networks.append(network)
            await start_all(nodes)
            front = await stack.enter_async_context(FaultProxy(*(node.port for node in nodes)))
            deployment = Deployment("etcd", nodes, front)
            faults = _Faults(deployment, _Machines(cluster, peers, dates), seed)
            deployment.faults |= NetworkFaults(networks, seed).by_kind() | faults.by_kind()
            yield deployment


@dataclass
class _Machines:
    """The members, the proxies in front of each for the others, and the date of each node."""

    cluster: Cluster
    peers: Sequence[FaultProxy]
    dates: Sequence[FakedDate]


class _Faults(Faults):
    def __init__(self, deployment: Deployment, machines: _Machines, seed: object) -> None:
        self._deployment = deployment
        self._cluster = machines.cluster
        self._peers = machines.peers
        self._dates = machines.dates
        self._ahead_seconds = 0
        self._random = random.Random(f"etcd {seed}")

    async def _leader(self) -> Member:
        return await asyncio.to_thread(self._cluster.leader)

    async def _pause(self) -> None:
        await asyncio.sleep(self._random.uniform(*FAULT_SECONDS))

    @kind("member: follower killed")
    async def follower_killed(self) -> AsyncIterator[float]:
        """A majority remains."""
        leader = await self._leader()
        follower = next(one for one in self._cluster.members if one is not leader)
        killed_at = now()
        await asyncio.to_thread(follower.kill)
        yield killed_at
        await asyncio.to_thread(self._cluster.start, follower)

    @kind("member: leader killed")
    async def leader_killed(self) -> AsyncIterator[float]:
        """Another member is elected."""
        leader = await self._leader()
        killed_at = now()
        await asyncio.to_thread(leader.kill)
        yield killed_at
        await self._pause()
        await asyncio.to_thread(self._cluster.start, leader)

    @kind("member: leader hung")
    async def leader_hung(self) -> AsyncIterator[float]:
        """The leader resumes as if it still led."""
        leader = await self._leader()
        hung_at = now()
        leader.signal(signal.SIGSTOP)
        yield hung_at
        await self._pause()
        leader.signal(signal.SIGCONT)

    @kind("member: leader isolated")
    async def leader_isolated(self) -> AsyncIterator[float]:
        """The leader reaches no member, and the nodes reach it."""
        leader = await self._leader()
        identity = int((await asyncio.to_thread(leader.ask, "maintenance/status"))["header"]["member_id"])
        isolated_at = now()
        for member, proxy in zip(self._cluster.members, self._peers, strict=True):
            proxy.held_if_contains = b"" if member is leader else b"X-Server-From: %x" % identity
            proxy.hold_all()
        yield isolated_at
        await self._pause()
        for proxy in self._peers:
            proxy.held_if_contains = b""
            proxy.forward_all()

    @kind("members: all killed")
    async def all_members_killed(self) -> AsyncIterator[float]:
        """The power fails in all machines of the cluster."""
        await asyncio.to_thread(self._cluster.stop)
        await asyncio.sleep(self._random.uniform(0, 2))
        await asyncio.to_thread(self._cluster.start)
        yield now()

    @kind("member: out of space")
    async def out_of_space(self) -> AsyncIterator[float]:
        """The alarm NOSPACE is raised: etcd refuses writes until an operator disarms it."""
        member = self._cluster.members[0]
        identity = (await asyncio.to_thread(member.ask, "maintenance/status"))["header"]["member_id"]
        alarm = {"memberID": identity, "alarm": "NOSPACE"}
        await asyncio.to_thread(lambda: member.ask("maintenance/alarm", action="ACTIVATE", **alarm))
        await self._pause()
        await asyncio.to_thread(lambda: member.ask("maintenance/alarm", action="DEACTIVATE", **alarm))
        yield now()

    @kind("date: of one node")
    async def date_of_a_node(self) -> AsyncIterator[float]:
        """One node restarts with another date: it grants nothing until its date is right again (LEASE-1)."""
        number = self._random.randrange(NODES)
        node, date = self._deployment.nodes[number], self._dates[number]
        node.kill()
        date.step(self._ahead_seconds + self._random.choice([5, 60, 3_600, -3_600]))
        try:
            await asyncio.to_thread(node.start)
            await self._pause()
            node.kill()
        except ServerExitedError:
            pass  # it refuses to start
        date.step(self._ahead_seconds)
        began_at = now()
        await start(node)
        yield began_at

    @kind("date: of all nodes")
    async def date_of_all_nodes(self) -> AsyncIterator[float]:
        """All nodes restart, and find all dates ahead: takeovers are held (LEASE-17)."""
        self._ahead_seconds += self._random.choice([5, 60, 3_600])
        for node, date in zip(self._deployment.nodes, self._dates, strict=True):
            node.kill()
            date.step(self._ahead_seconds)
        began_at = now()
        self._deployment.date_steps.append(began_at)
        await start_all(self._deployment.nodes)
        yield began_at
