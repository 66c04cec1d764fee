"""Slots for list queries: each project has a share of those that run and of those that wait (LIST-8, HTTP-32)."""

import asyncio

import pytest

from volcano_locks_server.http.list_slots import ListSlots
from volcano_locks_server.rules.errors import LockError
from volcano_locks_server.rules.shares import Budget


class Queries:
    """Queries that run until the test completes them."""

    def __init__(self, at_once: int = 4, waiting: int = 8) -> None:
        self.budgets = Budget("lists_at_once", at_once), Budget("lists_waiting", waiting)
        self.slots = ListSlots(*self.budgets)
        self.running: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}

    async def _query(self, name: str, gate: asyncio.Event) -> None:
        async with self.slots.slot(name[0]):
            self.running.append(name)
            await gate.wait()
        self.running.remove(name)

    async def begin(self, *names: str) -> list[asyncio.Task[None]]:
        """Begin queries in this order. The first letter of a name is its project."""
        tasks = []
        for name in names:
            self.gates[name] = asyncio.Event()
            tasks.append(asyncio.create_task(self._query(name, self.gates[name])))
            await turns()
        return tasks

    async def complete(self, name: str) -> None:
        self.gates[name].set()
        await turns()

    def end(self) -> None:
        for gate in self.gates.values():
            gate.set()


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_projects_take_turns() -> None:
    """A project with many requests does not delay the first one of another; what waits is served in order."""
    queries = Queries()
    tasks = await queries.begin("a1", "a2", "a3", "a4", "b1", "b2", "c1")
    assert queries.running == ["a1", "a2", "b1", "c1"]
    await queries.complete("a1")
    assert queries.running == ["a2", "b1", "c1"], "each has its quarter, and one place is left for another project"
    await queries.complete("c1")
    assert queries.running == ["a2", "b1", "a3"]
    await queries.complete("a2")
    assert queries.running == ["b1", "a3", "b2"]
    queries.end()
    await asyncio.gather(*tasks)
    assert [budget.used for budget in queries.budgets] == [0, 0]


async def test_requests_past_the_share_and_past_the_budget_are_refused() -> None:
    """LIST-8, case 61: 429 past the share of waiting requests, 503 once all places are taken."""
    queries = Queries(at_once=2, waiting=4)
    tasks = await queries.begin("a1", "b1", "a2", "a3", "b2", "c1")

    async def refused(project_id: str) -> tuple[str, int | None]:
        with pytest.raises(LockError) as error:
            async with asyncio.timeout(5), queries.slots.slot(project_id):
                pass
        return error.value.code, error.value.retry_after_seconds

    assert await refused("d") == ("lock_service_unavailable", 1)
    await queries.complete("a1")
    assert await refused("b") == ("too_many_requests", 1)
    queries.end()
    await asyncio.gather(*tasks)
    assert [budget.used for budget in queries.budgets] == [0, 0]


async def test_a_request_that_is_cancelled_gives_its_place_back() -> None:
    """Before its turn, in the moment in which it gets its turn, and in the moment before."""
    queries = Queries(at_once=2)
    tasks = await queries.begin("a1", "a2", "a3", "a4")
    tasks[1].cancel()
    await turns()
    queries.gates["a1"].set()
    tasks[2].cancel()
    await turns()
    assert queries.running == ["a4"], "the turn of a cancelled request passes on"
    tasks += await queries.begin("a5", "a6")
    queries.gates["a4"].set()
    while queries.running != []:
        await asyncio.sleep(0)
    tasks[4].cancel()
    await turns()
    assert queries.running == ["a6"]
    queries.end()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert [budget.used for budget in queries.budgets] == [0, 0]
