"""Members of a cluster of three die, stop and come back under two nodes that serve: case 31 and what belongs to it.

Each node counts one number up, again and again; what was acknowledged must be there, and no number is given twice.
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

from .deeds import act, counted, digest, found, key, serves_soon

BACK_SECONDS = 10.0 + BUSY_SECONDS

pytestmark = pytest.mark.real_time


@pytest.fixture(scope="module")
def cluster() -> Iterator[etcd.Cluster]:
    with etcd.cluster(3) as started:
        yield started


class Counter:
    """Counts on one node until told to stop."""

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
                self.numbers.append(await counted(self.store.locks, key("counter")))
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
    """Two nodes that count; at the end the numbers are judged."""
    url = cluster.url()
    stores = [await open_store(url, SystemClock()) for _ in range(2)]
    counters = [Counter(store) for store in stores]
    runs = [asyncio.create_task(counter.run()) for counter in counters]
    try:
        yield counters
        for counter in counters:
            await goes_on(counter)
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


async def goes_on(counter: Counter) -> None:
    """Return when it counted once more."""
    async with asyncio.timeout(BACK_SECONDS):
        before = len(counter.numbers)
        while len(counter.numbers) <= before:
            await asyncio.sleep(0.02)


async def test_the_leader_is_killed(cluster: etcd.Cluster) -> None:
    """case 31: leases end by our records, whatever the members' leader did meanwhile."""
    async with counting(cluster) as counters:
        locks = counters[0].store.locks
        ((granted,),) = [await act(locks, (key("held"), Acquire(digest("me"), 60)))]
        assert isinstance(granted, Granted)
        (before,) = await found(locks, key("held"))
        leader = cluster.leader()
        leader.kill()
        for counter in counters:
            await goes_on(counter)
        assert await found(locks, key("held")) == [before]
        assert isinstance((await act(locks, (key("held"), Renew(digest("me"), 60))))[0], Granted)
        cluster.start(leader)
    assert max(counter.longest_gap for counter in counters) < BACK_SECONDS
    print("\netcd leader killed: back after", [round(counter.longest_gap, 2) for counter in counters])


@pytest.mark.parametrize("which", ["leader", "first"])
async def test_a_member_is_stopped_and_goes_on(cluster: etcd.Cluster, which: str) -> None:
    """case 31: a stalled leader that wakes up decides nothing; no call waits for it longer than it may."""
    async with counting(cluster) as counters:
        await goes_on(counters[0])
        member = cluster.leader() if which == "leader" else cluster.members[0]
        member.signal(signal.SIGSTOP)
        try:
            for counter in counters:
                await goes_on(counter)
        finally:
            member.signal(signal.SIGCONT)
        for counter in counters:
            await goes_on(counter)
    print(f"\netcd {which} stopped: back after", [round(counter.longest_gap, 2) for counter in counters])


async def test_all_members_are_gone_and_come_back(cluster: etcd.Cluster) -> None:
    """LEASE-14, LEASE-16: unavailable in time, and everything acknowledged is there again."""
    async with counting(cluster) as counters:
        store = counters[0].store
        await act(store.locks, (key("kept"), Acquire(digest("me"), 600)))
        (kept,) = await found(store.locks, key("kept"))
        assert isinstance(kept, Held)
        for member in cluster.members:
            member.kill()
        began = time.monotonic()
        with pytest.raises(StoreUnavailableError) as caught:
            await store.locks.ready()
        assert caught.value.cause_code in ("etcd_unreachable", "etcd_lost")
        assert time.monotonic() - began < UPDATE_SECONDS_MAX + BUSY_SECONDS
        cluster.start()
        began = time.monotonic()
        await serves_soon(store, BACK_SECONDS)
        assert await found(store.locks, key("kept")) == [kept]
    print("\nall etcd members killed: serves", round(time.monotonic() - began, 2), "s after they are back")


async def test_a_minority_answers_unavailable(cluster: etcd.Cluster) -> None:
    """LEASE-16: one member of three knows nothing for certain."""
    store = await open_store(cluster.url(), SystemClock())
    await act(store.locks, (key("a"), Acquire(digest("me"), 60)))
    killed = cluster.members[:2]
    for member in killed:
        member.kill()
    for asked in (found(store.locks, key("a")), act(store.locks, (key("b"), Acquire(digest("me"), 60)))):
        began = time.monotonic()
        with pytest.raises(StoreUnavailableError):
            await asked
        assert time.monotonic() - began < UPDATE_SECONDS_MAX + BUSY_SECONDS
    cluster.start(*killed)
    await serves_soon(store, BACK_SECONDS)
    assert isinstance((await found(store.locks, key("a")))[0], Held)
    await store.close()
