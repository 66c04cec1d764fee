"""Services over one store between which no message arrives, as behind a connection pooler."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from testsupport.service_requests import Reply, perform

from volcano_locks_server.ports.lock_store import RecordKey
from volcano_locks_server.queue.fairness import TURN_MS
from volcano_locks_server.queue.node_turn import HANDOFFS_IN_A_ROW_MAX, waiting_nodes
from volcano_locks_server.queue.recheck import RECHECK_EVERY_SECONDS, TURN_RECHECK_MS_MIN
from volcano_locks_server.rules.lease import Acquire, Command, Granted, Held, Refused, Release
from volcano_locks_server.rules.values import LockKey
from volcano_locks_server.service.lock_service import LockService
from volcano_locks_server.stores.memory import MemoryStore
from volcano_locks_server.testing import ManualClock

from ..events.hub_nodes import PROJECT, turns

KEY = LockKey("nightly")
LOCK = RecordKey(PROJECT, KEY)
HOLD_MS = 20


class Nodes:
    """Services over one memory store, and their requests for one lock. Owners are numbers."""

    def __init__(self, count: int) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(self.clock)
        self.services = [LockService(self.store, self.clock, several_nodes=True) for _ in range(count)]
        self.grants = [0] * count
        self._loops: list[asyncio.Task[None]] = []
        self._owners = 1_000

    async def do(self, node: int, command: Command, wait_ms: int = 0) -> Reply:
        return await perform(self.services[node], PROJECT, 0, KEY, command, wait_ms=wait_ms)

    def wait(self, node: int, number: int, wait_ms: int = 60_000) -> "asyncio.Task[Reply]":
        return asyncio.create_task(self.do(node, Acquire(owner(number), 30), wait_ms), name="waiter")

    async def advance(self, ms: int, *, step_ms: int = 10) -> None:
        for _ in range(ms // step_ms):
            self.clock.advance(step_ms)
            await turns()

    def use(self, node: int, clients: int) -> None:
        """That many clients wait for the lock on this node, hold it for HOLD_MS, release it, and wait again."""
        self._loops += [asyncio.create_task(self._use(node), name="client") for _ in range(clients)]

    async def stop_clients(self) -> None:
        for loop in self._loops:
            loop.cancel()
        if self._loops:
            await asyncio.wait(self._loops)
        self._loops.clear()

    @property
    def record(self) -> Held:
        record = self.store.records[LOCK]
        assert isinstance(record, Held)
        return record

    async def _use(self, node: int) -> None:
        while True:
            self._owners += 1
            digest = owner(self._owners)
            reply = await self.do(node, Acquire(digest, 30), 60_000)
            if isinstance(reply.outcome, Granted):
                self.grants[node] += 1
                held = asyncio.get_running_loop().create_future()
                self.clock.call_in(HOLD_MS, lambda held=held: held.done() or held.set_result(None))
                await held
                await self.do(node, Release(digest))


@asynccontextmanager
async def nodes(count: int) -> AsyncIterator[Nodes]:
    opened = Nodes(count)
    yield opened
    await opened.stop_clients()
    for service in opened.services:
        await service.close()


def owner(number: int) -> bytes:
    return number.to_bytes(32, "big")


def outcome(waiting: "asyncio.Task[Reply]") -> object:
    return waiting.result().outcome if waiting.done() else None


async def test_no_node_starves_although_messages_are_lost() -> None:
    """WAIT-12, case 69: the record says that another node waits, so the lock is left to it within a few seconds."""
    async with nodes(2) as two:
        two.use(0, 12)
        await two.advance(500)
        two.use(1, 3)
        await two.advance(RECHECK_EVERY_SECONDS * 1_000 + 2 * HANDOFFS_IN_A_ROW_MAX * HOLD_MS + 2 * TURN_RECHECK_MS_MIN)
        assert two.grants[1] > 0
        before = list(two.grants)
        await two.advance(30_000)
        gained = [now - then for now, then in zip(two.grants, before, strict=True)]
        assert min(gained) > 0.4 * sum(gained), gained
        assert sum(gained) > 0.5 * 30_000 / HOLD_MS, "turns cost less than half of the time"


async def test_three_nodes_take_turns() -> None:
    """WAIT-12."""
    async with nodes(3) as three:
        for node, clients in enumerate((20, 1, 1)):
            three.use(node, clients)
        await three.advance(40_000)
        assert min(three.grants) >= 8, three.grants


async def test_a_node_alone_does_not_pause() -> None:
    """WAIT-12."""
    async with nodes(1) as one:
        one.use(0, 12)
        await one.advance(10_000)
        assert one.grants[0] > 0.9 * 10_000 / HOLD_MS


async def test_a_node_that_is_gone_costs_one_pause() -> None:
    """WAIT-12: its turn is skipped after TURN_MS."""
    async with nodes(2) as two:
        two.use(0, 4)
        await two.advance(500)
        given_up = two.wait(1, 1)
        while not waiting_nodes(two.store.records[LOCK]):
            await two.advance(10)
        given_up.cancel()
        await two.advance(HANDOFFS_IN_A_ROW_MAX * HOLD_MS)
        before = two.grants[0]
        await two.advance(TURN_MS)
        assert two.grants[0] - before < 2 * HANDOFFS_IN_A_ROW_MAX
        before = two.grants[0]
        await two.advance(5_000)
        assert two.grants[0] - before > 0.9 * 5_000 / HOLD_MS


async def test_a_long_lease_lists_no_node() -> None:
    """WAIT-12: only a node whose waiters were overtaken writes to the record."""
    async with nodes(2) as two:
        await two.do(0, Acquire(owner(1), 300))
        waiting = two.wait(1, 2)
        await two.advance(20_000, step_ms=250)
        assert waiting_nodes(two.record) == ()
        waiting.cancel()


async def test_a_recheck_serves_a_waiter_whose_token_was_granted_by_another_node() -> None:
    """WAIT-13, case 70: the first connection died silently, and its node granted the lock to it."""
    async with nodes(2) as two:
        await two.do(0, Acquire(owner(1), 30))
        dead, alive = two.wait(0, 2), two.wait(1, 2)
        await turns()
        await two.do(0, Release(owner(1)))
        await turns()
        first = outcome(dead)
        assert isinstance(first, Granted)
        await two.advance(RECHECK_EVERY_SECONDS * 1_000)
        second = outcome(alive)
        assert isinstance(second, Granted)
        assert (second.fencing_token, second.how) == (first.fencing_token, "repeated")


async def test_a_release_on_one_node_withdraws_the_waiters_of_its_token_on_others() -> None:
    """WAIT-13, case 70: its client gave up; 409, because another owner holds the lock."""
    async with nodes(2) as two:
        await two.do(0, Acquire(owner(1), 30))
        waiting, behind = two.wait(0, 2), two.wait(0, 3)
        await turns()
        reply = await two.do(1, Release(owner(2)))
        assert isinstance(reply.outcome, Refused)
        assert reply.outcome.code == "lock_ownership_lost"
        await two.do(0, Release(owner(1)))
        await turns()
        refused = outcome(waiting)
        assert isinstance(refused, Refused)
        assert refused.code == "lock_ownership_lost"
        assert isinstance(outcome(behind), Granted)


async def test_a_withdrawn_waiter_is_answered_while_the_lock_is_held() -> None:
    """WAIT-13: at the next recheck."""
    async with nodes(2) as two:
        await two.do(0, Acquire(owner(1), 300))
        waiting = two.wait(0, 2)
        await turns()
        await two.do(1, Release(owner(2)))
        await two.advance(RECHECK_EVERY_SECONDS * 1_000)
        assert isinstance(outcome(waiting), Refused)


async def test_a_released_lease_withdraws_waiters_of_its_token_on_other_nodes() -> None:
    """WAIT-13: it was granted to a waiter, so the token may wait elsewhere too; a new lease does not forget it."""
    async with nodes(2) as two:
        await two.do(0, Acquire(owner(1), 30))
        stale, alive, next_one = two.wait(0, 2), two.wait(1, 2), two.wait(1, 3)
        await turns()
        await two.do(1, Release(owner(1)))
        await turns()
        assert isinstance(outcome(alive), Granted)
        await two.do(1, Release(owner(2)))
        await turns()
        assert isinstance(outcome(next_one), Granted)
        await two.do(1, Release(owner(3)))
        await two.advance(RECHECK_EVERY_SECONDS * 1_000)
        assert isinstance(outcome(stale), Refused)


async def test_a_released_token_gets_no_lease_while_its_acquire_may_still_wait() -> None:
    """LEASE-11: two minutes later it is a new token again."""
    async with nodes(1) as one:
        await one.do(0, Acquire(owner(1), 300))
        await one.do(0, Release(owner(2)))
        reply = await one.do(0, Acquire(owner(2), 30))
        assert isinstance(reply.outcome, Refused)
        assert reply.outcome.code == "lock_ownership_lost"
        await one.advance(120_000, step_ms=1_000)
        reply = await one.do(0, Acquire(owner(2), 30))
        assert isinstance(reply.outcome, Refused)
        assert reply.outcome.code == "lock_held"
