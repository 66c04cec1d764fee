"""Wait queues under any order of joins, disconnects, releases, expiries, and commits that hang or fail.

Once everything settles, no request waits for a free lock, no disconnected client holds one, each delivered lease that
has not ended is held, and no waiter was overtaken.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Any, Final

from hypothesis import given, settings
from hypothesis import strategies as st
from testsupport.server_ports import When
from testsupport.service_requests import Reply, perform

from volcano_locks_server.ports.lock_store import RecordKey
from volcano_locks_server.rules.errors import LockError
from volcano_locks_server.rules.lease import (
    GRACE_MS,
    Acquire,
    Command,
    ForceRelease,
    Granted,
    Held,
    Refused,
    Release,
    Renew,
    blocks_others,
)
from volcano_locks_server.rules.values import LockKey
from volcano_locks_server.service.lock_service import LockService
from volcano_locks_server.testing import ManualClock

from .harness import GatedStore, settled

KEYS: Final = (LockKey("a"), LockKey("b"))
MOMENTS: Final[tuple[When, When]] = ("before", "after")
TTL_SECONDS: Final = 20


@dataclass(eq=False)
class Request:
    """One acquire, in progress or done. `arrived` is the number of its waiter in the order of arrival."""

    lock: LockKey
    owner: int
    arrived: int
    task: "asyncio.Task[Reply]"
    waits: bool
    disconnected: bool = False
    doubtful: bool = False  # something else happened to its lease before its result
    has_unknown_turn: bool = False  # it took over a waiter that may have lost its turn
    collected: bool = False


@dataclass
class Belief:
    """The latest lease that an owner received."""

    fencing_token: int
    expires_at_ms: int


@dataclass
class World:
    batches_in_flight: int
    clock: ManualClock = field(default_factory=ManualClock)
    requests: list[Request] = field(default_factory=list)
    beliefs: dict[tuple[LockKey, int], Belief] = field(default_factory=dict)
    uncertain: set[tuple[LockKey, int]] = field(default_factory=set)
    others: list["asyncio.Task[Reply]"] = field(default_factory=list)
    owners: int = 0
    last_granted: dict[LockKey, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.store = GatedStore(self.clock)
        self.service = LockService(self.store, self.clock, batches_in_flight=self.batches_in_flight)

    def perform(self, lock: LockKey, command: Command, wait_ms: int = 0) -> "asyncio.Task[Reply]":
        return asyncio.create_task(perform(self.service, "p", 0, lock, command, wait_ms=wait_ms))

    async def do(self, action: tuple[str, int, int]) -> None:  # noqa: PLR0912 - one branch a verb
        verb, which, more = action
        lock = KEYS[which % 2]
        waiting = [one for one in self.requests if one.lock == lock and not one.task.done()]
        holders = [owner for mine, owner in self.beliefs if mine == lock]
        match verb:
            case "join" | "acquire":
                self.owners += 1
                await self._begin(lock, self.owners, self.owners, waits=verb == "join")
            case "take_over" if waiting:
                self.owners += 1
                await self._begin(lock, waiting[more % len(waiting)].owner, self.owners, waits=True)
            case "disconnect" if waiting:
                one = waiting[more % len(waiting)]
                one.task.cancel()
                one.disconnected = True
            case "reconnect" if gone := [one for one in self.requests if one.lock == lock and one.disconnected]:
                self.owners += 1
                await self._begin(lock, gone[more % len(gone)].owner, self.owners, waits=more % 2 == 0)
            case "release" if holders:
                owner = holders[more % len(holders)]
                del self.beliefs[lock, owner]
                self._doubt(lock, owner)
                self.others.append(self.perform(lock, Release(digest(owner))))
            case "withdraw" if waiting:
                one = waiting[more % len(waiting)]
                self.beliefs.pop((lock, one.owner), None)
                self._doubt(lock, one.owner)
                self.others.append(self.perform(lock, Release(digest(one.owner))))
            case "renew" if holders:
                owner = holders[more % len(holders)]
                del self.beliefs[lock, owner]  # its expiry is uncertain until the response
                self.uncertain.add((lock, owner))
                self.others.append(self.perform(lock, Renew(digest(owner), TTL_SECONDS)))
            case "force":
                for owner in holders:
                    del self.beliefs[lock, owner]
                self._doubt(lock)
                self.others.append(self.perform(lock, ForceRelease()))
            case "advance":
                self.clock.advance(more * 500)
            case "close_gate":
                self.store.gate.clear()
            case "open_gate":
                self.store.gate.set()
            case "fail":
                self.store.fail_updates([MOMENTS[more % 2]])
        for _ in range(more % 4):
            await asyncio.sleep(0)
        self.collect()

    async def _begin(self, lock: LockKey, owner: int, arrived: int, *, waits: bool) -> None:
        task = self.perform(lock, Acquire(digest(owner), TTL_SECONDS), 60_000 if waits else 0)
        request = Request(lock, owner, arrived, task, waits)
        for earlier in self.requests:
            is_taken_over = waits and earlier.waits and not earlier.disconnected and not earlier.task.done()
            if is_taken_over and (earlier.lock, earlier.owner) == (lock, owner):
                request.doubtful = earlier.doubtful  # the acquire of the earlier request may serve it
                request.has_unknown_turn = earlier.doubtful or earlier.has_unknown_turn
                if not request.has_unknown_turn:
                    request.arrived = earlier.arrived
        self.requests.append(request)
        await asyncio.sleep(0)  # the request arrives

    def _doubt(self, lock: LockKey, owner: int | None = None) -> None:
        for one in self.requests:
            if one.lock == lock and not one.collected and owner in (None, one.owner):
                one.doubtful = True

    def collect(self) -> None:
        """Take note of the results."""
        for one in self.requests:
            if one.collected or not one.task.done():
                continue
            one.collected = True
            if one.task.cancelled():
                if not one.waits:
                    self.uncertain.add((one.lock, one.owner))
                continue
            outcome = one.task.result().outcome
            if isinstance(outcome, Granted):
                if not one.doubtful:
                    self.beliefs[one.lock, one.owner] = Belief(outcome.fencing_token, outcome.expires_at_ms)
                if one.waits and outcome.how != "repeated" and not one.has_unknown_turn:
                    self.last_granted[one.lock] = max(one.arrived, self.last_granted.get(one.lock, 0))
            elif isinstance(outcome, LockError) and not one.waits:
                self.uncertain.add((one.lock, one.owner))
            else:
                assert isinstance(outcome, Refused | LockError)

    async def settle(self) -> None:
        """Let everything in progress end, and check the invariants."""
        self.store.gate.set()
        self.store.recover()
        await settled()
        for _ in range(3):
            self.clock.advance(1_000)
            await settled()
        self.collect()
        self.check()

    def check(self) -> None:
        now_ms = self.clock.now_ms()
        for lock in KEYS:
            key = RecordKey("p", lock)
            record = self.store.memory.records.get(key)
            present = [one for one in self.requests if one.lock == lock and not one.task.done()]
            assert self.service.queues.count(key) == len({one.owner for one in present})
            if not blocks_others(record, now_ms):
                assert not present, "a request waits for a free lock"
            else:
                assert isinstance(record, Held)
                owner = int.from_bytes(record.owner_digest[:4])
                known = (
                    (lock, owner) in self.beliefs or (lock, owner) in self.uncertain or self._was_granted(lock, owner)
                )
                assert known, "a lease that no client knows of"
            for (mine, owner), belief in self.beliefs.items():
                if mine == lock and now_ms < belief.expires_at_ms:
                    assert isinstance(record, Held), "a delivered lease is gone"
                    assert (record.owner_digest, record.fencing_token) == (digest(owner), belief.fencing_token)
            overtaken = [one for one in present if one.arrived < self.last_granted.get(lock, 0)]
            assert not overtaken, "a waiter was overtaken"
        assert not self.service.queues._undelivered

    def _was_granted(self, lock: LockKey, owner: int) -> bool:
        """Whether the owner ever received a lease, even if it has released that or got another result since."""
        tasks = [one.task for one in self.requests if (one.lock, one.owner) == (lock, owner) and one.collected]
        return any(not task.cancelled() and isinstance(task.result().outcome, Granted) for task in tasks)


def digest(owner: int) -> bytes:
    return owner.to_bytes(4) * 8


VERBS: Final = (
    ["join"] * 6 + ["release"] * 5 + ["disconnect"] * 3 + ["close_gate"] * 2 + ["open_gate"] * 3 + ["advance"] * 2
    + ["acquire", "take_over", "reconnect", "reconnect", "withdraw", "renew", "force", "fail", "settle"]
)  # fmt: skip
ACTION: Final[Any] = st.tuples(st.sampled_from(VERBS), st.integers(0, 5).map(lambda n: n // 4), st.integers(0, 12))


@settings(max_examples=400, deadline=None)
@given(batches_in_flight=st.integers(1, 2), actions=st.lists(ACTION, min_size=1, max_size=60))
def test_any_order_of_actions_keeps_the_invariants(batches_in_flight: int, actions: list[tuple[str, int, int]]) -> None:
    """WAIT-4, WAIT-5, WAIT-6, WAIT-9."""

    async def run() -> None:
        world = World(batches_in_flight)
        for action in actions:
            await (world.settle() if action[0] == "settle" else world.do(action))
        await world.settle()
        world.clock.advance(TTL_SECONDS * 1_000 + GRACE_MS)
        await world.settle()
        for one in world.requests:
            one.task.cancel()
        await asyncio.gather(*(one.task for one in world.requests), *world.others, return_exceptions=True)
        await world.service.close()
        assert (len(world.service.queues.table), world.service.queues.table.queues) == (0, {})

    asyncio.run(run())
