"""Signals over etcd when the watch fails, hangs or falls behind; and keys of nodes that are gone."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from testsupport.engines import etcd
from testsupport.fault_proxy import FaultProxy

from volcano_locks_server.ports.clock import SystemClock
from volcano_locks_server.stores.etcd import EtcdCluster
from volcano_locks_server.stores.etcd.layout import end_of
from volcano_locks_server.stores.etcd.transactions import Get, Put

from ..signal_recorder import SignalRecorder

pytestmark = pytest.mark.real_time


@asynccontextmanager
async def receiving(url: str) -> AsyncIterator[tuple[SignalRecorder, EtcdCluster]]:
    """A node on that cluster that receives."""
    node = await EtcdCluster.open(url, SystemClock())
    try:
        recorder = SignalRecorder(node.signals)
        await recorder.until_working()
        yield recorder, node
    finally:
        await node.close()


@asynccontextmanager
async def proxied(
    cluster: etcd.Cluster,
) -> AsyncIterator[tuple[FaultProxy, SignalRecorder, SignalRecorder, EtcdCluster]]:
    """Two nodes that receive; the first one through a proxy."""
    host, url = cluster.members[0].host, cluster.url()
    async with (
        FaultProxy(int(host.rpartition(":")[2])) as proxy,
        receiving(url) as (other, node),
        receiving(url.replace(host, f"127.0.0.1:{proxy.port}")) as (one, _),
    ):
        yield proxy, one, other, node


@pytest.fixture
def member() -> Iterator[etcd.Cluster]:
    """A cluster of one for faults."""
    with etcd.cluster(1, "--unsafe-no-fsync") as started:
        yield started


async def stored_signals(node: EtcdCluster) -> list[bytes]:
    """The values under the signal keys."""
    signals = node.registry._layout.signals
    return [found.value for found in (await node.endpoints.read(Get(signals, end_of(signals)))).reads[0]]


async def test_signals_resume_after_a_member_restarts(member: etcd.Cluster) -> None:
    """WAIT-10."""
    url = member.url()
    async with receiving(url) as (one, _), receiving(url) as (other, _):
        before = one.missed
        member.stop()
        await one.until(lambda: one.missed > before and not one.signals.working)
        await asyncio.to_thread(member.start)
        await one.until_working()
        await other.until_working()
        one.signals.publish(b"later")
        await other.until_received(b"later")
        await one.until_received(b"later")


async def test_a_silent_stream_is_replaced(member: etcd.Cluster) -> None:
    """A dead connection reports nothing, so the node probes it."""
    async with proxied(member) as (proxy, one, other, _):
        before = one.missed
        proxy.hold_all()
        await one.until(lambda: one.missed > before and not one.signals.working)
        proxy.cut()
        proxy.forward_all()
        await one.until_working()
        other.signals.publish(b"hello")
        await one.until_received(b"hello")
        one.signals.publish(b"back")
        await other.until_received(b"back")


async def test_compaction_does_not_disturb_a_watch_in_step(member: etcd.Cluster) -> None:
    url = member.url()
    async with receiving(url) as (one, _), receiving(url) as (other, _):
        for number in range(20):
            one.signals.publish(b"%d" % number)
            await other.until_received(b"%d" % number)
            revision = member.members[0].ask("maintenance/status")["header"]["revision"]
            member.members[0].ask("kv/compaction", revision=revision)


async def test_a_watch_restarts_if_its_pending_revisions_were_compacted(member: etcd.Cluster) -> None:
    """The cluster compacted revisions before the node could read them."""
    async with proxied(member) as (proxy, one, other, node):
        before = one.missed
        signals = node.registry._layout.signals
        proxy.responses.clear()
        # Fill the connection first, then write more than a member queues for one watch.
        for size, count in [(1_000_000, 1)] * 8 + [(1, 100)] * 15:
            await asyncio.gather(*(node.endpoints.write((), [Put(signals + b"x", b"x" * size)]) for _ in range(count)))
        revision = member.members[0].ask("maintenance/status")["header"]["revision"]
        member.members[0].ask("kv/compaction", revision=revision)
        proxy.responses.set()
        await one.until(lambda: one.missed > before)
        await one.until_working()
        other.signals.publish(b"again")
        await one.until_received(b"again")


async def test_close_deletes_the_signal_key() -> None:
    url = etcd.shared().url()
    async with receiving(url) as (one, node):
        async with receiving(url) as (other, _):
            other.signals.publish(b"a")
            await one.until_received(b"a")
            assert len(await stored_signals(node)) == 1
        assert await stored_signals(node) == []


async def test_the_signal_key_of_a_dead_node_is_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    from volcano_locks_server.stores.etcd import clock_skew

    monkeypatch.setattr(clock_skew, "GONE_SECONDS", 0.0)
    monkeypatch.setattr(clock_skew, "RETENTION_MS", 0)
    url = etcd.shared().url()
    dead = await EtcdCluster.open(url, SystemClock())
    async with receiving(url) as (one, node):
        recorder = SignalRecorder(dead.signals)
        await recorder.until_working()
        recorder.signals.publish(b"a")
        await one.until_received(b"a")
        assert dead.skew_monitor._announcing is not None
        dead.skew_monitor._announcing.cancel()
        await node.skew_monitor.announce()
        await asyncio.sleep(0.01)
        await node.skew_monitor.delete_gone_nodes()
        assert await stored_signals(node) == []
        await dead.close()


async def test_foreign_text_is_ignored() -> None:
    shared = etcd.shared()
    async with receiving(shared.url()) as (one, node):
        signals = node.registry._layout.signals
        shared.members[0].put(signals + b"x", b"\xff not a packet")
        shared.members[0].put(signals + b"x", b"1 aaaaaaaaaaaa 7 whole\nfrom a stranger")
        await one.until_received(b"from a stranger")
        assert one.received == [b"from a stranger"]


async def test_signals_resume_after_the_leader_is_killed() -> None:
    """WAIT-10: through the remaining members."""
    with etcd.cluster(3) as cluster:
        url = cluster.url()
        async with receiving(url) as (one, _), receiving(url) as (other, _):
            leader = cluster.leader()
            leader.kill()
            number = 0
            async with asyncio.timeout(30):
                while not any(b"after" in message for message in other.received):
                    number += 1
                    one.signals.publish(b"after %d" % number)
                    await asyncio.sleep(0.2)
            await one.until_working()
            await other.until_working()
