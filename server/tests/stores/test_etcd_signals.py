"""The watch dies, hangs, comes too late; and what nodes leave behind."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from testsupport.engines import etcd
from testsupport.fault_proxy import Wire

from volcano_locks_server.ports.clock import SystemClock
from volcano_locks_server.stores.etcd import EtcdCluster
from volcano_locks_server.stores.etcd.layout import end_of
from volcano_locks_server.stores.etcd.transactions import Put, Read

from .ears import Ear

pytestmark = pytest.mark.real_time


@asynccontextmanager
async def listening(url: str) -> AsyncIterator[tuple[Ear, EtcdCluster]]:
    """A node on that cluster."""
    node = await EtcdCluster.open(url, SystemClock())
    try:
        ear = Ear(node.signals)
        await ear.listens()
        yield ear, node
    finally:
        await node.close()


@asynccontextmanager
async def wired(cluster: etcd.Cluster) -> AsyncIterator[tuple[Wire, Ear, Ear, EtcdCluster]]:
    """Two nodes that listen; the first one by way of a wire."""
    host, url = cluster.members[0].host, cluster.url()
    async with (
        Wire(int(host.rpartition(":")[2])) as wire,
        listening(url) as (other, node),
        listening(url.replace(host, f"127.0.0.1:{wire.port}")) as (one, _),
    ):
        yield wire, one, other, node


@pytest.fixture
def member() -> Iterator[etcd.Cluster]:
    """A cluster of one, to do things to."""
    with etcd.cluster(1, "--unsafe-no-fsync") as started:
        yield started


async def told(node: EtcdCluster) -> list[bytes]:
    """What is there of signals."""
    signals = node.registry._layout.signals
    return [found.value for found in (await node.members.read(Read(signals, end_of(signals)))).found[0]]


async def test_a_member_that_is_killed_is_missed_and_heard_again(member: etcd.Cluster) -> None:
    """WAIT-10."""
    url = member.url()
    async with listening(url) as (one, _), listening(url) as (other, _node):
        before = one.missed
        member.stop()
        await one.until(lambda: one.missed > before and not one.signals.working)
        await asyncio.to_thread(member.start)
        await one.listens()
        await other.listens()
        one.signals.tell(b"later")
        await other.hears(b"later")
        await one.hears(b"later")


async def test_a_stream_that_is_silent_is_noticed_and_left(member: etcd.Cluster) -> None:
    """A connection that is dead says nothing, so it is asked."""
    async with wired(member) as (wire, one, other, _):
        before = one.missed
        wire.keep_all()
        await one.until(lambda: one.missed > before and not one.signals.working)
        wire.cut()
        wire.pass_all()
        await one.listens()
        other.signals.tell(b"hello")
        await one.hears(b"hello")
        one.signals.tell(b"back")
        await other.hears(b"back")


async def test_a_node_that_stays_with_its_member_is_heard_while_others_compact(member: etcd.Cluster) -> None:
    url = member.url()
    async with listening(url) as (one, _), listening(url) as (other, _node):
        for number in range(20):
            one.signals.tell(b"%d" % number)
            await other.hears(b"%d" % number)
            revision = member.members[0].ask("maintenance/status")["header"]["revision"]
            member.members[0].ask("kv/compaction", revision=revision)


async def test_a_watch_for_which_too_much_was_compacted_is_missed_and_begins_anew(member: etcd.Cluster) -> None:
    """A node could not read for a while, and meanwhile its cluster threw away what it had not read."""
    async with wired(member) as (wire, one, other, node):
        before = one.missed
        signals = node.registry._layout.signals
        wire.answers.clear()
        # What is on its way first, then more than a member queues for one watch.
        for size, count in [(1_000_000, 1)] * 8 + [(1, 100)] * 15:
            await asyncio.gather(*(node.members.write((), [Put(signals + b"x", b"x" * size)]) for _ in range(count)))
        revision = member.members[0].ask("maintenance/status")["header"]["revision"]
        member.members[0].ask("kv/compaction", revision=revision)
        wire.answers.set()
        await one.until(lambda: one.missed > before)
        await one.listens()
        other.signals.tell(b"again")
        await one.hears(b"again")


async def test_a_node_leaves_nothing_behind() -> None:
    url = etcd.shared().url()
    async with listening(url) as (one, node):
        async with listening(url) as (other, _node):
            other.signals.tell(b"a")
            await one.hears(b"a")
            assert len(await told(node)) == 1
        assert await told(node) == []


async def test_what_a_dead_node_left_goes_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from volcano_locks_server.stores.etcd import clock_skew

    monkeypatch.setattr(clock_skew, "GONE_SECONDS", 0.0)
    monkeypatch.setattr(clock_skew, "RETENTION_MS", 0)
    url = etcd.shared().url()
    dead = await EtcdCluster.open(url, SystemClock())
    async with listening(url) as (one, node):
        ear = Ear(dead.signals)
        await ear.listens()
        ear.signals.tell(b"a")
        await one.hears(b"a")
        assert dead.clocks._pulse is not None
        dead.clocks._pulse.cancel()
        await node.clocks.pulse()
        await asyncio.sleep(0.01)
        await node.clocks.forget_gone_nodes()
        assert await told(node) == []
        await dead.close()


async def test_what_strangers_write_is_passed_over() -> None:
    shared = etcd.shared()
    async with listening(shared.url()) as (one, node):
        signals = node.registry._layout.signals
        shared.members[0].put(signals + b"x", b"\xff not a packet")
        shared.members[0].put(signals + b"x", b"1 aaaaaaaaaaaa 7 whole\nfrom a stranger")
        await one.hears(b"from a stranger")
        assert one.heard == [b"from a stranger"]


async def test_a_leader_dies_and_nodes_hear_each_other_again() -> None:
    """WAIT-10: by whichever member is left."""
    with etcd.cluster(3) as cluster:
        url = cluster.url()
        async with listening(url) as (one, _), listening(url) as (other, _node):
            leader = cluster.leader()
            leader.kill()
            number = 0
            async with asyncio.timeout(30):
                while not any(b"after" in message for message in other.heard):
                    number += 1
                    one.signals.tell(b"after %d" % number)
                    await asyncio.sleep(0.2)
            await one.listens()
            await other.listens()
