"""Clients that disconnect or release while they wait: no grant stays with them (WAIT-5)."""

import asyncio

import pytest

from volcano_locks_server.rules.lease import (
    Acquire,
    Read,
)

from .harness import Harness, code, digest, granted, settled, soon


async def test_a_client_that_disconnects_leaves_the_queue(harness: Harness) -> None:
    """WAIT-5."""
    await harness.acquire(1)
    gone, stays = await harness.wait(2), await harness.wait(3)
    gone.cancel()
    await settled()
    assert harness.count == 1
    await harness.release(1)
    assert granted(await soon(stays))


@pytest.mark.parametrize("moment", ["parked", "committing", "granted"])
async def test_a_grant_on_its_way_to_a_disconnected_client_is_revoked(harness: Harness, moment: str) -> None:
    """WAIT-5: in the next commit, which grants the lock to the next waiter; the token is not retired."""
    await harness.acquire(1)
    gone, stays = await harness.wait(2), await harness.wait(3)
    harness.store.gate.clear()
    if moment == "parked":
        reading = asyncio.create_task(harness.perform(Read()))
        await settled()
        gone.cancel()
    releasing = asyncio.create_task(harness.release(1))
    await settled()
    if moment == "committing":
        gone.cancel()
        await settled()
    harness.store.gate.set()
    if moment == "granted":
        while harness.store.holder != 2 or harness.store.at_gate:
            await asyncio.sleep(0)
        gone.cancel()
    await releasing
    if moment == "parked":
        await reading
    assert granted(await soon(stays))
    assert harness.store.holder == 3
    again = await harness.wait(2)
    await harness.release(3)
    assert granted(await soon(again))


@pytest.mark.parametrize("later", range(12))
async def test_a_disconnect_at_any_moment_leaves_no_undelivered_grant(harness: Harness, later: int) -> None:
    """WAIT-5: the client disconnects `later` turns of the event loop after the commit was released."""
    await harness.acquire(1)
    gone, stays = await harness.wait(2), await harness.wait(3)
    harness.store.gate.clear()
    releasing = asyncio.create_task(harness.release(1))
    await settled()
    harness.store.gate.set()
    for _ in range(later):
        await asyncio.sleep(0)
    gone.cancel()
    await releasing
    await settled()
    if gone.cancelled():
        assert granted(await soon(stays))
        assert harness.store.holder == 3
    else:  # it received its grant
        assert granted(gone.result())
        assert harness.store.holder == 2
        stays.cancel()


@pytest.mark.parametrize("wait_ms", [0, 20_000])
async def test_a_token_that_reconnects_in_the_commit_of_its_grant_keeps_it(harness: Harness, wait_ms: int) -> None:
    """WAIT-5, LEASE-4."""
    await harness.acquire(1)
    gone = await harness.wait(2)
    harness.store.gate.clear()
    reading = asyncio.create_task(harness.perform(Read()))
    await settled()
    asked = [harness.release(1), harness.perform(Acquire(digest(2), 30), wait_ms)]
    releasing, back = [asyncio.create_task(one) for one in asked]
    await settled()
    harness.store.let_through(1)
    await reading
    await settled()
    gone.cancel()
    await settled()
    harness.store.gate.set()
    await releasing
    assert granted(await soon(back))
    assert harness.store.holder == 2


async def test_a_delivered_lease_survives_a_repeat_that_disconnects(harness: Harness) -> None:
    """WAIT-5, LEASE-4: the client that was granted the lease knows of it."""
    assert granted(await harness.acquire(1))
    harness.store.gate.clear()
    again = await harness.wait(1)
    again.cancel()
    harness.store.gate.set()
    await settled()
    assert harness.store.holder == 1


async def test_a_retried_revocation_spares_a_client_that_acquired_again(harness: Harness) -> None:
    """WAIT-5: the revocation ends no lease that was delivered meanwhile."""
    await harness.acquire(1)
    gone = await harness.wait(2)
    harness.store.gate.clear()
    releasing = asyncio.create_task(harness.release(1))
    await settled()
    gone.cancel()
    harness.store.fail_updates(["before"])
    harness.store.gate.set()
    await releasing
    await settled()
    assert granted(await harness.acquire(2))
    await harness.advance(1_000)
    assert harness.store.holder == 2


async def test_a_failed_commit_leaves_no_grant_to_a_client_that_disconnected_during_it(harness: Harness) -> None:
    """WAIT-5, WAIT-9."""
    await harness.acquire(1)
    gone = await harness.wait(2)
    harness.store.gate.clear()
    harness.store.fail_updates(["after"])
    releasing = asyncio.create_task(harness.release(1))
    await settled()
    gone.cancel()
    await settled()
    assert harness.store.holder == 2
    harness.store.gate.set()
    assert code(await releasing) == "lock_service_unavailable"
    await harness.advance(1_000)
    assert harness.store.holder is None


async def test_a_first_acquire_that_disconnects_during_its_commit_keeps_nothing(harness: Harness) -> None:
    """WAIT-5: also if no other request waits."""
    harness.store.gate.clear()
    gone = await harness.wait(2)
    assert harness.store.holder == 2
    gone.cancel()
    harness.store.gate.set()
    await settled()
    assert harness.store.holder is None
    assert granted(await harness.acquire(2))


async def test_a_client_that_reconnects_during_the_commit_gets_the_grant_on_its_way(harness: Harness) -> None:
    """WAIT-5, WAIT-6: the same token is the same acquisition, and its lease is not revoked."""
    await harness.acquire(1)
    gone = await harness.wait(2)
    harness.store.gate.clear()
    releasing = asyncio.create_task(harness.release(1))
    await settled()
    gone.cancel()
    await settled()
    back = await harness.wait(2)
    harness.store.gate.set()
    await releasing
    assert granted(await soon(back))
    await settled()
    assert harness.store.holder == 2


@pytest.mark.parametrize("wait_ms", [0, 20_000])
async def test_a_client_that_reconnects_before_the_revocation_keeps_the_lease(harness: Harness, wait_ms: int) -> None:
    """WAIT-5, LEASE-4: a repeated lease is not revoked, in the same millisecond too."""
    await harness.acquire(1)
    gone = await harness.wait(2)
    harness.store.gate.clear()
    releasing = asyncio.create_task(harness.release(1))
    await settled()
    back = asyncio.create_task(harness.perform(Acquire(digest(2), 30), wait_ms))  # parked behind the release
    await settled()
    gone.cancel()
    await settled()
    harness.store.gate.set()
    await releasing
    assert granted(await soon(back))
    await settled()
    assert harness.store.holder == 2


async def test_a_release_with_a_waiting_token_removes_its_waiter(harness: Harness) -> None:
    """WAIT-5, LEASE-9: the release itself is evaluated like any other."""
    await harness.acquire(1)
    gone, stays = await harness.wait(2), await harness.wait(3)
    assert code(await harness.release(2)) == "lock_ownership_lost"
    assert code(await soon(gone)) == "lock_ownership_lost"
    await harness.release(1)
    assert granted(await soon(stays))


async def test_a_release_during_the_grant_of_its_own_token_frees_the_lock(harness: Harness) -> None:
    """WAIT-5: whichever is first, the next waiter gets the lock."""
    await harness.acquire(1)
    gone, stays = await harness.wait(2), await harness.wait(3)
    harness.store.gate.clear()
    releasing = asyncio.create_task(harness.release(1))
    await settled()
    leaving = asyncio.create_task(harness.release(2))
    await settled()
    harness.store.gate.set()
    await releasing
    await leaving
    assert code(await soon(gone)) == "lock_ownership_lost"
    assert granted(await soon(stays))
    assert harness.store.holder == 3
