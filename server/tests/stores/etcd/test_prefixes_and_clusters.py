"""One prefix is one store in one cluster: others are refused at the start, and a change of it while nodes serve."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
from testsupport.engines import etcd
from testsupport.engines.processes import READY_SECONDS

from volcano_locks_server.rules.errors import StoreUnavailableError
from volcano_locks_server.rules.lease import Free
from volcano_locks_server.stores import OpenStore, open_store
from volcano_locks_server.stores.etcd import EtcdCluster
from volcano_locks_server.stores.etcd.address import EtcdAddress
from volcano_locks_server.stores.etcd.clock_skew import FRESH_MS
from volcano_locks_server.stores.etcd.layout import end_of
from volcano_locks_server.stores.etcd.transactions import Delete, Get, Put
from volcano_locks_server.stores.maintenance import check_health
from volcano_locks_server.testing import ManualClock

from ..store_actions import key, read_records, write_records

STOPS_WITHIN_SECONDS = FRESH_MS / 1_000 + 2


async def cause(url: str) -> str:
    """Why a store is refused; "" if it is not."""
    try:
        await (await open_store(url, ManualClock())).close()
    except StoreUnavailableError as error:
        return error.cause_code
    return ""


async def refusal(store: OpenStore) -> StoreUnavailableError:
    """The error with which a running node stops to serve."""
    async with asyncio.timeout(STOPS_WITHIN_SECONDS):
        while True:
            try:
                await read_records(store.locks, key("a"))
            except StoreUnavailableError as error:
                return error
            await asyncio.sleep(0.05)


@pytest.fixture
async def prefix() -> str:
    return etcd.new_prefix()


@pytest.fixture
async def store(prefix: str, clock: ManualClock) -> AsyncIterator[OpenStore]:
    opened = await open_store(etcd.shared().url(prefix), clock)
    await write_records(opened.locks, (key("a"), Free(1, 1)))
    yield opened
    await opened.close()


@pytest.fixture
async def cluster(prefix: str, clock: ManualClock) -> AsyncIterator[EtcdCluster]:
    """Writes to the prefix beside the node."""
    opened = EtcdCluster(etcd_address(prefix), clock)
    yield opened
    await opened.endpoints.close()


def etcd_address(prefix: str) -> EtcdAddress:
    return EtcdAddress.parse(etcd.shared().url(prefix))


@pytest.mark.parametrize("inner", ["eu", "1", "1/lock", "schema", "2/x"])
async def test_a_prefix_inside_another_is_refused(store: OpenStore, prefix: str, inner: str) -> None:
    """OPS-8: whichever of them was first."""
    shared = etcd.shared()
    assert await cause(shared.url(f"{prefix}/{inner}")) == "nested_prefix"
    assert await cause(shared.url(f"{prefix}-other/{inner}")) == ""
    assert await cause(shared.url(f"{prefix}-other")) in ("nested_prefix", "schema_missing")
    assert await cause(shared.url(prefix)) == ""


@pytest.mark.real_time
async def test_a_schema_that_vanished_is_not_made_anew(store: OpenStore, cluster: EtcdCluster, prefix: str) -> None:
    """OPS-8: neither by the running node nor by one that starts on what is left."""
    layout = cluster.registry._layout
    await cluster.endpoints.write((), [Delete(layout.schema)])
    assert (await refusal(store)).cause_code == "schema_missing"
    assert await cause(etcd.shared().url(prefix)) == "schema_missing"
    assert (await cluster.endpoints.read(Get(layout.schema))).one(0) is None


@pytest.mark.real_time
async def test_a_node_stops_when_everything_under_its_prefix_was_replaced(
    store: OpenStore, cluster: EtcdCluster, prefix: str
) -> None:
    """OPS-8."""
    layout = cluster.registry._layout
    await cluster.endpoints.write((), [Delete(layout.prefix, end_of(layout.prefix))])
    await cluster.endpoints.write((), [Put(layout.schema, b"1")])
    assert (await refusal(store)).cause_code == "schema_missing"


@pytest.mark.real_time
async def test_a_running_node_stops_when_the_layout_needs_a_newer_release(
    store: OpenStore, cluster: EtcdCluster
) -> None:
    """OPS-8."""
    await cluster.endpoints.write((), [Put(cluster.registry._layout.schema, b"2")])
    error = await refusal(store)
    assert error.cause_code == "newer_version"
    assert "use a newer release" in error.message
    with pytest.raises(StoreUnavailableError, match="use a newer release"):
        await store.locks.ready()


@pytest.mark.real_time
async def test_a_node_stops_when_etcd_was_set_back_to_an_older_state(clock: ManualClock, tmp_path: Path) -> None:
    """OPS-8, LEASE-14: leases that were acknowledged since are missing there."""
    with etcd.cluster(1, "--unsafe-no-fsync") as cluster:
        (member,) = cluster.members
        data = member.folder / member.name
        store = await open_store(cluster.url(), clock)
        await write_records(store.locks, (key("a"), Free(1, 1)))
        cluster.stop()
        shutil.copytree(data, tmp_path / "copy")
        cluster.start()
        async with asyncio.timeout(READY_SECONDS):
            while True:
                with suppress(StoreUnavailableError):
                    await write_records(store.locks, *((key(f"k{number}"), Free(1, 1)) for number in range(20)))
                    break
        await asyncio.sleep(2)  # the nodes' instants count too
        cluster.stop()
        shutil.rmtree(data)
        shutil.copytree(tmp_path / "copy", data)
        cluster.start()
        causes = set()
        async with asyncio.timeout(READY_SECONDS):
            while "store_went_back" not in causes:
                with pytest.raises(StoreUnavailableError) as caught:
                    await read_records(store.locks, key("a"))
                causes.add(caught.value.cause_code)
        with pytest.raises(StoreUnavailableError, match="older state"):
            await store.locks.ready()
        await store.close()


async def test_members_of_two_clusters_are_refused() -> None:
    """OPS-8."""
    with etcd.cluster(1, "--unsafe-no-fsync") as other:
        hosts = f"{etcd.shared().members[0].host},{other.members[0].host}"
        url = f"etcd://{hosts}/{etcd.new_prefix()}"
        assert await cause(url) == "two_clusters"
        findings = await check_health(url)
        assert any("two etcd clusters" in finding.advice for finding in findings), findings


async def test_a_node_does_not_fail_over_to_another_cluster(clock: ManualClock) -> None:
    """OPS-8: its member was down when the node started."""
    with etcd.cluster(1, "--unsafe-no-fsync") as one, etcd.cluster(1, "--unsafe-no-fsync", is_started=False) as other:
        hosts = f"{one.members[0].host},{other.members[0].host}"
        store = await open_store(f"etcd://{hosts}/locks", clock)
        await write_records(store.locks, (key("a"), Free(1, 1)))
        other.start()
        one.members[0].kill()
        found = set()
        for _ in range(4):
            with pytest.raises(StoreUnavailableError) as caught:
                await write_records(store.locks, (key("a"), Free(2, 2)))
            found.add(caught.value.cause_code)
        assert "two_clusters" in found
        assert await cause(other.url("locks")) == "", "nothing was written there"
        await store.close()
