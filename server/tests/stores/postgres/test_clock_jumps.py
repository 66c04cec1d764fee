"""The database's clock moves ahead by itself, or passed time is not proven: no lease ends early (LEASE-17)."""

from collections.abc import AsyncIterator, Sequence

import psycopg
import pytest

from volcano_locks_server.ports.lock_store import LockQuery
from volcano_locks_server.rules.lease import Acquire, Granted, Outcome, Read, Refused, State
from volcano_locks_server.stores.postgres import PostgresDatabase
from volcano_locks_server.testing import ManualClock

from ..store_actions import PROJECT, digest, key, run_commands

LOCK = key("a")
TTL_SECONDS = 60
LEFT_MS = (TTL_SECONDS + 1) * 1_000
STEPS_MS = [5_000, 60_000, 3_600_000]


class Cluster:
    """Nodes on machines of their own, over one database whose clock the test moves."""

    def __init__(self, database: str) -> None:
        self.url = database
        self.clock = ManualClock()
        self.machines: list[ManualClock] = []
        self.nodes: list[PostgresDatabase] = []

    async def node(self, machine: ManualClock | None = None) -> PostgresDatabase:
        if machine is None:
            machine = ManualClock(self.clock.now_ms())
            machine.is_synchronised = False
            self.machines.append(machine)
        self.nodes.append(await PostgresDatabase.open(self.url, clock=self.clock, node_clock=machine))
        return self.nodes[-1]

    def advance(self, ms: int) -> None:
        for clock in (self.clock, *self.machines):
            clock.advance(ms)


@pytest.fixture
async def cluster(database: str) -> AsyncIterator[Cluster]:
    one = Cluster(database)
    yield one
    for node in one.nodes:
        await node.close()


async def acquire(node: PostgresDatabase, owner: str) -> Outcome:
    (outcome,) = await run_commands(node.locks, (LOCK, Acquire(digest(owner), TTL_SECONDS)))
    return outcome


async def check_held_for(cluster: Cluster, nodes: Sequence[PostgresDatabase], left_ms: int) -> None:
    """Every node shows the lock as held for `left_ms`; then it is taken over."""
    for passed_ms in (0, left_ms // 2, left_ms - 1 - left_ms // 2):
        cluster.advance(passed_ms)
        for node in nodes:
            assert isinstance(await acquire(node, "other"), Refused)
            (state,) = await run_commands(node.locks, (LOCK, Read()))
            assert isinstance(state, State)
            assert state.lease is not None
            assert await node.locks.count_held() == 1
            assert await node.locks.purge(limit=10) == 0
            await node.locks.ready()
            for held, keys in ((True, [LOCK.key]), (False, []), (None, [LOCK.key])):
                page = await node.locks.list_locks(LockQuery(PROJECT, 10, held=held))
                assert [one for one, _ in page.records] == keys
    cluster.advance(1)
    assert [await node.locks.count_held() for node in nodes] == [0] * len(nodes)
    assert isinstance(await acquire(nodes[-1], "other"), Granted)


@pytest.mark.parametrize("step_ms", STEPS_MS)
async def test_a_step_of_the_databases_clock_binds_all_nodes(cluster: Cluster, step_ms: int) -> None:
    """LEASE-17, case 67: also a node that has never read the clock before, and one that read it long ago."""
    one, other = await cluster.node(), await cluster.node()
    assert isinstance(await acquire(one, "me"), Granted)
    cluster.advance(10_000)
    cluster.clock.jump(step_ms)
    assert isinstance(await acquire(other, "other"), Refused)
    hold = other.locks.takeover_hold()
    assert hold is not None
    assert hold.left_ms == LEFT_MS - 10_000
    assert hold.jumped_ms == step_ms
    fresh = await cluster.node()
    await check_held_for(cluster, [one, other, fresh], LEFT_MS - 10_000)


@pytest.mark.parametrize("call", ["list_locks", "count_held", "purge", "ready"])
async def test_every_call_finds_the_step(cluster: Cluster, call: str) -> None:
    """LEASE-17: whichever call reads the clock first."""
    node = await cluster.node()
    await acquire(node, "me")
    cluster.clock.jump(3_600_000)
    calls = {
        "list_locks": lambda: node.locks.list_locks(LockQuery(PROJECT, 10)),
        "count_held": node.locks.count_held,
        "purge": lambda: node.locks.purge(limit=10),
        "ready": node.locks.ready,
    }
    await calls[call]()
    assert node.locks.takeover_hold() is not None
    await check_held_for(cluster, [node], LEFT_MS)


@pytest.mark.parametrize("step_ms", [0, *STEPS_MS])
async def test_a_node_on_another_machine_knows_no_time(cluster: Cluster, step_ms: int) -> None:
    """LEASE-17, case 67: it is the only node, and starts after the step."""
    await acquire(await cluster.node(), "me")
    cluster.advance(10_000)
    cluster.clock.jump(step_ms)
    fresh = await cluster.node()
    await check_held_for(cluster, [fresh], LEFT_MS)


async def test_a_restart_on_the_same_machine_knows_the_time(cluster: Cluster) -> None:
    """LEASE-17: by the clock of its boot; the node that stopped was the last to write."""
    await acquire(await cluster.node(), "me")
    cluster.advance(10_000)
    again = await cluster.node(cluster.machines[0])
    assert again.locks.takeover_hold() is None
    cluster.clock.jump(60_000)
    again = await cluster.node(cluster.machines[0])
    await check_held_for(cluster, [again], LEFT_MS - 10_000)


async def test_synchronised_clocks_are_believed_if_they_agree_with_the_database(cluster: Cluster) -> None:
    """LEASE-17: when the newest instant was written, and at the start."""
    first = await cluster.node()
    cluster.machines[0].is_synchronised = True
    await acquire(first, "me")
    cluster.advance(10_000)
    machine = ManualClock(cluster.clock.now_ms())
    cluster.machines.append(machine)
    believing = await cluster.node(machine)
    assert believing.locks.takeover_hold() is None
    cluster.clock.jump(60_000)
    doubting = await cluster.node(ManualClock(cluster.clock.now_ms() - 60_000))
    assert doubting.locks.takeover_hold() is not None


async def test_a_node_of_the_first_release_leaves_the_mark_behind(cluster: Cluster) -> None:
    """LEASE-17: it writes the newest instant alone, so that no later node relies on the old mark."""
    first = await cluster.node()
    cluster.machines[0].is_synchronised = True
    await acquire(first, "me")
    cluster.advance(2_000)
    with psycopg.connect(cluster.url) as connection:
        connection.execute("UPDATE volcano_locks.newest_instant SET now_ms = %s", (cluster.clock.now_ms(),))
    cluster.advance(10_000)
    machine = ManualClock(cluster.clock.now_ms())
    cluster.machines.append(machine)
    fresh = await cluster.node(machine)
    await check_held_for(cluster, [fresh], LEFT_MS - 2_000)


async def test_a_clock_that_goes_back_and_forth_holds_nothing(cluster: Cluster) -> None:
    """LEASE-1, LEASE-17: what was refused meanwhile is no evidence."""
    node = await cluster.node()
    await acquire(node, "me")
    cluster.clock.jump(-60_000)
    with pytest.raises(Exception, match="has served"):
        await node.locks.ready()
    cluster.clock.jump(60_000)
    await node.locks.ready()
    assert node.locks.takeover_hold() is None
