"""Group commit: commands accumulate while a batch commits; each caller gets the result of its own command only."""

import asyncio
from collections.abc import Sequence

import pytest
from testsupport.server_ports import FaultyStore

from volcano_locks_server.ports.lock_store import RecordKey, Step
from volcano_locks_server.rules.errors import LockError, StoreUnavailableError
from volcano_locks_server.rules.lease import Free, LockRecord
from volcano_locks_server.rules.shares import Budget
from volcano_locks_server.rules.values import LockKey
from volcano_locks_server.service.group_commit import GroupCommit
from volcano_locks_server.stores.memory import MemoryStore
from volcano_locks_server.testing import ManualClock

A = RecordKey("p", LockKey("a"))
B = RecordKey("p", LockKey("b"))


def gated_store() -> FaultyStore:
    """A memory store whose updates wait until the gate is set."""
    store = FaultyStore(MemoryStore(ManualClock(1_800_000_000_000)))
    store.gate.clear()
    return store


def count(record: LockRecord | None, number: int, now_ms: int) -> tuple[LockRecord | None, int]:
    """A rule that adds numbers, so that results show order and folding."""
    total = (record.fencing_token if record else 0) * 10 + number
    return Free(total, now_ms), total


async def submitted(group: GroupCommit[int, int], *commands: tuple[RecordKey, int]) -> list[asyncio.Future[int]]:
    tasks = [group.submit(key, number) for key, number in commands]
    await asyncio.sleep(0)
    return tasks


async def test_what_arrives_during_a_commit_shares_the_next_in_order() -> None:
    store = gated_store()
    group: GroupCommit[int, int] = GroupCommit(store, count)
    first = await submitted(group, (A, 1))
    await store.entered.acquire()
    rest = await submitted(group, (A, 2), (B, 5), (A, 3))
    store.gate.set()
    assert await asyncio.gather(*first, *rest) == [1, 12, 5, 123]
    assert store.batch_sizes == [1, 3]
    await group.close()


async def test_a_failed_batch_answers_its_own_callers_only_and_is_not_repeated() -> None:
    """LEASE-16."""
    store = gated_store()
    group: GroupCommit[int, int] = GroupCommit(store, count)
    failing = await submitted(group, (A, 1), (B, 1))
    await store.entered.acquire()
    store.failure = StoreUnavailableError("disk_full", "no room")
    store.gate.set()
    for outcome in await asyncio.gather(*failing, return_exceptions=True):
        assert isinstance(outcome, StoreUnavailableError)
        assert outcome.cause_code == "disk_full"
    store.failure = None
    assert await group.submit(A, 7) == 7
    await group.close()


class BrokenHandler:
    """Fails once the batch is durable, as a bug in publishing would; `calls` are those of the group."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def begin_run(self) -> "BrokenRun":
        return BrokenRun()

    def committed(self, _report: object) -> None:
        self.calls.append("committed")
        raise KeyError("a bug")

    def failed(self) -> None:
        self.calls.append("failed")

    def overdue(self) -> None:
        self.calls.append("overdue")


class BrokenRun:
    def evaluate(
        self, _key: RecordKey, record: LockRecord | None, command: int, now_ms: int
    ) -> tuple[LockRecord | None, int]:
        return count(record, command, now_ms)

    def report(self) -> object:
        return None


async def test_a_bug_after_the_commit_revokes_nothing_and_hangs_no_caller() -> None:
    """LEASE-16: `failed` would revoke the grants that `committed` delivered."""
    handler = BrokenHandler()
    group: GroupCommit[int, int] = GroupCommit(MemoryStore(ManualClock()), count, begin_batch=lambda _keys: handler)
    with pytest.raises(StoreUnavailableError) as caught:
        await group.submit(A, 1)
    assert isinstance(caught.value.__cause__, KeyError)
    assert handler.calls == ["committed"]
    await group.close()


async def test_a_bug_in_the_store_returns_unavailable_and_keeps_its_cause_for_the_log() -> None:
    """LEASE-16: never an uncertain success, and never a hanging caller."""
    store = gated_store()
    store.gate.set()
    store.failure = KeyError("a bug")
    group: GroupCommit[int, int] = GroupCommit(store, count)
    with pytest.raises(StoreUnavailableError) as caught:
        await group.submit(A, 1)
    assert caught.value.cause_code == "store_error"
    assert caught.value.__cause__ is store.failure
    assert "bug" not in caught.value.message
    await group.close()


async def test_a_store_that_returns_too_few_results_fails_all_callers() -> None:
    """LEASE-16: which result belongs to which command is unknown."""

    class Forgetful(MemoryStore):
        async def update(self, keys: Sequence[RecordKey], step: Step) -> Sequence[object]:
            return (await super().update(keys, step))[:-1]

    group: GroupCommit[int, int] = GroupCommit(Forgetful(ManualClock()), count)
    for outcome in await asyncio.gather(*await submitted(group, (A, 1), (B, 2)), return_exceptions=True):
        assert isinstance(outcome, StoreUnavailableError)
        assert outcome.cause_code == "store_error"
    await group.close()


async def test_a_caller_that_gave_up_before_its_batch_is_left_out() -> None:
    store = gated_store()
    group: GroupCommit[int, int] = GroupCommit(store, count)
    first = await submitted(group, (A, 1))
    await store.entered.acquire()
    gone, stays = await submitted(group, (A, 2), (A, 3))
    gone.cancel()
    await asyncio.sleep(0)
    store.gate.set()
    assert await asyncio.gather(*first, stays) == [1, 13]
    await group.close()


async def test_a_caller_that_gives_up_during_its_commit_harms_no_other() -> None:
    store = gated_store()
    group: GroupCommit[int, int] = GroupCommit(store, count)
    gone, stays = await submitted(group, (A, 1), (A, 2))
    await store.entered.acquire()
    gone.cancel()
    store.gate.set()
    assert await stays == 12
    await group.close()


async def test_a_command_beyond_the_limit_is_refused_at_once() -> None:
    """HTTP-32: half of the budget for one project, a quarter while more than half is in use; then 503 for all."""
    store = gated_store()
    budget = Budget("commands_pending", 4)
    group: GroupCommit[int, int] = GroupCommit(store, count, budget=budget)
    first = await submitted(group, (A, 1))
    await store.entered.acquire()
    waiting = await submitted(group, (A, 2), (A, 3))
    second, third, fourth = (RecordKey(project_id, LockKey("a")) for project_id in "qrs")
    for refused, key in ((A, second), (second, third)):
        with pytest.raises(LockError, match="share") as error:
            group.submit(A, 4)
        assert (error.value.code, error.value.retry_after_seconds) == ("too_many_requests", 1)
        waiting += await submitted(group, (key, 5))
        with pytest.raises(LockError):
            group.submit(refused, 4)
    with pytest.raises(StoreUnavailableError, match="4 requests are pending"):
        group.submit(fourth, 6)
    store.gate.set()
    assert await asyncio.gather(*first, *waiting) == [1, 12, 123, 5, 5]
    assert budget.used == budget.used_by("p") == 0
    await group.close()


async def test_batches_are_no_larger_than_the_store_prefers() -> None:
    store = gated_store()
    store.gate.set()
    group: GroupCommit[int, int] = GroupCommit(store, count, batch_max=3)
    await asyncio.gather(*await submitted(group, *[(A, 1)] * 8))
    assert store.batch_sizes == [3, 3, 2]
    await group.close()


async def test_closing_commits_pending_commands_and_refuses_later_ones() -> None:
    store = gated_store()
    group: GroupCommit[int, int] = GroupCommit(store, count)
    first = await submitted(group, (A, 1))
    await store.entered.acquire()
    waiting = await submitted(group, (A, 2))
    closing = asyncio.create_task(group.close())
    await asyncio.sleep(0)
    with pytest.raises(StoreUnavailableError) as refused:
        await group.submit(A, 3)
    assert refused.value.cause_code == "stopping"
    store.gate.set()
    await closing
    assert await asyncio.gather(*first, *waiting) == [1, 12]


@pytest.mark.real_time
async def test_a_commit_that_hangs_does_not_hang_its_callers() -> None:
    """LEASE-16: committing and pending callers get an error; the store is used again when it is back."""
    store = gated_store()
    group: GroupCommit[int, int] = GroupCommit(store, count, commit_seconds_max=0.5)
    stuck = await submitted(group, (A, 1))
    await store.entered.acquire()
    waiting = await submitted(group, (A, 2))
    for outcome in await asyncio.gather(*stuck, *waiting, return_exceptions=True):
        assert isinstance(outcome, StoreUnavailableError)
        assert outcome.cause_code == "commit_late"
    store.gate.set()
    assert await group.submit(B, 3) == 3
    await group.close()


@pytest.mark.real_time
async def test_closing_ends_even_if_the_store_hangs() -> None:
    store = gated_store()
    group: GroupCommit[int, int] = GroupCommit(store, count, commit_seconds_max=0.05)
    stuck = await submitted(group, (A, 1))
    await store.entered.acquire()
    await group.close()
    assert isinstance((await asyncio.gather(*stuck, return_exceptions=True))[0], StoreUnavailableError)


async def test_each_batch_has_room_for_every_project() -> None:
    """HTTP-24: a project with thousands of pending commands delays another's by one batch at most."""
    store = gated_store()
    group: GroupCommit[int, int] = GroupCommit(store, count, batch_max=64)
    greedy = await submitted(group, *((RecordKey("greedy", LockKey(f"k{n}")), 1) for n in range(1_000)))
    modest = await submitted(group, *((RecordKey(f"modest-{n}", LockKey("a")), 1) for n in range(3)))
    late = await submitted(group, *((RecordKey("late", LockKey(f"k{n}")), 1) for n in range(100)))
    store.let_through(2)  # the first batch began before the modest projects' commands came
    await asyncio.gather(*modest)
    shares = [sum(one.done() for one in tasks) for tasks in (greedy, late)]
    assert shares[0] - 64 + shares[1] == 64 - 3
    assert abs(shares[0] - 64 - shares[1]) <= 3
    store.gate.set()
    await asyncio.gather(*greedy, *late)
    await group.close()


async def test_a_project_gets_its_turn_if_there_are_more_projects_than_room() -> None:
    """HTTP-24: the projects take turns."""
    store = gated_store()
    group: GroupCommit[int, int] = GroupCommit(store, count, batch_max=4)
    first = await submitted(group, (A, 1))
    await store.entered.acquire()
    tasks = await submitted(group, *((RecordKey(f"p{n % 10}", LockKey(f"k{n}")), 1) for n in range(40)))
    store.let_through(4)  # the first, and three batches of four
    await asyncio.gather(*first, *tasks[:10])
    assert [one.done() for one in tasks[10:]].count(True) == 2
    store.gate.set()
    await asyncio.gather(*tasks)
    await group.close()
