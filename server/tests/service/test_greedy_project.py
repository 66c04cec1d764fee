"""A project that always has as many requests in progress as it may, beside one that works as usual (HTTP-32, case 61).

The store is slow, so that only the order of requests counts and not the processor.
"""

import asyncio
import random
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence

import pytest

from volcano_locks_server.http.list_slots import ListSlots
from volcano_locks_server.ports.lock_store import RecordKey, Step
from volcano_locks_server.rules.errors import LockError
from volcano_locks_server.rules.lease import Free, LockRecord
from volcano_locks_server.rules.shares import Budget
from volcano_locks_server.rules.values import LockKey
from volcano_locks_server.service.group_commit import GroupCommit
from volcano_locks_server.stores.memory import MemoryStore
from volcano_locks_server.testing import ManualClock

RATIO_MAX = 2.0
STORE_SECONDS = 0.02
REQUESTS = 40  # of each worker
REQUESTS_MAX = 400

pytestmark = pytest.mark.real_time


class SlowStore(MemoryStore):
    async def update(self, keys: Sequence[RecordKey], step: Step) -> Sequence[object]:
        await asyncio.sleep(STORE_SECONDS)
        return await super().update(keys, step)


def count(_record: LockRecord | None, number: int, now_ms: int) -> tuple[LockRecord | None, int]:
    return Free(number, now_ms), number


async def p99_seconds(request: Callable[[], Awaitable[object]], workers: int, requests: int) -> float:
    """Of the requests of a project with some workers."""
    seconds: list[float] = []

    async def work() -> None:
        for _ in range(requests):
            await asyncio.sleep(STORE_SECONDS * random.random())  # so that requests meet a commit in progress
            began = time.perf_counter()
            await request()
            seconds.append(time.perf_counter() - began)

    await asyncio.gather(*(work() for _ in range(workers)))
    return statistics.quantiles(seconds, n=100)[98]


async def assert_served_as_before(
    modest: Callable[[], Awaitable[object]],
    greedy: Callable[[], Awaitable[object]],
    greedy_count: int,
    *,
    workers: int,
) -> None:
    """The p99 of the modest project is at most twice its own beside `greedy_count` loops of greedy requests."""

    async def again_and_again() -> None:
        while True:
            try:
                await greedy()
            except LockError:  # past its share
                await asyncio.sleep(STORE_SECONDS)

    before = await p99_seconds(modest, workers, REQUESTS)
    crowd = [asyncio.create_task(again_and_again()) for _ in range(greedy_count)]
    try:
        await asyncio.sleep(2 * STORE_SECONDS)
        now = await p99_seconds(modest, workers, REQUESTS)
        if now > RATIO_MAX * before:
            now = await p99_seconds(modest, workers, REQUESTS_MAX)
    finally:
        for task in crowd:
            task.cancel()
        await asyncio.gather(*crowd, return_exceptions=True)
    assert now <= RATIO_MAX * before, f"{before:.3f} s, then {now:.3f} s"


async def test_commands_beside_a_greedy_project() -> None:
    """A command waits for the batch in progress and for its own, however many others wait."""
    budget = Budget("commands_pending", 2_000)
    group: GroupCommit[int, int] = GroupCommit(SlowStore(ManualClock()), count, budget=budget, batch_max=64)
    keys = [RecordKey("modest", LockKey(f"k{number}")) for number in range(100)]
    turn = iter(range(10**9))

    async def modest() -> None:
        await group.submit(keys[next(turn) % len(keys)], 1)

    async def greedy() -> None:
        await group.submit(RecordKey("greedy", LockKey(f"k{next(turn) % 100}")), 1)

    await assert_served_as_before(modest, greedy, 1_040, workers=8)
    assert budget.refused["share"] > 0
    assert budget.refused["budget"] == 0
    await group.close()


async def test_lists_beside_a_greedy_project() -> None:
    """LIST-8: list requests of one project do not wait for those of another one."""
    budgets = Budget("lists_at_once", 4), Budget("lists_waiting", 100)
    slots = ListSlots(*budgets)

    async def query(project_id: str) -> None:
        async with slots.slot(project_id):
            await asyncio.sleep(STORE_SECONDS)

    await assert_served_as_before(lambda: query("modest"), lambda: query("greedy"), 60, workers=1)
    assert budgets[1].refused["share"] > 0
    assert budgets[1].refused["budget"] == 0
