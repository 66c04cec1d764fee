"""Waits while the store fails, hangs or is slow (WAIT-3, WAIT-9)."""

import asyncio

import pytest
from testsupport.service_requests import perform

from volcano_locks_server.rules.lease import Acquire, Granted, Release
from volcano_locks_server.service.lock_service import LockService

from .harness import KEY, LOCK, Harness, code, digest, granted, settled, soon


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_release_whose_commit_fails_is_rechecked(harness: Harness, moment: str) -> None:
    """WAIT-9: a recheck finds out whether it was committed."""
    await harness.acquire(1)
    waiting = await harness.wait(2)
    harness.store.fail_updates([moment])
    assert code(await harness.release(1)) == "lock_service_unavailable"
    await harness.advance(1_000)
    if moment == "before":
        assert not waiting.done()
        await harness.release(1)
    outcome = await soon(waiting)
    assert isinstance(outcome, Granted)
    assert harness.store.holder == 2


async def test_rechecks_back_off_while_the_store_is_away(harness: Harness) -> None:
    """WAIT-9: at most a second apart."""
    await harness.acquire(1)
    waiting = await harness.wait(2, 60_000)
    harness.store.fail_updates(["before"] * 1_000)
    assert code(await harness.release(1)) == "lock_service_unavailable"
    before = harness.store.calls["update"]
    for _ in range(200):
        await harness.advance(50)
    assert 10 <= harness.store.calls["update"] - before <= 16
    harness.store.recover()
    assert granted(await harness.release(1)) is False
    assert granted(await soon(waiting))


async def test_a_wait_that_ends_while_its_grant_is_uncertain_gets_503(harness: Harness) -> None:
    """WAIT-9: an acquire with the same token then finds the lease."""
    await harness.acquire(1)
    waiting = await harness.wait(2, 1_000)
    harness.store.fail_updates(["after", *["before"] * 30])
    assert code(await harness.release(1)) == "lock_service_unavailable"
    assert harness.store.holder == 2
    await harness.advance(1_000)
    assert code(waiting.result()) == "lock_service_unavailable"
    harness.store.recover()
    assert granted(await harness.acquire(2))
    await harness.advance(3_000)
    assert harness.store.holder == 2


async def test_an_uncertain_grant_of_a_disconnected_client_is_revoked(harness: Harness) -> None:
    """WAIT-5, WAIT-9: as soon as the store is back."""
    await harness.acquire(1)
    gone = await harness.wait(2)
    harness.store.fail_updates(["after", *["before"] * 3])
    assert code(await harness.release(1)) == "lock_service_unavailable"
    gone.cancel()
    await settled()
    assert harness.store.holder == 2
    for _ in range(6):
        await harness.advance(1_000)
    assert harness.store.holder is None


async def disconnected_during_the_recheck(harness: Harness, waiter: "asyncio.Task[object]") -> None:
    """The waiter's client disconnects while the store has its recheck."""
    harness.store.gate.clear()
    await harness.advance(100)
    assert harness.store.at_gate
    waiter.cancel()
    harness.store.gate.set()
    await settled()
    await harness.advance(1_000)


async def test_an_uncertain_grant_is_revoked_if_its_client_disconnects_during_the_recheck(harness: Harness) -> None:
    """WAIT-5, WAIT-9."""
    await harness.acquire(1)
    gone = await harness.wait(2)
    harness.store.fail_updates(["after"])
    assert code(await harness.release(1)) == "lock_service_unavailable"
    await disconnected_during_the_recheck(harness, gone)
    assert harness.store.holder is None


async def test_a_lease_that_its_client_got_from_another_node_is_not_revoked(harness: Harness) -> None:
    """WAIT-5, WAIT-13: a batch that failed may have granted it, and did not."""
    await harness.acquire(1)
    gone = await harness.wait(2)
    before = harness.store.memory.records[LOCK]
    harness.store.fail_updates(["after"])
    assert code(await harness.release(1)) == "lock_service_unavailable"
    harness.store.memory.records[LOCK] = before  # the commit has failed
    harness.clock.advance(5)
    other_node = LockService(harness.store.memory, harness.clock)
    await perform(other_node, "p", 0, KEY, Release(digest(1)))
    assert granted((await perform(other_node, "p", 0, KEY, Acquire(digest(2), 30))).outcome)
    await disconnected_during_the_recheck(harness, gone)
    assert harness.store.holder == 2
    await other_node.close()


async def test_a_first_acquire_that_fails_returns_at_once(harness: Harness) -> None:
    """WAIT-2, LEASE-16: its undelivered grant is revoked."""
    harness.store.fail_updates(["after"])
    assert code(await harness.perform(Acquire(digest(2), 30), 20_000)) == "lock_service_unavailable"
    await harness.advance(1_000)
    assert harness.store.holder is None


async def test_a_wait_that_ends_during_a_commit_gets_its_outcome(harness: Harness) -> None:
    """WAIT-9."""
    await harness.acquire(1)
    first, second = await harness.wait(2, 1_000), await harness.wait(3, 1_000)
    harness.store.gate.clear()
    releasing = asyncio.create_task(harness.release(1))
    await settled()
    await harness.advance(1_000)
    assert not first.done()
    harness.store.gate.set()
    await releasing
    assert granted(await soon(first))
    assert code(await soon(second)) == "lock_held"


@pytest.mark.real_time
async def test_a_wait_ends_in_time_although_a_commit_hangs(harness: Harness) -> None:
    """WAIT-9, LEASE-16: what that commit grants at last is revoked, or found by an acquire of the same token."""
    harness.service._commit._commit_seconds_max = 0.05  # type: ignore[misc]
    harness.service._commit._watchdog_seconds = 0.01  # type: ignore[misc]
    await harness.acquire(1)
    first = await harness.wait(2, 1_000)
    harness.store.gate.clear()
    assert code(await harness.release(1)) == "lock_service_unavailable"
    harness.clock.advance(1_000)
    assert code(await asyncio.wait_for(first, 30)) == "lock_service_unavailable"
    assert harness.store.holder == 2
    harness.store.gate.set()
    await settled()
    assert harness.store.holder is None


async def test_a_grant_that_took_too_long_is_not_delivered(harness: Harness) -> None:
    """WAIT-3: at most the margin of its lease is left."""
    await harness.acquire(1)
    waiting = await harness.wait(2, 60_000, ttl_seconds=5)
    harness.store.gate.clear()
    releasing = asyncio.create_task(harness.release(1))
    await settled()
    harness.clock.advance(4_000)
    harness.store.gate.set()
    await releasing
    assert code(await soon(waiting)) == "lock_service_unavailable"
    await settled()
    assert harness.store.holder is None
