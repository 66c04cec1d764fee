"""Several nodes on one etcd: conflicts, shared state, and cleaning up after a node that died."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from uuid import uuid4

import pytest
from conformance.history.checker import RequestRecord, check
from testsupport.engines import etcd

from volcano_locks_server.ports.clock import SystemClock
from volcano_locks_server.ports.lock_store import Records, StepResult
from volcano_locks_server.ports.registry import NewSecret, Project, ServiceKey
from volcano_locks_server.rules.errors import LockError, StoreUnavailableError
from volcano_locks_server.rules.lease import Acquire, Free, Granted, Release
from volcano_locks_server.stores import OpenStore, open_store
from volcano_locks_server.stores.etcd.store import EtcdCluster
from volcano_locks_server.stores.etcd.transactions import Delete, Get, KeyValue, Put
from volcano_locks_server.testing import ManualClock

from ..store_actions import digest, increment_at_last, key, read_records, run_commands, write_records

P1 = Project("p-1", "first", 600, 1_000)
K1 = ServiceKey("k-1", "p-1", "worker", "sk-abcd", ("*",), 1_001)


@pytest.fixture
def url() -> str:
    return etcd.shared().url()


@pytest.fixture
async def nodes(url: str) -> AsyncIterator[list[OpenStore]]:
    """Two nodes with the machine's clock."""
    async with AsyncExitStack() as stack:
        opened = []
        for _ in range(2):
            store = await open_store(url, SystemClock())
            stack.push_async_callback(store.close)
            opened.append(store)
        yield opened


@pytest.fixture
async def cluster(url: str, clock: ManualClock) -> AsyncIterator[EtcdCluster]:
    """A node with access to its parts, to leave work half done."""
    opened = await EtcdCluster.open(url, clock)
    yield opened
    await opened.close()


@pytest.mark.real_time
async def test_steps_of_two_nodes_on_one_key_lose_no_update(nodes: list[OpenStore]) -> None:
    """case 20: the second writer has read what the first wrote."""
    numbers = await asyncio.gather(*(increment_at_last(store.locks, key("a")) for _ in range(50) for store in nodes))
    assert sorted(numbers) == list(range(1, 101))
    assert sum(store.counts.conflicts for store in nodes if store.counts) > 0


@pytest.mark.real_time
async def test_the_history_of_racing_clients_of_two_nodes_holds(nodes: list[OpenStore]) -> None:
    """cases 20 and 30: tokens are unique and in order of their grants; never two holders."""
    events: list[RequestRecord] = []
    holding = 0

    async def record(client: str, store: OpenStore, command: Acquire | Release, owner: str, name: str) -> bool:
        sent_at = time.clock_gettime(time.CLOCK_BOOTTIME)
        (outcome,) = await run_commands(store.locks, (key(name), command))
        answered_at = time.clock_gettime(time.CLOCK_BOOTTIME)
        granted = isinstance(outcome, Granted)
        token = outcome.fencing_token if isinstance(outcome, Granted) else None
        if isinstance(command, Release):
            events.append(RequestRecord(client, "release", name, owner, sent_at, answered_at, "done"))
        else:
            outcome_name = "granted" if granted else "held"
            events.append(RequestRecord(client, "acquire", name, owner, sent_at, answered_at, outcome_name, 5.0, token))  # type: ignore[arg-type]
        return granted

    async def client(number: int) -> None:
        nonlocal holding
        store = nodes[number % 2]
        for turn in range(40):
            owner, name = f"{number}-{turn}", f"lock-{turn % 3}"
            if await record(str(number), store, Acquire(digest(owner), 5), owner, name):
                holding += 1
                await record(str(number), nodes[turn % 2], Release(digest(owner)), owner, name)

    await asyncio.gather(*(client(number) for number in range(8)))
    assert check(events) == []
    assert holding >= 40  # in each turn at least one: clients in step with each other share one lock


@pytest.mark.real_time
async def test_nodes_share_the_registry(nodes: list[OpenStore]) -> None:
    first, second = nodes
    await first.registry.add_project(P1)
    await first.registry.add_service_key(K1, digest("one"))
    assert await second.registry.credential(digest("one")) is not None
    await second.registry.delete_service_key("p-1", "k-1")
    assert await first.registry.credential(digest("one")) is None


@pytest.mark.real_time
async def test_one_of_two_nodes_that_add_the_same_name_succeeds(nodes: list[OpenStore]) -> None:
    """The writing transaction checks that the name is unique."""
    adding = (store.registry.add_project(Project(str(uuid4()), "same", 1, 1)) for store in nodes * 10)
    ended = await asyncio.gather(*adding, return_exceptions=True)
    assert sorted(type(one).__name__ for one in ended) == ["LockError"] * 19 + ["NoneType"]
    renaming = [Project(str(number), f"n{number}", 1, 1) for number in range(4)]
    for project in renaming:
        await nodes[0].registry.add_project(project)
    renamed = await asyncio.gather(
        *(nodes[0].registry.change_project(project.id, name="new", requests_per_minute=None) for project in renaming),
        return_exceptions=True,
    )
    assert sum(isinstance(one, Project) for one in renamed) == 1
    assert {one.code for one in renamed if isinstance(one, LockError)} == {"name_taken"}


@pytest.mark.real_time
async def test_two_nodes_share_the_quota_of_a_minute(nodes: list[OpenStore]) -> None:
    """QUOTA-8: requests drawn by one node are gone for the other; a late node draws from its own minute."""
    draws = [(store.quotas, wanted) for store in nodes for wanted in (7,) * 20]
    drawn = await asyncio.gather(
        *(quotas.take("p-1", 60_000, limit=100, wanted=wanted) for quotas, wanted in draws if quotas is not None)
    )
    assert sum(drawn) == 100
    quotas = nodes[0].quotas
    assert quotas is not None
    assert await quotas.take("p-1", 120_000, limit=100, wanted=30) == 30
    assert await quotas.take("p-1", 60_000, limit=101, wanted=30) == 1
    assert await quotas.take("p-1", 180_000, limit=100, wanted=500) == 100
    assert await quotas.take("p-1", 60_000, limit=500, wanted=5) == 0
    assert await quotas.take("p-2", 180_000, limit=100, wanted=1) == 1


@pytest.mark.real_time
async def test_one_node_purges_until_it_leaves(url: str) -> None:
    """LEASE-13: purging reads every record, so one node is enough."""
    first, second = [await open_store(url, SystemClock()) for _ in range(2)]
    await write_records(first.locks, (key("a"), Free(1, 1)), (key("b"), Free(1, 1)))
    assert await first.locks.purge(limit=1) == 1
    await second.locks.ready()
    assert await second.locks.purge(limit=1) == 0
    await first.close()
    await second.locks.ready()
    assert await second.locks.purge(limit=1) == 1
    await second.close()


async def test_a_conflict_runs_the_step_again_with_new_records_and_a_new_instant(
    cluster: EtcdCluster, clock: ManualClock
) -> None:
    """case 30: instant and condition belong to one attempt."""
    seen: list[tuple[object, int]] = []
    began_ms = clock.now_ms()

    def step(records: Records, now_ms: int) -> StepResult:
        seen.append((records[key("a")], now_ms))
        if len(seen) == 1:  # another node writes first
            written = b'{"state": "free", "fencing_token": 5, "freed_at_ms": 1}'
            etcd.shared().members[0].put(cluster.registry._layout.lock(key("a")), written)
        clock.advance(1)
        return StepResult({key("a"): Free(9, now_ms)}, [now_ms])

    assert await cluster.locks.update([key("a")], step) == [began_ms + 1]
    assert seen == [(None, began_ms), (Free(5, 1), began_ms + 1)]
    assert await read_records(cluster.locks, key("a")) == [Free(9, began_ms + 1)]


async def test_another_node_finishes_an_interrupted_deletion(cluster: EtcdCluster, url: str) -> None:
    """Leftovers are invalid at once, and soon deleted."""
    registry, members, layout = cluster.registry, cluster.endpoints, cluster.registry._layout
    await registry.add_project(P1)
    await registry.add_service_key(K1, digest("one"))
    await write_records(cluster.locks, (key("a", "p-1"), Free(1, 1)))
    name = layout.project_name(P1.name)
    await members.write((), [Delete(layout.project("p-1")), Delete(name), Put(layout.deletion("p-1"), b"")])
    assert await registry.credential(digest("one")) is None
    with pytest.raises(LockError):
        await registry.service_key("p-1", "k-1")
    assert await cluster.locks.purge(limit=1) == 0
    assert await left(cluster) == ["clock", "node", "purger", "schema"]


async def test_deleting_a_project_leaves_no_keys(cluster: EtcdCluster) -> None:
    registry = cluster.registry
    await registry.add_project(P1)
    for number in range(70):
        added = ServiceKey(f"k-{number}", "p-1", f"n{number}", "sk-a", ("*",), 1)
        await registry.add_service_key(added, digest(str(number)))
    await registry.replace_secret("p-1", "k-1", NewSecret(digest("new"), "sk-b", 9))
    await write_records(cluster.locks, *((key(f"k{number}", "p-1"), Free(1, 1)) for number in range(1_100)))
    await cluster.quotas.take("p-1", 0, limit=1, wanted=1)
    await registry.delete_project("p-1")
    assert await left(cluster) == ["clock", "node", "schema"]


async def test_only_digests_of_tokens_and_secrets_are_stored(cluster: EtcdCluster) -> None:
    """LEASE-15."""
    await cluster.registry.add_project(P1)
    await cluster.registry.add_service_key(K1, digest("the-secret"))
    await run_commands(cluster.locks, (key("a"), Acquire(digest("the-token"), 30)))
    stored = b" ".join(one.key + one.value for one in await everything(cluster))
    assert digest("the-token").hex().encode() in stored
    assert digest("the-secret").hex().encode() in stored
    assert b"the-token" not in stored
    assert b"the-secret" not in stored


async def test_a_newer_layout_is_refused_and_unchanged(cluster: EtcdCluster, url: str, clock: ManualClock) -> None:
    schema = cluster.registry._layout.schema
    await cluster.endpoints.write((), [Put(schema, b"2")])
    with pytest.raises(StoreUnavailableError, match="use a newer release") as caught:
        await open_store(url, clock)
    assert caught.value.cause_code == "newer_version"
    assert [one.value for one in (await cluster.endpoints.read(Get(schema))).reads[0]] == [b"2"]


async def test_an_incomplete_copy_refuses_to_serve_until_another_completes(url: str, clock: ManualClock) -> None:
    async def broken() -> AsyncIterator[list[Project]]:
        yield [P1]
        raise RuntimeError("the other store is gone")

    async def whole() -> AsyncIterator[list[Project]]:
        yield [Project("p-2", "second", 1, 1)]

    store = await open_store(url, clock)
    assert store.snapshot is not None
    with pytest.raises(RuntimeError, match="gone"):
        await store.snapshot.load(broken(), 0)
    again = await open_store(url, clock)
    for one in (store, again):
        for asked in (read_records(one.locks, key("a")), one.locks.ready(), one.registry.project("p-1")):
            with pytest.raises(StoreUnavailableError, match="copy again"):
                await asked
    assert again.snapshot is not None
    await again.snapshot.load(whole(), 0)
    assert [one.id for one in (await again.registry.projects(limit=9, cursor=None)).items] == ["p-2"]
    await again.close()
    await store.close()


async def everything(cluster: EtcdCluster) -> list[KeyValue]:
    prefix = cluster.registry._layout.schema.removesuffix(b"schema")
    return list((await cluster.endpoints.read(Get(prefix, prefix[:-1] + b"0"))).reads[0])


async def left(cluster: EtcdCluster) -> list[str]:
    """The kinds of keys in etcd."""
    kinds = {one.key.decode().split("/")[1:3][-1] for one in await everything(cluster)}
    return sorted(kinds)
