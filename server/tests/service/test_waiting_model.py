"""Lines under any order of events: joins, hang-ups, releases, lapses, commits that hang or fail, in any order.

Whenever the dust has settled, nobody waits for a free lock, nobody holds one who hung up, whoever was told of a lease
that runs has it, and no one was passed in the line.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Any, Final

from hypothesis import given, settings
from hypothesis import strategies as st

from volcano_locks_server.ports.lock_store import RecordKey
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
from volcano_locks_server.service.lock_service import Denied, LockService, Reply
from volcano_locks_server.testing import ManualClock, When

from .test_waiting import Store, settled

KEYS: Final = (LockKey("a"), LockKey("b"))
MOMENTS: Final[tuple[When, When]] = ("before", "after")
TTL_SECONDS: Final = 20


@dataclass(eq=False)
class Request:
    """One acquire on its way or answered. `arrived` is that of its place: the token's first in this line."""

    lock: LockKey
    owner: int
    arrived: int
    task: "asyncio.Task[Reply]"
    waits: bool
    hung_up: bool = False
    doubtful: bool = False  # something else happened to the lease it may get, before it was answered
    seen: bool = False


@dataclass
class Belief:
    """What an owner was told last of the lease it has."""

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
        self.store = Store(self.clock)
        self.service = LockService(self.store, self.clock, batches_in_flight=self.batches_in_flight)

    def perform(self, lock: LockKey, command: Command, wait_ms: int = 0) -> "asyncio.Task[Reply]":
        return asyncio.create_task(self.service.perform("p", 0, lock, command, wait_ms))

    async def do(self, deed: tuple[str, int, int]) -> None:  # noqa: PLR0912 - one branch a verb
        verb, which, more = deed
        lock = KEYS[which % 2]
        waiting = [one for one in self.requests if one.lock == lock and not one.task.done()]
        holders = [owner for mine, owner in self.beliefs if mine == lock]
        match verb:
            case "join" | "acquire":
                self.owners += 1
                self._begin(lock, self.owners, self.owners, waits=verb == "join")
            case "again" if waiting:
                one = waiting[more % len(waiting)]
                self.owners += 1
                has_place = one.waits and not one.doubtful
                self._begin(lock, one.owner, one.arrived if has_place else self.owners, waits=True)
            case "hang_up" if waiting:
                one = waiting[more % len(waiting)]
                one.task.cancel()
                one.hung_up = True
            case "back" if gone := [one for one in self.requests if one.lock == lock and one.hung_up]:
                self.owners += 1
                self._begin(lock, gone[more % len(gone)].owner, self.owners, waits=more % 2 == 0)
            case "release" if holders:
                owner = holders[more % len(holders)]
                del self.beliefs[lock, owner]
                self._doubt(lock, owner)
                self.others.append(self.perform(lock, Release(digest(owner))))
            case "leave" if waiting:
                one = waiting[more % len(waiting)]
                self.beliefs.pop((lock, one.owner), None)
                self._doubt(lock, one.owner)
                self.others.append(self.perform(lock, Release(digest(one.owner))))
            case "renew" if holders:
                owner = holders[more % len(holders)]
                del self.beliefs[lock, owner]  # how long it has it is uncertain until it is told
                self.uncertain.add((lock, owner))
                self.others.append(self.perform(lock, Renew(digest(owner), TTL_SECONDS)))
            case "force":
                for owner in holders:
                    del self.beliefs[lock, owner]
                self._doubt(lock)
                self.others.append(self.perform(lock, ForceRelease()))
            case "advance":
                self.clock.advance(more * 500)
            case "hold":
                self.store.gate.clear()
            case "let_go":
                self.store.gate.set()
            case "fail":
                self.store.fail_updates([MOMENTS[more % 2]])
        for _ in range(more % 4):
            await asyncio.sleep(0)
        self.hear()

    def _begin(self, lock: LockKey, owner: int, arrived: int, *, waits: bool) -> None:
        task = self.perform(lock, Acquire(digest(owner), TTL_SECONDS), 60_000 if waits else 0)
        self.requests.append(Request(lock, owner, arrived, task, waits))

    def _doubt(self, lock: LockKey, owner: int | None = None) -> None:
        for one in self.requests:
            if one.lock == lock and not one.seen and owner in (None, one.owner):
                one.doubtful = True

    def hear(self) -> None:
        """Take note of what was answered."""
        for one in self.requests:
            if one.seen or not one.task.done():
                continue
            one.seen = True
            if one.task.cancelled():
                if not one.waits:
                    self.uncertain.add((one.lock, one.owner))
                continue
            outcome = one.task.result().outcome
            if isinstance(outcome, Granted):
                if not one.doubtful:
                    self.beliefs[one.lock, one.owner] = Belief(outcome.fencing_token, outcome.expires_at_ms)
                if one.waits:
                    self.last_granted[one.lock] = max(one.arrived, self.last_granted.get(one.lock, 0))
            elif isinstance(outcome, Denied) and not one.waits:
                self.uncertain.add((one.lock, one.owner))
            else:
                assert isinstance(outcome, Refused | Denied)

    async def settle(self) -> None:
        """Let everything end that goes on by itself, and look."""
        self.store.gate.set()
        self.store.recover()
        await settled()
        for _ in range(3):
            self.clock.advance(1_000)
            await settled()
        self.hear()
        self.look()

    def look(self) -> None:
        now_ms = self.clock.now_ms()
        for lock in KEYS:
            key = RecordKey("p", lock)
            record = self.store.memory.records.get(key)
            present = [one for one in self.requests if one.lock == lock and not one.task.done()]
            assert self.service.lines.count(key) == len({one.owner for one in present})
            if not blocks_others(record, now_ms):
                assert not present, "somebody waits for a free lock"
            else:
                assert isinstance(record, Held)
                owner = int.from_bytes(record.owner_digest[:4])
                told = (lock, owner) in self.beliefs or (lock, owner) in self.uncertain or self._was_told(lock, owner)
                assert told, "a lease nobody knows of"
            for (mine, owner), belief in self.beliefs.items():
                if mine == lock and now_ms < belief.expires_at_ms:
                    assert isinstance(record, Held), "a lease that was told is gone"
                    assert (record.owner_digest, record.fencing_token) == (digest(owner), belief.fencing_token)
            passed = [one for one in present if one.arrived < self.last_granted.get(lock, 0)]
            assert not passed, "somebody was passed"
        assert not self.service.lines._owed

    def _was_told(self, lock: LockKey, owner: int) -> bool:
        """Whether the owner heard of its lease once, though it gave it up since or was told something else."""
        tasks = [one.task for one in self.requests if (one.lock, one.owner) == (lock, owner) and one.seen]
        return any(not task.cancelled() and isinstance(task.result().outcome, Granted) for task in tasks)


def digest(owner: int) -> bytes:
    return owner.to_bytes(4) * 8


VERBS: Final = (
    ["join"] * 6 + ["release"] * 5 + ["hang_up"] * 3 + ["hold"] * 2 + ["let_go"] * 3 + ["advance"] * 2
    + ["acquire", "again", "back", "back", "leave", "renew", "force", "fail", "settle"]
)  # fmt: skip
DEED: Final[Any] = st.tuples(st.sampled_from(VERBS), st.integers(0, 5).map(lambda n: n // 4), st.integers(0, 12))


@settings(max_examples=400, deadline=None)
@given(batches_in_flight=st.integers(1, 2), deeds=st.lists(DEED, min_size=1, max_size=60))
def test_any_order_of_events_leaves_the_lines_right(batches_in_flight: int, deeds: list[tuple[str, int, int]]) -> None:
    """WAIT-4, WAIT-5, WAIT-6, WAIT-9."""

    async def story() -> None:
        world = World(batches_in_flight)
        for deed in deeds:
            await (world.settle() if deed[0] == "settle" else world.do(deed))
        await world.settle()
        world.clock.advance(TTL_SECONDS * 1_000 + GRACE_MS)
        await world.settle()
        for one in world.requests:
            one.task.cancel()
        await asyncio.gather(*(one.task for one in world.requests), *world.others, return_exceptions=True)
        await world.service.close()
        assert (world.service.lines._places, world.service.lines._lines) == (0, {})

    asyncio.run(story())
