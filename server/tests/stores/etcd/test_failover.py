"""Two nodes serve while members of a cluster of three die, are suspended and return (case 31).

Each node increments one number repeatedly. Acknowledged increments must survive, and no number may repeat.
"""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from testsupport.engines import etcd
from testsupport.engines.processes import BUSY_SECONDS

from volcano_locks_server.ports.clock import SystemClock
from volcano_locks_server.rules.errors import StoreUnavailableError
from volcano_locks_server.rules.lease import Acquire, Granted, Held, Renew
from volcano_locks_server.stores import OpenStore, open_store
from volcano_locks_server.stores.etcd.locks import UPDATE_SECONDS_MAX

from ..store_actions import digest, increment, key, read_records, run_commands, until_ready

BACK_SECONDS = 10.0 + BUSY_SECONDS

pytestmark = pytest.mark.real_time


@pytest.fixture(scope="module")
def cluster() -> Iterator[etcd.Cluster]:
    with etcd.cluster(3) as started:
        yield started


class Counter:
    """Increments on one node until stopped."""

    def __init__(self, store: OpenStore) -> None:
        self.store = store
        self.numbers: list[int] = []
        self.last_at = time.monotonic()
        self.longest_gap = 0.0
        self.longest_call = 0.0
        self.causes: set[str] = set()
        self.stopping = False

    async def run(self) -> None:
        while not self.stopping:
            began = time.monotonic()
            try:
                self.numbers.append(await increment(self.store.locks, key("counter")))
            except StoreUnavailableError as error:
                self.causes.add(error.cause_code)
                self.longest_call = max(self.longest_call, time.monotonic() - began)
                await asyncio.sleep(0.05)
            else:
                now = time.monotonic()
                self.longest_gap = max(self.longest_gap, now - self.last_at)
                self.last_at = now


@asynccontextmanager
async def counting(cluster: etcd.Cluster) -> AsyncIterator[list[Counter]]:
    """Two nodes that increment; checks their numbers at the end."""
    url = cluster.url()
    stores = [await open_store(url, SystemClock()) for _ in range(2)]
    counters = [Counter(store) for store in stores]
    runs = [asyncio.create_task(counter.run()) for counter in counters]
    try:
        yield counters
        for counter in counters:
            await until_counting(counter)
    finally:
        for counter in counters:
            counter.stopping = True
        await asyncio.gather(*runs)
        for store in stores:
            await store.close()
    numbers = [number for counter in counters for number in counter.numbers]
    assert len(set(numbers)) == len(numbers)
    for counter in counters:
        assert counter.numbers == sorted(counter.numbers)
        assert counter.longest_call < UPDATE_SECONDS_MAX + BUSY_SECONDS


async def until_counting(counter: Counter) -> None:
    """Return when it incremented once more."""
    async with asyncio.timeout(BACK_SECONDS):
        before = len(counter.numbers)
        while len(counter.numbers) <= before:
            await asyncio.sleep(0.02)


async def test_nodes_continue_after_the_leader_is_killed(cluster: etcd.Cluster) -> None:
    """case 31: leases end by the store's records, whatever etcd's leader did meanwhile."""
    async with counting(cluster) as counters:
        locks = counters[0].store.locks
        ((granted,),) = [await run_commands(locks, (key("held"), Acquire(digest("me"), 60)))]
        assert isinstance(granted, Granted)
        (before,) = await read_records(locks, key("held"))
        leader = cluster.leader()
        leader.kill()
        for counter in counters:
            await until_counting(counter)
        assert await read_records(locks, key("held")) == [before]
        assert isinstance((await run_commands(locks, (key("held"), Renew(digest("me"), 60))))[0], Granted)
        cluster.start(leader)
    assert max(counter.longest_gap for counter in counters) < BACK_SECONDS
    print("\netcd leader killed: back after", [round(counter.longest_gap, 2) for counter in counters])


@pytest.mark.parametrize("which", ["leader", "first"])
async def test_nodes_continue_while_a_member_is_suspended(cluster: etcd.Cluster, which: str) -> None:
    """case 31: a suspended leader that resumes decides nothing, and no call waits too long for it."""
    async with counting(cluster) as counters:
        await until_counting(counters[0])
        member = cluster.leader() if which == "leader" else cluster.members[0]
        member.signal(signal.SIGSTOP)
        try:
            for counter in counters:
                await until_counting(counter)
        finally:
            member.signal(signal.SIGCONT)
        for counter in counters:
            await until_counting(counter)
    print(f"\netcd {which} stopped: back after", [round(counter.longest_gap, 2) for counter in counters])


async def test_nodes_recover_when_all_members_restart(cluster: etcd.Cluster) -> None:
    """LEASE-14, LEASE-16: unavailable in time, and every acknowledged record is there again."""
    async with counting(cluster) as counters:
        store = counters[0].store
        await run_commands(store.locks, (key("stored"), Acquire(digest("me"), 600)))
        (stored,) = await read_records(store.locks, key("stored"))
        assert isinstance(stored, Held)
        for member in cluster.members:
            member.kill()
        began = time.monotonic()
        with pytest.raises(StoreUnavailableError) as caught:
            await store.locks.ready()
        assert caught.value.cause_code in ("etcd_unreachable", "etcd_lost")
        assert time.monotonic() - began < UPDATE_SECONDS_MAX + BUSY_SECONDS
        cluster.start()
        began = time.monotonic()
        await until_ready(store, BACK_SECONDS)
        assert await read_records(store.locks, key("stored")) == [stored]
    print("\nall etcd members killed: serves", round(time.monotonic() - began, 2), "s after they are back")


async def test_a_minority_is_unavailable(cluster: etcd.Cluster) -> None:
    """LEASE-16: one member of three cannot know the current state."""
    store = await open_store(cluster.url(), SystemClock())
    await run_commands(store.locks, (key("a"), Acquire(digest("me"), 60)))
    killed = cluster.members[:2]
    for member in killed:
        member.kill()
    for asked in (
        read_records(store.locks, key("a")),
        run_commands(store.locks, (key("b"), Acquire(digest("me"), 60))),
    ):
        began = time.monotonic()
        with pytest.raises(StoreUnavailableError):
            await asked
        assert time.monotonic() - began < UPDATE_SECONDS_MAX + BUSY_SECONDS
    cluster.start(*killed)
    await until_ready(store, BACK_SECONDS)
    assert isinstance((await read_records(store.locks, key("a")))[0], Held)
    await store.close()
