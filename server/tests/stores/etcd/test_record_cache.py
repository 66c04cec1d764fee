"""A node on etcd guesses its records from a cache, and returns nothing that etcd did not confirm."""

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from shutil import copytree, rmtree

import pytest
from testsupport.engines import etcd
from testsupport.fault_proxy import FaultProxy

from volcano_locks_server.ports.clock import SystemClock
from volcano_locks_server.ports.lock_store import RecordKey, Records, StepResult
from volcano_locks_server.rules.errors import StoreUnavailableError
from volcano_locks_server.rules.lease import (
    NOT_OWNER,
    Acquire,
    Command,
    ForceRelease,
    Free,
    Granted,
    Read,
    Refused,
    Renew,
    State,
)
from volcano_locks_server.stores import OpenStore, open_store
from volcano_locks_server.stores.etcd import records
from volcano_locks_server.stores.etcd.record_cache import (
    ABSENT,
    READ_FIRST_MAX,
    RECORDS_MAX,
    RecordCache,
    VersionedRecord,
)

from ..store_actions import digest, held, increment, key, read_records, run_commands, write_records

MINE, OTHERS = Acquire(digest("me"), 60), Acquire(digest("other"), 60)


@pytest.fixture
async def nodes() -> AsyncIterator[tuple[OpenStore, OpenStore]]:
    """Two nodes that serve, with the machine's clock."""
    url = etcd.shared().url()
    async with AsyncExitStack() as stack:
        opened = []
        for _ in range(2):
            node = await open_store(url, SystemClock())
            stack.push_async_callback(node.close)
            await node.locks.ready()
            opened.append(node)
        yield opened[0], opened[1]


async def trips(node: OpenStore, *commands: tuple[RecordKey, Command]) -> int:
    """The round trips of the batch; an announcement of the clock may be among them."""
    assert node.counts is not None
    before = node.counts.round_trips
    await run_commands(node.locks, *commands)
    return node.counts.round_trips - before


@pytest.mark.real_time
async def test_a_batch_takes_one_round_trip_if_no_other_node_wrote(nodes: tuple[OpenStore, OpenStore]) -> None:
    """New locks, locks that this node last wrote, and commands that change nothing."""
    took = [
        [await trips(nodes[0], (key(f"a{turn}"), command), (key(f"b{turn}"), command)) for turn in range(5)]
        for command in (MINE, MINE, Read(), OTHERS)
    ]
    assert [min(turns) for turns in took] == [1, 1, 1, 1]


@pytest.mark.real_time
@pytest.mark.parametrize(
    ("command", "expected"), [(Read(), State(None)), (Renew(digest("me"), 60), NOT_OWNER), (OTHERS, None)]
)
async def test_no_result_comes_from_a_record_that_another_node_replaced(
    nodes: tuple[OpenStore, OpenStore], command: Command, expected: object
) -> None:
    """LEASE-14: the cached record would lead to another outcome for each of these."""
    node, other = nodes
    await run_commands(node.locks, (key("a"), MINE))
    await run_commands(other.locks, (key("a"), ForceRelease()))
    (outcome,) = await run_commands(node.locks, (key("a"), command))
    assert not (isinstance(outcome, Refused) and outcome.code == "lock_held")
    assert expected in (None, outcome)


@pytest.mark.real_time
async def test_a_lock_of_another_node_is_not_taken_for_free(nodes: tuple[OpenStore, OpenStore]) -> None:
    """LEASE-2: a node that never saw the lock refuses it, and still grants the other lock of the batch."""
    node, other = nodes
    await run_commands(other.locks, (key("a"), MINE))
    refused, granted = await run_commands(node.locks, (key("a"), OTHERS), (key("b"), OTHERS))
    assert isinstance(refused, Refused)
    assert refused.code == "lock_held"
    assert isinstance(granted, Granted)


@pytest.mark.real_time
async def test_a_record_purged_by_another_node_is_not_returned(nodes: tuple[OpenStore, OpenStore]) -> None:
    node, other = nodes
    await write_records(node.locks, (key("a"), Free(1, 1)))
    assert await other.locks.purge(limit=9) == 1
    assert await read_records(node.locks, key("a")) == [None]


@pytest.mark.real_time
async def test_a_wrong_guess_writes_nothing_of_its_batch(nodes: tuple[OpenStore, OpenStore]) -> None:
    """case 30: the step runs again with the current records and a later instant."""
    node, other = nodes
    for name in ("a", "b"):
        assert await increment(node.locks, key(name)) == 1
    assert await increment(other.locks, key("a")) == 2
    seen = await stepped(node, key("a"), key("b"))
    assert [numbers for numbers, _ in seen] == [[1, 1], [2, 1]]
    assert seen[0][1] <= seen[1][1]
    assert [await increment(other.locks, key(name)) for name in ("a", "b")] == [4, 3]


@pytest.mark.real_time
async def test_a_failure_clears_the_cache(nodes: tuple[OpenStore, OpenStore]) -> None:
    """The cluster may have been restored meanwhile, with earlier revisions."""

    def failing(_records: Records, _now_ms: int) -> StepResult:
        raise StoreUnavailableError("etcd_lost", "as if the connection was lost")

    await increment(nodes[0].locks, key("a"))
    with pytest.raises(StoreUnavailableError):
        await nodes[0].locks.update([key("a")], failing)
    assert [numbers for numbers, _ in await stepped(nodes[0], key("a"))] == [[0], [1]]


@pytest.mark.real_time
async def test_a_restored_cluster_clears_the_cache() -> None:
    """LEASE-14: a restored cluster counts revisions on from the backup, so another record may have the revision of a
    cached one. The node reaches it again only when it has passed all revisions that the node has seen (OPS-8).
    """
    with etcd.cluster(1) as cluster:
        (member,) = cluster.members
        stored, backup = member.folder / member.name, member.folder / "backup"
        name = b"restored/1/lock/" + "/".join(key("a")).encode()

        def seen() -> tuple[int, int]:
            """The revision of the record, and that of the cluster."""
            found = member.ask("kv/range", key=b64encode(name).decode())
            return int(found["kvs"][0]["mod_revision"]), int(found["header"]["revision"])

        async with AsyncExitStack() as stack:
            proxy = await stack.enter_async_context(FaultProxy(int(member.host.rpartition(":")[2])))
            node = await open_store(f"etcd://127.0.0.1:{proxy.port}/restored", SystemClock())
            stack.push_async_callback(node.close)
            await increment(node.locks, key("a"))
            member.kill()
            copytree(stored, backup)
            await asyncio.to_thread(cluster.start)
            await until_ready(node)
            for _ in range(40):  # more than the node's own announcements after the backup
                await increment(node.locks, key("a"))
            proxy.hold_all()
            proxy.cut()
            of_record, of_cluster = seen()
            member.kill()
            rmtree(stored)
            backup.rename(stored)
            await asyncio.to_thread(cluster.start)
            while seen()[0] < of_record:
                member.put(name, records.encode(Free(777, 1)))
            assert seen()[0] == of_record
            while seen()[1] <= of_cluster:
                member.put(b"another", b"")
            proxy.forward_all()
            await until_ready(node)
            assert await increment(node.locks, key("a")) == 778


async def until_ready(node: OpenStore) -> None:
    """Return when it serves again."""
    while True:
        try:
            return await node.locks.ready()
        except StoreUnavailableError:
            await asyncio.sleep(0.05)


async def stepped(node: OpenStore, *keys: RecordKey) -> list[tuple[list[int], int]]:
    """Increment `keys` in one batch; returns the numbers and the instant that each run of the step saw."""
    seen: list[tuple[list[int], int]] = []

    def step(records: Records, now_ms: int) -> StepResult:
        numbers = [0 if (record := records[one]) is None else record.fencing_token for one in keys]
        seen.append((numbers, now_ms))
        return StepResult({one: Free(number + 1, now_ms) for one, number in zip(keys, numbers, strict=True)}, ())

    await node.locks.update(keys, step)
    return seen


def test_wrong_guesses_double_the_batches_that_read_first_and_right_ones_halve_them() -> None:
    cache = RecordCache()
    assert guesses_after(cache, was_right=True) == 0
    assert [guesses_after(cache, was_right=False) for _ in range(10)] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 256]
    assert READ_FIRST_MAX == 256
    for _ in range(8):
        assert guesses_after(cache, was_right=True) == 0
    assert guesses_after(cache, was_right=False) == 1


def guesses_after(cache: RecordCache, *, was_right: bool) -> int:
    """How many batches read first after a guess that was right or wrong."""
    cache.note_guess(was_right=was_right)
    batches = 0
    while cache.guesses([b"a"]) is None:
        batches += 1
    return batches


def test_the_cache_evicts_the_oldest_record() -> None:
    """The cache is bounded, and missing records take no space."""
    cache, seen = RecordCache(), VersionedRecord(held("me", 1_000), 7)
    for number in range(RECORDS_MAX):
        cache.put(b"%d" % number, seen)
    cache.put(b"absent", ABSENT)
    cache.put(b"0", seen)
    cache.put(b"new", seen)
    cache.put(b"2", ABSENT)
    names = [b"0", b"1", b"2", b"3", b"new", b"absent"]
    assert cache.guesses(names) == dict(zip(names, [seen, ABSENT, ABSENT, seen, seen, ABSENT], strict=True))
