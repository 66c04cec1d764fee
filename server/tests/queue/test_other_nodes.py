"""Wait queues beside those of other nodes: rechecks, fairness, published changes (WAIT-10, WAIT-11)."""

import asyncio

import pytest
from testsupport.service_requests import perform

from volcano_locks_server.queue import fairness, recheck
from volcano_locks_server.queue.node_turn import HANDOFFS_IN_A_ROW_MAX
from volcano_locks_server.rules.lease import (
    Acquire,
    Damaged,
)
from volcano_locks_server.rules.values import LockKey
from volcano_locks_server.testing import ManualClock

from .harness import KEY, LOCK, Harness, code, digest, free_elsewhere, granted, settled, soon


async def test_a_lock_that_another_node_freed_is_handed_on_after_a_peer_message(harness: Harness) -> None:
    """WAIT-10: without a peer message, a single process rechecks nothing."""
    await harness.acquire(1)
    waiting = await harness.wait(2)
    free_elsewhere(harness)
    await harness.advance(10_000)
    assert not waiting.done(), "one process alone rechecks nothing"
    harness.service.queues.recheck(LOCK)
    assert granted(await soon(waiting))


async def test_a_lock_that_another_node_freed_goes_to_the_first_waiter(harness: Harness) -> None:
    """WAIT-4: the first command that finds it free does not overtake the waiter."""
    await harness.acquire(1)
    waiting = await harness.wait(2)
    free_elsewhere(harness)
    assert code(await harness.acquire(9)) == "lock_held"
    assert granted(await soon(waiting))


async def test_several_nodes_recheck_on_a_timer() -> None:
    """WAIT-10: every RECHECK_EVERY_SECONDS, and not at all while no request waits."""
    harness = Harness(ManualClock(), several_nodes=True)
    await harness.acquire(1)
    waiting = await harness.wait(2)
    free_elsewhere(harness)
    await harness.advance(recheck.RECHECK_EVERY_SECONDS * 1_000)
    assert granted(waiting.result())
    await harness.advance(recheck.RECHECK_EVERY_SECONDS * 1_000)
    before = harness.store.calls["update"]
    for _ in range(5):
        await harness.advance(recheck.RECHECK_EVERY_SECONDS * 1_000)
    assert harness.store.calls["update"] == before
    await harness.service.close()


async def test_a_damaged_record_refuses_all_waiters_of_a_node_that_yields() -> None:
    """LEASE-18, WAIT-10: the pause for other nodes ends with the queue, and no record is written."""
    harness = Harness(ManualClock(), several_nodes=True)
    harness.service.queues.fairness.others_wait = lambda _key: True
    await harness.acquire(1)
    waiting = [await harness.wait(owner, 60_000) for owner in range(2, HANDOFFS_IN_A_ROW_MAX + 5)]
    for owner in range(1, HANDOFFS_IN_A_ROW_MAX + 2):
        await harness.release(owner)
    await settled()
    assert [task.done() for task in waiting].count(False) == 3
    harness.store.memory.records[LOCK] = damaged = Damaged("spoilt by a test")
    assert code(await harness.acquire(1)) == "lock_record_damaged"
    assert [code(await soon(task)) for task in waiting[-3:]] == ["lock_record_damaged"] * 3
    assert code(await harness.perform(Acquire(digest(20), 30), 60_000)) == "lock_record_damaged"
    assert harness.count == 0
    await harness.advance(60_000)
    assert harness.store.memory.records[LOCK] is damaged
    await harness.service.close()


async def test_a_node_yields_the_lock_to_waiters_of_other_nodes() -> None:
    """WAIT-10: after HANDOFFS_IN_A_ROW_MAX grants, for YIELD_MS; then it continues if no peer acquired."""
    harness = Harness(ManualClock(), several_nodes=True)
    harness.service.queues.fairness.others_wait = lambda _key: True
    await harness.acquire(1)
    waiting = {owner: await harness.wait(owner, 60_000) for owner in range(2, 14)}
    for owner in range(1, 1 + HANDOFFS_IN_A_ROW_MAX):
        await harness.release(owner)
        assert granted(await soon(waiting[owner + 1]))
    await harness.release(1 + HANDOFFS_IN_A_ROW_MAX)
    await settled()
    assert harness.store.holder is None
    assert code(await harness.acquire(99)) == "lock_held", "it is reserved for other nodes"
    await harness.advance(fairness.YIELD_MS - 1)
    assert harness.store.holder is None
    await harness.advance(1)
    assert granted(await soon(waiting[2 + HANDOFFS_IN_A_ROW_MAX]))
    for task in waiting.values():
        task.cancel()
    await settled()
    await harness.service.close()


async def test_counts_of_grants_in_a_row_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """WAIT-10: the counts of the latest locks are kept."""
    monkeypatch.setattr(fairness, "LOCKS_MAX", 2)
    harness = Harness(ManualClock(), several_nodes=True)
    share = harness.service.queues.fairness
    share.others_wait = lambda _key: True
    for number in range(5):
        await perform(harness.service, "p", 0, LockKey(f"job-{number}"), Acquire(digest(1), 30), wait_ms=1_000)
    assert [key.key for key in share._in_a_row] == ["job-3", "job-4"]
    await harness.service.close()


async def test_waiters_that_join_and_leave_are_published(harness: Harness) -> None:
    """WAIT-11: with the reason. An acquire that need not wait is not published."""
    table = harness.service.queues.table
    published: list[tuple[str, ...]] = []
    table.on_waiting = lambda key, holder: published.append(("joined", key.key, str(holder)))
    table.on_removed = lambda key, holder, reason: published.append(("removed", key.key, str(holder), reason))
    await harness.perform(Acquire(digest(1), 30, "one"), 1_000)
    assert published == []
    tasks = [asyncio.create_task(harness.perform(Acquire(digest(n), 30, str(n)), 20_000)) for n in (2, 3)]
    await settled()
    await harness.release(1)
    tasks[1].cancel()
    await settled()
    joined = [("joined", str(KEY), "2"), ("joined", str(KEY), "3")]
    assert published == [*joined, ("removed", str(KEY), "2", "granted"), ("removed", str(KEY), "3", "left")]
