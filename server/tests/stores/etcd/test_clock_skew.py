"""Nodes over one etcd use their own clocks: a small skew is harmless, a large one stops the node (case 30)."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest
from testsupport.engines import etcd
from testsupport.engines.processes import BUSY_SECONDS

from volcano_locks_server.ports.lock_store import LockQuery
from volcano_locks_server.rules.errors import StoreUnavailableError
from volcano_locks_server.rules.lease import Acquire, Free, Granted, Refused, Renew
from volcano_locks_server.stores import OpenStore, open_store
from volcano_locks_server.testing import START_MS, ManualClock

from ..store_actions import PROJECT, digest, held, key, read_records, run_commands, until_ready, write_records

Node = tuple[OpenStore, ManualClock]
Nodes = Callable[[int], Awaitable[Node]]


@pytest.fixture
def url() -> str:
    return etcd.shared().url()


@pytest.fixture
async def nodes(url: str) -> AsyncIterator[Nodes]:
    """Starts a node whose clock is `ahead_ms` ahead."""
    async with AsyncExitStack() as stack:

        async def started(ahead_ms: int) -> Node:
            clock = ManualClock(START_MS + ahead_ms)
            store = await open_store(url, clock)
            stack.push_async_callback(store.close)
            return store, clock

        yield started


async def cause(awaitable: Awaitable[object]) -> str:
    with pytest.raises(StoreUnavailableError) as caught:
        await awaitable
    return caught.value.cause_code


@pytest.mark.real_time
@pytest.mark.parametrize("ahead_ms", [800, -800])
async def test_nodes_within_the_margin_serve_and_take_no_lease_early(nodes: Nodes, ahead_ms: int) -> None:
    """LEASE-1, case 30: the TTL is over on the holder's clock before a node with another clock grants the lock."""
    first, clock = await nodes(0)
    second, other_clock = await nodes(ahead_ms)
    ttl_ms = 5_000
    (granted,) = await run_commands(first.locks, (key("a"), Acquire(digest("one"), ttl_ms // 1_000)))
    assert isinstance(granted, Granted)
    waited_ms = 0
    for step_ms in (1_000, 2_000, 1_999, *[100] * 30):
        clock.advance(step_ms)
        other_clock.advance(step_ms)
        waited_ms += step_ms
        (outcome,) = await run_commands(second.locks, (key("a"), Acquire(digest("two"), 30)))
        if isinstance(outcome, Granted):
            break
    assert isinstance(outcome, Granted)
    assert waited_ms >= ttl_ms
    assert outcome.fencing_token > granted.fencing_token
    (refused,) = await run_commands(first.locks, (key("a"), Renew(digest("one"), 30)))
    assert isinstance(refused, Refused)


@pytest.mark.real_time
async def test_a_node_that_starts_ahead_refuses_to_serve(nodes: Nodes) -> None:
    """LEASE-1, case 30: such a node would take over leases too early, so it refuses until the clocks agree."""
    first, clock = await nodes(0)
    await write_records(first.locks, (key("a"), held("one", clock.now_ms(), ttl_seconds=20)))
    second, _ahead = await nodes(30_000)
    for asked in (run_commands(second.locks, (key("a"), Acquire(digest("two"), 30))), second.locks.ready()):
        assert await cause(asked) == "clock_skew"
    await first.locks.ready()
    assert isinstance((await run_commands(first.locks, (key("b"), Acquire(digest("one"), 5))))[0], Granted)
    clock.advance(29_900)
    await until_ready(first)
    await until_ready(second)
    assert isinstance((await run_commands(second.locks, (key("a"), Acquire(digest("two"), 30))))[0], Granted)


@pytest.mark.real_time
async def test_a_node_that_starts_behind_waits_until_it_has_caught_up(nodes: Nodes) -> None:
    """LEASE-1: such a node would extend expired leases."""
    first, _clock = await nodes(0)
    second, behind = await nodes(-30_000)
    with pytest.raises(StoreUnavailableError, match=r"30\.0 s later: .* then restart its node") as caught:
        await run_commands(second.locks, (key("a"), Acquire(digest("two"), 30)))
    assert caught.value.cause_code == "clock_skew"
    assert await cause(second.locks.ready()) == "clock_skew"
    await first.locks.ready()
    behind.advance(29_500)
    await until_ready(second)
    await first.locks.ready()


@pytest.mark.real_time
async def test_a_running_node_whose_clock_jumps_ahead_compares_before_it_decides(nodes: Nodes) -> None:
    """LEASE-1, case 30: the node does the same after a pause."""
    first, clock = await nodes(0)
    second, _other = await nodes(0)
    await write_records(first.locks, (key("a"), held("one", START_MS, ttl_seconds=20)))
    clock.advance(30_000)
    assert await cause(run_commands(first.locks, (key("a"), Acquire(digest("two"), 30)))) == "clock_skew"
    (outcome,) = await run_commands(second.locks, (key("a"), Renew(digest("one"), 20)))
    assert isinstance(outcome, Granted)


async def test_a_record_from_the_future_stops_the_node_until_its_clock_has_passed_it(nodes: Nodes) -> None:
    """LEASE-1: another clock wrote the record, so the node decides nothing, not even about other locks."""
    store, clock = await nodes(0)
    await write_records(store.locks, (key("a"), held("one", START_MS + 30_000)), (key("b"), Free(1, START_MS + 1_000)))
    assert await read_records(store.locks, key("b")) == [Free(1, START_MS + 1_000)]
    assert (await store.locks.list_locks(LockQuery(PROJECT, 9, prefix="b"))).next_after is None
    assert await cause(store.locks.list_locks(LockQuery(PROJECT, 9))) == "clock_skew"
    for asked in (
        read_records(store.locks, key("a")),
        read_records(store.locks, key("b")),
        store.locks.ready(),
        store.locks.count_held(),
    ):
        assert await cause(asked) == "clock_skew"
    with pytest.raises(StoreUnavailableError, match="see volcano-locks reset-clock"):
        await store.locks.ready()
    clock.advance(28_999)
    assert await cause(read_records(store.locks, key("b"))) == "clock_skew"
    clock.advance(1)
    await store.locks.ready()
    assert len(await read_records(store.locks, key("a"))) == 1


async def test_a_restart_with_a_clock_that_went_back_is_refused(url: str) -> None:
    """LEASE-1: time never goes back over a restart."""
    store = await open_store(url, ManualClock(START_MS + 30_000))
    await store.close()
    assert await cause(open_store(url, ManualClock(START_MS))) == "clock_behind"
    with pytest.raises(StoreUnavailableError, match="see volcano-locks reset-clock"):
        await open_store(url, ManualClock(START_MS))
    store = await open_store(url, ManualClock(START_MS + 29_001))
    await store.locks.ready()
    await store.close()


@pytest.mark.real_time
async def test_a_dead_node_does_not_delay_a_start_for_long(url: str, nodes: Nodes) -> None:
    """The last instant that the dead node wrote is marked as serving; only its silence shows that it is dead."""
    dead = await open_store(url, ManualClock(START_MS))
    announcing = [task for task in asyncio.all_tasks() if task.get_name() == "etcd-clocks"]
    for task in announcing:
        task.cancel()
    began = asyncio.get_running_loop().time()
    store, _clock = await nodes(0)
    await store.locks.ready()
    assert asyncio.get_running_loop().time() - began < 10 + BUSY_SECONDS
    await dead.locks.ready()
    await dead.close()
