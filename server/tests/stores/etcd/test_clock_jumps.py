"""A node over etcd that starts alone: time that is not known to have passed ends no lease (LEASE-17)."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest
from testsupport.engines import etcd

from volcano_locks_server.ports.lock_store import LockQuery
from volcano_locks_server.rules.lease import Acquire, Granted, Outcome, Read, Refused, Release, State
from volcano_locks_server.stores import OpenStore, open_store
from volcano_locks_server.testing import ManualClock

from ..store_actions import PROJECT, digest, key, run_commands, until_ready

LOCK = key("a")
TTL_SECONDS = 60
LEFT_MS = (TTL_SECONDS + 1) * 1_000
Opened = Callable[..., Awaitable[OpenStore]]


@pytest.fixture
async def opened() -> AsyncIterator[Opened]:
    """Opens a node with that clock, on one store. All are closed after the test."""
    url = etcd.shared().url()
    async with AsyncExitStack() as stack:

        async def node(clock: ManualClock) -> OpenStore:
            store = await open_store(url, clock)
            stack.push_async_callback(store.close)
            return store

        yield node


async def acquire(store: OpenStore, owner: str) -> Outcome:
    (outcome,) = await run_commands(store.locks, (LOCK, Acquire(digest(owner), TTL_SECONDS)))
    return outcome


async def lease_of_a_stopped_node(opened: Opened, clock: ManualClock) -> None:
    store = await opened(clock)
    assert isinstance(await acquire(store, "me"), Granted)
    await store.close()


async def check_held_for(store: OpenStore, clock: ManualClock, left_ms: int) -> None:
    """The lock is held by every view for `left_ms`, then is taken over."""
    for passed_ms in (0, left_ms - 1):
        clock.advance(passed_ms)
        assert isinstance(await acquire(store, "other"), Refused)
        (state,) = await run_commands(store.locks, (LOCK, Read()))
        assert isinstance(state, State)
        assert state.lease is not None
        assert await store.locks.count_held() == 1
        assert await store.locks.purge(limit=10) == 0
        assert store.locks.takeover_hold() is not None
        for held, keys in ((True, [LOCK.key]), (False, []), (None, [LOCK.key])):
            page = await store.locks.list_locks(LockQuery(PROJECT, 10, held=held))
            assert [one for one, _ in page.records] == keys
    clock.advance(1)
    assert await store.locks.count_held() == 0
    assert store.locks.takeover_hold() is None
    assert isinstance(await acquire(store, "other"), Granted)


@pytest.mark.parametrize("step_ms", [5_000, 60_000, 3_600_000, 3 * 86_400_000])
async def test_a_restart_after_the_date_was_set_ends_no_lease(opened: Opened, clock: ManualClock, step_ms: int) -> None:
    """LEASE-17, case 67: the only node, in the same boot, even if the kernel calls the new date synchronised."""
    await lease_of_a_stopped_node(opened, clock)
    clock.advance(10_000)
    clock.jump(step_ms)
    store = await opened(clock)
    hold = store.locks.takeover_hold()
    assert hold is not None
    assert (hold.left_ms, hold.jumped_ms) == (LEFT_MS - 10_000, step_ms)
    await check_held_for(store, clock, LEFT_MS - 10_000)


async def test_a_restart_in_the_same_boot_holds_nothing(opened: Opened, clock: ManualClock) -> None:
    """LEASE-17: its time is known to have passed."""
    await lease_of_a_stopped_node(opened, clock)
    clock.is_synchronised = False
    clock.advance(LEFT_MS)
    store = await opened(clock)
    assert store.locks.takeover_hold() is None
    assert isinstance(await acquire(store, "other"), Granted)


@pytest.mark.parametrize("step_ms", [0, 60_000, 3_600_000])
async def test_a_fresh_machine_without_a_synchronised_clock_ends_no_lease(
    opened: Opened, clock: ManualClock, step_ms: int
) -> None:
    """LEASE-17, case 67."""
    await lease_of_a_stopped_node(opened, clock)
    clock.is_synchronised = False
    clock.reboot()
    clock.advance(10_000)
    clock.jump(step_ms)
    await check_held_for(await opened(clock), clock, LEFT_MS)


async def test_synchronised_clocks_are_believed(opened: Opened, clock: ManualClock) -> None:
    """LEASE-17."""
    await lease_of_a_stopped_node(opened, clock)
    clock.advance(LEFT_MS)
    clock.reboot()
    store = await opened(clock)
    assert isinstance(await acquire(store, "other"), Granted)


@pytest.mark.real_time
async def test_a_hold_binds_nodes_that_join_later_and_is_recorded_once(opened: Opened, clock: ManualClock) -> None:
    """LEASE-17: the second node finds a serving one, and reads what it recorded."""
    await lease_of_a_stopped_node(opened, clock)
    clock.jump(60_000)
    first, second = await opened(clock), await opened(clock)
    await until_ready(second)
    assert first.locks.takeover_hold() == second.locks.takeover_hold()
    await first.close()
    await second.close()
    third = await opened(clock)
    hold = third.locks.takeover_hold()
    assert hold is not None
    assert hold.jumped_ms == 60_000
    await check_held_for(third, clock, LEFT_MS)


async def test_an_empty_store_holds_nothing(opened: Opened, clock: ManualClock) -> None:
    """LEASE-17: a fresh store, and one without leases."""
    clock.is_synchronised = False
    store = await opened(clock)
    assert store.locks.takeover_hold() is None
    await store.close()
    clock.reboot()
    clock.jump(60_000)
    assert (await opened(clock)).locks.takeover_hold() is None


async def test_a_recorded_jump_does_not_hide_a_later_one(opened: Opened, clock: ManualClock) -> None:
    """LEASE-17: the jumps recorded since an older node's instant are no part of the time since the newest instant."""
    await lease_of_a_stopped_node(opened, clock)
    clock.jump(90_000)
    second = await opened(clock)
    await run_commands(second.locks, (LOCK, Release(digest("me"))))
    assert isinstance(await acquire(second, "mine again"), Granted)
    await second.close()
    clock.is_synchronised = False
    clock.reboot()
    clock.jump(90_000)
    third = await opened(clock)
    assert isinstance(await acquire(third, "other"), Refused)
