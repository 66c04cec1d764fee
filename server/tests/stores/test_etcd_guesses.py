"""A node over etcd guesses what the records of its locks are, and answers nothing that etcd did not confirm."""

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from shutil import copytree, rmtree

import pytest
from testsupport.engines import etcd

from volcano_locks_server.ports.clock import SystemClock
from volcano_locks_server.ports.lock_store import RecordKey, Records, Stepped
from volcano_locks_server.rules.errors import StoreUnavailableError
from volcano_locks_server.rules.lease import (
    HELD,
    NOT_OWNER,
    Acquire,
    Command,
    ForceRelease,
    Free,
    Granted,
    Read,
    Renew,
    State,
)
from volcano_locks_server.stores import OpenStore, open_store
from volcano_locks_server.stores.etcd import records
from volcano_locks_server.stores.etcd.record_cache import ABSENT, READ_FIRST_MAX, RECORDS_MAX, RecentRecords, Seen

from .deeds import act, counted, digest, found, held, key, put

MINE, OTHERS = Acquire(digest("me"), 60), Acquire(digest("other"), 60)


@pytest.fixture
async def nodes() -> AsyncIterator[tuple[OpenStore, OpenStore]]:
    """Two nodes, both of which serve, under the machine's clock."""
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
    """How many round trips the batch took; that of a clock's pulse may be among them."""
    assert node.counts is not None
    before = node.counts.round_trips
    await act(node.locks, *commands)
    return node.counts.round_trips - before


@pytest.mark.real_time
async def test_a_batch_takes_one_round_trip_where_no_other_node_wrote(nodes: tuple[OpenStore, OpenStore]) -> None:
    """Fresh locks, locks this node wrote last, and answers that change nothing."""
    took = [
        [await trips(nodes[0], (key(f"a{turn}"), command), (key(f"b{turn}"), command)) for turn in range(5)]
        for command in (MINE, MINE, Read(), OTHERS)
    ]
    assert [min(turns) for turns in took] == [1, 1, 1, 1]


@pytest.mark.real_time
@pytest.mark.parametrize(
    ("command", "expected"), [(Read(), State(None)), (Renew(digest("me"), 60), NOT_OWNER), (OTHERS, None)]
)
async def test_no_answer_comes_from_a_record_that_another_node_has_replaced(
    nodes: tuple[OpenStore, OpenStore], command: Command, expected: object
) -> None:
    """LEASE-14: by the record this node saw last, each of these would be answered otherwise."""
    node, other = nodes
    await act(node.locks, (key("a"), MINE))
    await act(other.locks, (key("a"), ForceRelease()))
    (outcome,) = await act(node.locks, (key("a"), command))
    assert outcome != HELD
    assert expected in (None, outcome)


@pytest.mark.real_time
async def test_what_another_node_holds_is_not_taken_for_absent(nodes: tuple[OpenStore, OpenStore]) -> None:
    """LEASE-2: a node that never saw the lock refuses it all the same, and grants what else is in the batch."""
    node, other = nodes
    await act(other.locks, (key("a"), MINE))
    refused, granted = await act(node.locks, (key("a"), OTHERS), (key("b"), OTHERS))
    assert refused == HELD
    assert isinstance(granted, Granted)


@pytest.mark.real_time
async def test_what_another_node_purged_is_not_answered(nodes: tuple[OpenStore, OpenStore]) -> None:
    node, other = nodes
    await put(node.locks, (key("a"), Free(1, 1)))
    assert await other.locks.purge(limit=9) == 1
    assert await found(node.locks, key("a")) == [None]


@pytest.mark.real_time
async def test_a_wrong_guess_writes_nothing_of_its_batch(nodes: tuple[OpenStore, OpenStore]) -> None:
    """case 30: all of it is judged anew, by what is there and by a later instant."""
    node, other = nodes
    for name in ("a", "b"):
        assert await counted(node.locks, key(name)) == 1
    assert await counted(other.locks, key("a")) == 2
    seen = await stepped(node, key("a"), key("b"))
    assert [numbers for numbers, _ in seen] == [[1, 1], [2, 1]]
    assert seen[0][1] <= seen[1][1]
    assert [await counted(other.locks, key(name)) for name in ("a", "b")] == [4, 3]


@pytest.mark.real_time
async def test_nothing_is_guessed_by_what_was_seen_before_a_failure(nodes: tuple[OpenStore, OpenStore]) -> None:
    """The cluster that answers next may be one that was restored, whose revisions begin earlier."""

    def failing(_records: Records, _now_ms: int) -> Stepped:
        raise StoreUnavailableError("etcd_lost", "as if the connection was lost")

    await counted(nodes[0].locks, key("a"))
    with pytest.raises(StoreUnavailableError):
        await nodes[0].locks.update([key("a")], failing)
    assert [numbers for numbers, _ in await stepped(nodes[0], key("a"))] == [[0], [1]]


@pytest.mark.real_time
async def test_nothing_is_guessed_by_what_was_seen_of_a_cluster_before_it_was_restored() -> None:
    """LEASE-14: a restored cluster counts its revisions on from those of the backup, so another record may have the
    revision of the one that was seen. The node asked for nothing while the cluster was down.
    """
    with etcd.cluster(1) as cluster:
        (member,) = cluster.members
        kept, backup = member.folder / member.name, member.folder / "backup"
        url = cluster.url("restored")
        name = b"restored/1/lock/" + "/".join(key("a")).encode()

        def seen_at() -> int:
            return int(member.ask("kv/range", key=b64encode(name).decode())["kvs"][0]["mod_revision"])

        async with AsyncExitStack() as stack:
            node = await open_store(url, SystemClock())
            stack.push_async_callback(node.close)
            await counted(node.locks, key("a"))
            member.kill()
            copytree(kept, backup)
            cluster.start()
            await until_ready(node)
            for _ in range(40):  # so many that the node's own pulses do not come so far after the backup
                await counted(node.locks, key("a"))
            revision = seen_at()
            member.kill()
            rmtree(kept)
            backup.rename(kept)
            cluster.start()
            while seen_at() < revision:
                member.put(name, records.written(Free(777, 1)))
            assert seen_at() == revision
            await until_ready(node)
            assert await counted(node.locks, key("a")) == 778


async def until_ready(node: OpenStore) -> None:
    """Return when it serves again."""
    while True:
        try:
            return await node.locks.ready()
        except StoreUnavailableError:
            await asyncio.sleep(0.05)


async def stepped(node: OpenStore, *keys: RecordKey) -> list[tuple[list[int], int]]:
    """Count each of `keys` up in one batch; the numbers and the instant that each call of the step saw."""
    seen: list[tuple[list[int], int]] = []

    def step(records: Records, now_ms: int) -> Stepped:
        numbers = [0 if (record := records[one]) is None else record.fencing_token for one in keys]
        seen.append((numbers, now_ms))
        return Stepped({one: Free(number + 1, now_ms) for one, number in zip(keys, numbers, strict=True)}, ())

    await node.locks.update(keys, step)
    return seen


def test_after_wrong_guesses_batches_read_first_ever_longer_and_after_right_ones_less() -> None:
    recent = RecentRecords()
    assert guesses_after(recent, is_right=True) == 0
    assert [guesses_after(recent, is_right=False) for _ in range(10)] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 256]
    assert READ_FIRST_MAX == 256
    for _ in range(8):
        assert guesses_after(recent, is_right=True) == 0
    assert guesses_after(recent, is_right=False) == 1


def guesses_after(recent: RecentRecords, *, is_right: bool) -> int:
    """How many batches read first after a guess that was right or wrong."""
    recent.told(is_right=is_right)
    batches = 0
    while recent.guesses([b"a"]) is None:
        batches += 1
    return batches


def test_what_was_seen_longest_ago_is_forgotten_first() -> None:
    """The memory has a limit, and what is not there takes no place in it."""
    recent, seen = RecentRecords(), Seen(held("me", 1_000), 7)
    for number in range(RECORDS_MAX):
        recent.keep(b"%d" % number, seen)
    recent.keep(b"absent", ABSENT)
    recent.keep(b"0", seen)
    recent.keep(b"new", seen)
    recent.keep(b"2", ABSENT)
    names = [b"0", b"1", b"2", b"3", b"new", b"absent"]
    assert recent.guesses(names) == dict(zip(names, [seen, ABSENT, ABSENT, seen, seen, ABSENT], strict=True))
