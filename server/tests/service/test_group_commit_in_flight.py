"""Several batches in flight: each key is in one of them only, and its commands keep their order of arrival."""

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from volcano_locks_server.ports.lock_store import RecordKey, Step
from volcano_locks_server.rules.errors import LockError, StoreUnavailableError
from volcano_locks_server.rules.lease import Free, LockRecord
from volcano_locks_server.rules.shares import Budget
from volcano_locks_server.rules.values import LockKey
from volcano_locks_server.service import group_commit
from volcano_locks_server.service.group_commit import GroupCommit
from volcano_locks_server.stores.memory import MemoryStore
from volcano_locks_server.testing import ManualClock

A, B, C, D, E = (RecordKey("p", LockKey(name)) for name in "abcde")


class UnisolatedStore(MemoryStore):
    """A memory store whose updates read at once and write when a test completes them: lost updates show."""

    def __init__(self) -> None:
        super().__init__(ManualClock())
        self.waiting: list[tuple[list[str], asyncio.Future[None]]] = []
        self.most = 0
        self.sizes: list[int] = []

    async def update(self, keys: Sequence[RecordKey], step: Step) -> Sequence[object]:
        stepped = step({key: self.records.get(key) for key in keys}, 1)
        names = [str(key.key) for key in keys]
        for others, _ in self.waiting:
            assert not set(others) & set(names), "a key is in two batches"
        mine = (names, asyncio.get_running_loop().create_future())
        self.waiting.append(mine)
        self.most = max(self.most, len(self.waiting))
        try:
            await mine[1]
        finally:
            self.waiting.remove(mine)
        self.records.update(stepped.changed)
        self.sizes.append(len(stepped.results))
        return stepped.results

    async def complete(self, index: int = 0) -> None:
        self.waiting[index][1].set_result(None)
        await settled()

    @property
    def in_flight(self) -> list[list[str]]:
        return [names for names, _ in self.waiting]


def count(record: LockRecord | None, number: int, now_ms: int) -> tuple[LockRecord | None, int]:
    total = (record.fencing_token if record else 0) * 10 + number
    return Free(total, now_ms), total


async def settled() -> None:
    for _ in range(8):
        await asyncio.sleep(0)


async def submitted(group: GroupCommit[int, int], *commands: tuple[RecordKey, int]) -> list[asyncio.Future[int]]:
    tasks = [group.submit(key, number) for key, number in commands]
    await settled()
    return tasks


def group_on(
    store: UnisolatedStore,
    batches_in_flight: int = 2,
    batch_max: int = 512,
    commit_seconds_max: float = 10.0,
    budget: Budget | None = None,
) -> GroupCommit[int, int]:
    return GroupCommit(
        store,
        count,
        batches_in_flight=batches_in_flight,
        batch_max=batch_max,
        commit_seconds_max=commit_seconds_max,
        budget=budget,
    )


async def test_another_key_commits_beside_it_and_a_third_gathers() -> None:
    store = UnisolatedStore()
    group = group_on(store)
    answers = []
    for one in (A, B, C, C):
        answers += await submitted(group, (one, 1))
    assert store.in_flight == [["a"], ["b"]]
    await store.complete(1)
    assert store.in_flight == [["a"], ["c"]]
    await store.complete(1)
    await store.complete()
    assert await asyncio.gather(*answers) == [1, 1, 1, 11]
    await group.close()


async def test_another_batch_waits_until_it_is_as_large_as_the_one_in_flight() -> None:
    """A small batch costs a store as much as a large one."""
    store = UnisolatedStore()
    group = group_on(store)
    answers = await submitted(group, (A, 1), (B, 1))
    answers += await submitted(group, (C, 1))
    assert store.in_flight == [["a", "b"]]
    answers += await submitted(group, (D, 1))
    assert store.in_flight == [["a", "b"], ["c", "d"]]
    answers += await submitted(group, (E, 1))
    await store.complete()
    assert store.in_flight == [["c", "d"]]
    await store.complete()
    assert store.in_flight == [["e"]]
    await store.complete()
    assert await asyncio.gather(*answers) == [1] * 5
    await group.close()


async def test_a_large_backlog_starts_another_batch_beside_a_larger_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "SIZE_OF_ANOTHER_BATCH", 2)
    store = UnisolatedStore()
    group = group_on(store)
    answers = await submitted(group, (A, 1), (B, 1), (C, 1))
    answers += await submitted(group, (D, 1))
    assert store.in_flight == [["a", "b", "c"]]
    answers += await submitted(group, (E, 1))
    assert store.in_flight == [["a", "b", "c"], ["d", "e"]]
    await store.complete()
    await store.complete()
    assert await asyncio.gather(*answers) == [1] * 5
    await group.close()


async def test_commands_on_a_busy_key_wait_in_order_and_block_no_other_key() -> None:
    store = UnisolatedStore()
    group = group_on(store)
    first = await submitted(group, (A, 1))
    rest = await submitted(group, (A, 2), (B, 5), (A, 3))
    assert store.in_flight == [["a"], ["b"]]
    await store.complete(1)
    assert store.in_flight == [["a"]]
    rest += await submitted(group, (A, 4))
    await store.complete()
    assert store.in_flight == [["a"]]
    await store.complete()
    assert await asyncio.gather(*first, *rest) == [1, 12, 5, 123, 1234]
    await group.close()


async def test_parked_commands_count_as_pending_and_are_committed_at_the_close() -> None:
    store = UnisolatedStore()
    budget = Budget("commands_pending", 4)
    group = group_on(store, budget=budget)
    tasks = await submitted(group, (A, 1))
    tasks += await submitted(group, (A, 2), (B, 1))
    tasks += await submitted(group, (A, 3))
    with pytest.raises(LockError, match="share"):
        await group.submit(C, 4)
    closing = asyncio.create_task(group.close())
    while store.waiting:
        await settled()
        await store.complete()
    await closing
    assert await asyncio.gather(*tasks) == [1, 12, 1, 123]
    assert budget.used == budget.used_by("p") == 0


@pytest.mark.real_time
async def test_a_hanging_batch_does_not_hang_commands_parked_behind_it() -> None:
    """LEASE-16."""
    store = UnisolatedStore()
    group = group_on(store, commit_seconds_max=0.05)
    tasks = await submitted(group, (A, 1))
    tasks += await submitted(group, (A, 2), (B, 1))
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(outcome, StoreUnavailableError)
    await group.close()


@pytest.mark.real_time
async def test_a_late_batch_keeps_its_key_until_it_ends() -> None:
    """LEASE-16: stores rely on this: no two updates in flight on a node have a key in common."""
    store = UnisolatedStore()
    group = group_on(store, commit_seconds_max=0.5)
    (late,) = await submitted(group, (A, 1))
    with pytest.raises(StoreUnavailableError):
        await late
    (later,) = await submitted(group, (A, 2))
    assert store.in_flight == [["a"]]
    await store.complete()
    assert store.in_flight == [["a"]]
    await store.complete()
    assert await later == 12
    await group.close()


@settings(max_examples=150, deadline=None)
@given(
    batches_in_flight=st.integers(1, 3),
    batch_max=st.integers(1, 4),
    actions=st.lists(
        st.one_of(st.sampled_from("aaabc"), st.integers(0, 2), st.just("give up")), min_size=1, max_size=40
    ),
)
def test_any_order_of_actions_keeps_the_order_of_each_key(
    batches_in_flight: int, batch_max: int, actions: list[str | int]
) -> None:
    """A letter submits to that key, a number completes that batch, and some callers give up while they wait."""

    async def run() -> None:
        store = UnisolatedStore()
        group = group_on(store, batches_in_flight, batch_max)
        tasks: list[tuple[str, asyncio.Future[int]]] = []
        for action in actions:
            if action == "give up":
                if tasks:
                    tasks[-1][1].cancel()
            elif isinstance(action, str):
                key = RecordKey("p", LockKey(action))
                tasks.append((action, group.submit(key, 1)))
            elif store.waiting:
                await store.complete(action % len(store.waiting))
            await settled()
        while store.waiting:
            await store.complete()
        await group.close()
        for name in "abc":
            totals = [task.result() for mine, task in tasks if mine == name and not task.cancelled()]
            assert totals == sorted(set(totals)), "out of order, or an update was lost"
        assert store.most <= batches_in_flight
        assert max(store.sizes, default=0) <= batch_max

    asyncio.run(run())
