"""Limits of the wait queues, the quota of a wait, and the stop of a node (WAIT-1, WAIT-7, WAIT-8)."""

import asyncio

import pytest
from testsupport.service_requests import Reply, perform

from volcano_locks_server.queue import waiter_table
from volcano_locks_server.rules.errors import LockError
from volcano_locks_server.rules.lease import (
    Acquire,
)
from volcano_locks_server.rules.values import LockKey

from .harness import KEY, Harness, code, digest, granted, settled, soon


async def test_waiters_of_a_lock_are_bounded(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """WAIT-7: kept waiters count; a second request of a token is no new waiter."""
    monkeypatch.setattr(waiter_table, "WAITERS_PER_LOCK_MAX", 2)
    await harness.acquire(1)
    waiting = [await harness.wait(2, 1_000), await harness.wait(3)]
    await harness.advance(1_000)
    refused = await harness.perform(Acquire(digest(4), 30), 20_000)
    assert isinstance(refused, LockError)
    assert (refused.code, refused.retry_after_seconds) == ("too_many_waiters", 1)
    waiting.append(await harness.wait(2))
    for task in waiting:
        task.cancel()


async def test_waiters_of_a_node_are_bounded_with_a_share_for_each_project(harness: Harness) -> None:
    """WAIT-7, WAIT-14, case 61: half for one project, a quarter while more than half is in use; then 503 for all."""
    budget = harness.service.budgets.waiters
    budget.limit = 4
    waiting: list[asyncio.Task[Reply]] = []

    async def waits(project_id: str, lock: str) -> str | None:
        """The code of the refusal, None if the acquire waits."""
        key = LockKey(lock)
        await perform(harness.service, project_id, 0, key, Acquire(digest(1), 30))
        request = perform(harness.service, project_id, 0, key, Acquire(digest(2), 30), wait_ms=20_000)
        task = asyncio.create_task(request)
        await settled()
        if not task.done():
            waiting.append(task)
            return None
        outcome = (await task).outcome
        assert isinstance(outcome, LockError)
        assert outcome.retry_after_seconds == 1
        return outcome.code

    assert [await waits("p", lock) for lock in "abc"] == [None, None, "too_many_waiters"]
    assert [await waits("q", lock) for lock in "ab"] == [None, "too_many_waiters"]
    waiting.pop().cancel()
    await settled()
    assert await waits("q", "b") is None, "the waiter that left gave its place back"
    assert [await waits("r", lock) for lock in "ab"] == [None, "lock_service_unavailable"]
    assert await waits("s", "a") == "lock_service_unavailable"
    assert budget.refused == {"share": 2, "budget": 2}
    for task in waiting:
        task.cancel()
    await settled()
    assert budget.used == 0


async def test_a_stop_ends_all_waits_at_once(harness: Harness) -> None:
    """WAIT-8: a waiter that is being granted the lock still gets it."""
    await harness.acquire(1)
    first, second = await harness.wait(2), await harness.wait(3)
    harness.store.gate.clear()
    releasing = asyncio.create_task(harness.release(1))
    await settled()
    harness.service.queues.stop()
    late = await harness.perform(Acquire(digest(4), 30), 20_000)
    assert code(late) == "lock_service_unavailable"
    harness.store.gate.set()
    await releasing
    assert granted(await soon(first))
    assert code(await soon(second)) == "lock_service_unavailable"
    assert harness.count == 0


async def test_a_stop_waits_for_no_commit_of_another_lock(harness: Harness) -> None:
    """WAIT-8."""
    await harness.acquire(1)
    waiting = await harness.wait(2)
    harness.service.queues.stop()
    await settled()
    assert code(waiting.result()) == "lock_service_unavailable"


async def test_the_quota_counts_a_wait_as_one_request(harness: Harness) -> None:
    """WAIT-1, QUOTA-4: on arrival; with a spent quota no request waits."""
    await perform(harness.service, "p", 2, KEY, Acquire(digest(1), 30))
    waiting = asyncio.create_task(perform(harness.service, "p", 2, KEY, Acquire(digest(2), 30), wait_ms=1_000))
    await settled()
    spent = await perform(harness.service, "p", 2, KEY, Acquire(digest(3), 30), wait_ms=1_000)
    assert code(spent.outcome) == "lock_rate_limited"
    await harness.advance(1_000)
    reply = await asyncio.wait_for(waiting, 30)
    assert code(reply.outcome) == "lock_held"
    assert reply.admission.remaining == 0
