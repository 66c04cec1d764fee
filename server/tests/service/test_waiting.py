"""Waiting in line: in order, woken by whatever frees the lock, and nobody holds who hung up (WAIT rules).

The store's commits can be held at a gate, so that each race is played out on purpose.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from volcano_locks_server.ports.lock_store import RecordKey, Step
from volcano_locks_server.queue import fairness, recheck, wait_queue
from volcano_locks_server.rules.lease import (
    Acquire,
    ForceRelease,
    Free,
    Granted,
    Held,
    Outcome,
    Read,
    Refused,
    Release,
    Renew,
    State,
)
from volcano_locks_server.rules.values import LockKey
from volcano_locks_server.service.lock_service import Denied, LockService, Reply
from volcano_locks_server.stores.memory import MemoryStore
from volcano_locks_server.testing import FaultyStore, ManualClock, When

KEY = LockKey("daily-rollup")
LOCK = RecordKey("p", KEY)
Told = Outcome | Denied


class Store(FaultyStore):
    """A memory store whose updates can be held at a gate after they are written, and can fail."""

    def __init__(self, clock: ManualClock) -> None:
        self.memory = MemoryStore(clock)
        super().__init__(self.memory, gate_at="after")

    @property
    def holder(self) -> int | None:
        """Whose the lock is, by the number of its owner."""
        record = self.memory.records.get(LOCK)
        return record.owner_digest[0] if isinstance(record, Held) else None


class House:
    """A service over that store, and the words for the stories below. Owners are numbers."""

    def __init__(self, clock: ManualClock, **how: object) -> None:
        self.clock = clock
        self.store = Store(clock)
        self.service = LockService(self.store, clock, **how)  # type: ignore[arg-type]
        self.waiting: list[asyncio.Task[Reply]] = []

    async def ask(self, command: Acquire | Renew | Release | ForceRelease | Read, wait_ms: int = 0) -> Told:
        return (await self.service.perform("p", 0, KEY, command, wait_ms)).outcome

    async def acquire(self, owner: int, ttl_seconds: int = 30) -> Told:
        return await self.ask(Acquire(digest(owner), ttl_seconds))

    async def release(self, owner: int) -> Told:
        return await self.ask(Release(digest(owner)))

    async def wait(self, owner: int, wait_ms: int = 20_000, ttl_seconds: int = 30) -> "asyncio.Task[Told]":
        task = asyncio.create_task(self.ask(Acquire(digest(owner), ttl_seconds), wait_ms))
        await settled()
        return task

    async def advance(self, ms: int) -> None:
        self.clock.advance(ms)
        await settled()

    @property
    def count(self) -> int:
        return self.service.lines.count(LOCK)


def digest(owner: int) -> bytes:
    return bytes([owner]) * 32


async def settled() -> None:
    for _ in range(40):
        await asyncio.sleep(0)


async def soon(task: "asyncio.Task[Told]") -> Told:
    """What a waiter is told, without waiting for ever where nobody tells it anything."""
    await settled()
    assert task.done(), "it still waits"
    return task.result()


def granted(told: Told) -> bool:
    return isinstance(told, Granted)


def code(told: Told) -> str:
    assert isinstance(told, Refused | Denied), told
    return told.code


@pytest.fixture
async def house() -> AsyncIterator[House]:
    one = House(ManualClock())
    yield one
    one.store.gate.set()
    await one.service.close()
    left = one.service.lines
    assert (left.present, left._places, left._lines, len(left._owed)) == (0, 0, {}, 0)


async def test_what_can_be_answered_at_once_is(house: House) -> None:
    """WAIT-2: a free lock, a repeat, a lapsing lease of one's own, a retired token."""
    first = await house.ask(Acquire(digest(1), 30), 20_000)
    assert isinstance(first, Granted)
    again = await house.ask(Acquire(digest(1), 30), 20_000)
    assert isinstance(again, Granted)
    assert (again.how, again.fencing_token) == ("repeated", first.fencing_token)
    await house.advance(29_500)
    assert code(await house.ask(Acquire(digest(1), 30), 20_000)) == "lock_ownership_lost"
    await house.release(1)
    assert code(await house.ask(Acquire(digest(1), 30), 20_000)) == "lock_ownership_lost"
    assert house.count == 0


async def test_the_lock_goes_to_those_who_wait_in_the_order_they_came(house: House) -> None:
    """WAIT-4: each release is the next one's grant, and the fencing token rises."""
    await house.acquire(1)
    waiting = [await house.wait(owner) for owner in (2, 3, 4)]
    assert house.count == 3
    tokens = []
    for owner, task in zip((1, 2, 3), waiting, strict=True):
        await house.release(owner)
        await settled()
        told = task.result()
        assert isinstance(told, Granted)
        tokens.append(told.fencing_token)
    assert tokens == sorted(set(tokens))
    assert house.count == 0


async def test_a_release_and_the_next_grant_are_one_commit(house: House) -> None:
    """WAIT-4."""
    await house.acquire(1)
    waiting = await house.wait(2)
    before = house.store.calls["update"]
    await house.release(1)
    assert granted(await soon(waiting))
    assert house.store.calls["update"] == before + 1


async def test_a_force_release_serves_the_line_too(house: House) -> None:
    """WAIT-4: and the one forced out does not come back."""
    await house.acquire(1)
    waiting = await house.wait(2)
    await house.ask(ForceRelease())
    assert granted(await soon(waiting))
    assert code(await house.ask(Renew(digest(1), 30))) == "lock_ownership_lost"


async def test_nobody_passes_those_who_wait(house: House) -> None:
    """WAIT-4: an acquire without a wait, in the same batch as the release or in the next."""
    await house.acquire(1)
    waiting = await house.wait(2)
    house.store.gate.clear()
    reading = asyncio.create_task(house.ask(Read()))
    await settled()
    both = [asyncio.create_task(house.release(1)), asyncio.create_task(house.acquire(9))]
    await settled()
    house.store.gate.set()
    await reading
    _, stranger = await asyncio.gather(*both)
    assert code(stranger) == "lock_held"
    assert granted(await soon(waiting))


async def test_the_first_in_line_has_the_lock_when_grace_is_over(house: House) -> None:
    """WAIT-4, LEASE-7: by a timer, which a renewal moves; nothing is looked at meanwhile."""
    await house.acquire(1, ttl_seconds=10)
    waiting = await house.wait(2, 60_000)
    await house.advance(5_000)
    await house.ask(Renew(digest(1), 10))
    before = house.store.calls["update"]
    await house.advance(10_999)
    assert not waiting.done()
    assert house.store.calls["update"] == before
    await house.advance(1)
    told = waiting.result()
    assert isinstance(told, Granted)
    assert told.how == "taken_over"
    assert told.expires_at_ms == house.clock.now_ms() + 30_000  # WAIT-3: its time begins now


async def test_a_shorter_renewal_brings_the_grant_nearer(house: House) -> None:
    """LEASE-8, WAIT-4."""
    await house.acquire(1, ttl_seconds=60)
    waiting = await house.wait(2, 50_000)
    await house.ask(Renew(digest(1), 5))
    await house.advance(6_000)
    assert granted(waiting.result())


async def test_a_wait_ends_in_time_and_its_place_is_kept(house: House) -> None:
    """WAIT-1, WAIT-6: absent it is passed over, back it is first again."""
    await house.acquire(1)
    first = await house.wait(2, 1_500)
    second = await house.wait(3)
    await house.advance(1_499)
    assert not first.done()
    await house.advance(1)
    assert code(first.result()) == "lock_held"
    assert house.count == 1
    await house.advance(4_999)
    first = await house.wait(2)
    await house.release(1)
    assert granted(await soon(first))
    assert not second.done()
    await house.release(2)
    assert granted(await soon(second))


async def test_who_is_absent_is_passed_over_and_keeps_the_place(house: House) -> None:
    """WAIT-6."""
    await house.acquire(1)
    first = await house.wait(2, 1_000)
    second, third = await house.wait(3), await house.wait(4)
    await house.advance(1_000)
    assert code(first.result()) == "lock_held"
    await house.release(1)
    assert granted(await soon(second))
    first = await house.wait(2)
    await house.release(3)
    assert granted(await soon(first))
    assert not third.done()
    third.cancel()


async def test_a_place_is_not_kept_for_ever(house: House) -> None:
    """WAIT-6."""
    await house.acquire(1)
    first = await house.wait(2, 1_000)
    second = await house.wait(3)
    await house.advance(1_000)
    assert code(first.result()) == "lock_held"
    await house.advance(5_000)
    first = await house.wait(2)
    await house.release(1)
    assert granted(await soon(second))
    first.cancel()


async def test_the_same_token_takes_its_own_place_over(house: House) -> None:
    """WAIT-6: the earlier request hears lock_held, and the place stays the first."""
    await house.acquire(1)
    earlier = await house.wait(2)
    other = await house.wait(3)
    later = await house.wait(2)
    assert code(earlier.result()) == "lock_held"
    assert house.count == 2
    await house.release(1)
    assert granted(await soon(later))
    assert not other.done()
    other.cancel()


async def test_a_token_that_waits_and_asks_without_waiting_is_one_owner(house: House) -> None:
    """WAIT-4, LEASE-4: its place is served first, then it repeats what it has."""
    await house.acquire(1)
    waiting = await house.wait(2)
    assert code(await house.acquire(2)) == "lock_held"
    house.store.gate.clear()
    reading = asyncio.create_task(house.ask(Read()))
    await settled()
    both = [asyncio.create_task(house.release(1)), asyncio.create_task(house.acquire(2))]
    await settled()
    house.store.gate.set()
    await reading
    _, direct = await asyncio.gather(*both)
    told = await soon(waiting)
    assert isinstance(direct, Granted)
    assert isinstance(told, Granted)
    assert direct.fencing_token == told.fencing_token


async def test_who_hangs_up_has_left_the_line(house: House) -> None:
    """WAIT-5."""
    await house.acquire(1)
    gone, stays = await house.wait(2), await house.wait(3)
    gone.cancel()
    await settled()
    assert house.count == 1
    await house.release(1)
    assert granted(await soon(stays))


@pytest.mark.parametrize("moment", ["parked", "committing", "granted"])
async def test_a_grant_on_its_way_to_somebody_who_hangs_up_is_given_back(house: House, moment: str) -> None:
    """WAIT-5: in the next commit, which grants the lock to the next in line; the token is not spent."""
    await house.acquire(1)
    gone, stays = await house.wait(2), await house.wait(3)
    house.store.gate.clear()
    if moment == "parked":
        reading = asyncio.create_task(house.ask(Read()))
        await settled()
        gone.cancel()
    releasing = asyncio.create_task(house.release(1))
    await settled()
    if moment == "committing":
        gone.cancel()
        await settled()
    house.store.gate.set()
    if moment == "granted":
        while house.store.holder != 2 or house.store.at_gate:
            await asyncio.sleep(0)
        gone.cancel()
    await releasing
    if moment == "parked":
        await reading
    assert granted(await soon(stays))
    assert house.store.holder == 3
    again = await house.wait(2)
    await house.release(3)
    assert granted(await soon(again))


@pytest.mark.parametrize("later", range(12))
async def test_at_no_moment_does_a_hang_up_keep_the_grant(house: House, later: int) -> None:
    """WAIT-5: so many turns of the event loop after the commit is let go."""
    await house.acquire(1)
    gone, stays = await house.wait(2), await house.wait(3)
    house.store.gate.clear()
    releasing = asyncio.create_task(house.release(1))
    await settled()
    house.store.gate.set()
    for _ in range(later):
        await asyncio.sleep(0)
    gone.cancel()
    await releasing
    await settled()
    if gone.cancelled():
        assert granted(await soon(stays))
        assert house.store.holder == 3
    else:  # it had heard of its grant
        assert granted(gone.result())
        assert house.store.holder == 2
        stays.cancel()


@pytest.mark.parametrize("wait_ms", [0, 20_000])
async def test_who_comes_back_in_the_very_commit_of_the_grant_keeps_it(house: House, wait_ms: int) -> None:
    """WAIT-5, LEASE-4."""
    await house.acquire(1)
    gone = await house.wait(2)
    house.store.gate.clear()
    reading = asyncio.create_task(house.ask(Read()))
    await settled()
    asked = [house.release(1), house.ask(Acquire(digest(2), 30), wait_ms)]
    releasing, back = [asyncio.create_task(one) for one in asked]
    await settled()
    house.store.let_through(1)
    await reading
    await settled()
    gone.cancel()
    await settled()
    house.store.gate.set()
    await releasing
    assert granted(await soon(back))
    assert house.store.holder == 2


async def test_a_lease_that_was_told_is_not_taken_back_from_a_repeat_that_hangs_up(house: House) -> None:
    """WAIT-5, LEASE-4: its bearer knows of it."""
    assert granted(await house.acquire(1))
    house.store.gate.clear()
    again = await house.wait(1)
    again.cancel()
    house.store.gate.set()
    await settled()
    assert house.store.holder == 1


async def test_what_could_not_be_given_back_is_left_to_a_bearer_who_came_back(house: House) -> None:
    """WAIT-5: the giving back that is tried again later ends nothing that was told meanwhile."""
    await house.acquire(1)
    gone = await house.wait(2)
    house.store.gate.clear()
    releasing = asyncio.create_task(house.release(1))
    await settled()
    gone.cancel()
    house.store.fail_updates(["before"])
    house.store.gate.set()
    await releasing
    await settled()
    assert granted(await house.acquire(2))
    await house.advance(1_000)
    assert house.store.holder == 2


async def test_a_failed_commit_grants_nothing_for_good_to_somebody_who_hung_up_during_it(house: House) -> None:
    """WAIT-5, WAIT-9."""
    await house.acquire(1)
    gone = await house.wait(2)
    house.store.gate.clear()
    house.store.fail_updates(["after"])
    releasing = asyncio.create_task(house.release(1))
    await settled()
    gone.cancel()
    await settled()
    assert house.store.holder == 2
    house.store.gate.set()
    assert code(await releasing) == "lock_service_unavailable"
    await house.advance(1_000)
    assert house.store.holder is None


async def test_a_first_acquire_that_hangs_up_in_its_commit_keeps_nothing(house: House) -> None:
    """WAIT-5: also where nobody else waits."""
    house.store.gate.clear()
    gone = await house.wait(2)
    assert house.store.holder == 2
    gone.cancel()
    house.store.gate.set()
    await settled()
    assert house.store.holder is None
    assert granted(await house.acquire(2))


async def test_who_comes_back_during_the_commit_gets_the_grant_that_was_on_its_way(house: House) -> None:
    """WAIT-5, WAIT-6: the same token is the same acquisition, and nobody takes its lease away."""
    await house.acquire(1)
    gone = await house.wait(2)
    house.store.gate.clear()
    releasing = asyncio.create_task(house.release(1))
    await settled()
    gone.cancel()
    await settled()
    back = await house.wait(2)
    house.store.gate.set()
    await releasing
    assert granted(await soon(back))
    await settled()
    assert house.store.holder == 2


@pytest.mark.parametrize("wait_ms", [0, 20_000])
async def test_who_comes_back_before_the_giving_back_keeps_the_lease(house: House, wait_ms: int) -> None:
    """WAIT-5, LEASE-4: what was repeated is not given back, in the very millisecond too."""
    await house.acquire(1)
    gone = await house.wait(2)
    house.store.gate.clear()
    releasing = asyncio.create_task(house.release(1))
    await settled()
    back = asyncio.create_task(house.ask(Acquire(digest(2), 30), wait_ms))  # parked behind the release
    await settled()
    gone.cancel()
    await settled()
    house.store.gate.set()
    await releasing
    assert granted(await soon(back))
    await settled()
    assert house.store.holder == 2


async def test_a_release_with_a_waiting_token_takes_it_out_of_the_line(house: House) -> None:
    """WAIT-5, LEASE-9: the release itself is judged as any other."""
    await house.acquire(1)
    gone, stays = await house.wait(2), await house.wait(3)
    assert code(await house.release(2)) == "lock_ownership_lost"
    assert code(await soon(gone)) == "lock_ownership_lost"
    await house.release(1)
    assert granted(await soon(stays))


async def test_a_release_overtakes_the_grant_of_its_own_token(house: House) -> None:
    """WAIT-5: whichever comes first, the lock ends free for the next in line."""
    await house.acquire(1)
    gone, stays = await house.wait(2), await house.wait(3)
    house.store.gate.clear()
    releasing = asyncio.create_task(house.release(1))
    await settled()
    leaving = asyncio.create_task(house.release(2))
    await settled()
    house.store.gate.set()
    await releasing
    await leaving
    assert code(await soon(gone)) == "lock_ownership_lost"
    assert granted(await soon(stays))
    assert house.store.holder == 3


async def test_a_retired_token_at_the_head_holds_nobody_up(house: House) -> None:
    """WAIT-2, LEASE-11: forced out and back in line, it hears so when it is its turn, and the next one is served."""
    await house.acquire(1)
    house.store.gate.clear()
    forcing = asyncio.create_task(house.ask(ForceRelease()))
    await settled()
    waiting = [await house.wait(owner) for owner in (1, 2)]
    house.store.gate.set()
    await forcing
    assert code(await soon(waiting[0])) == "lock_ownership_lost"
    assert granted(await soon(waiting[1]))


async def test_there_are_bounds(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """WAIT-7: kept places count, and one's own is no new one."""
    monkeypatch.setattr(wait_queue, "WAITERS_PER_LOCK_MAX", 2)
    monkeypatch.setattr(wait_queue, "WAITERS_MAX", 3)
    await house.acquire(1)
    waiting = [await house.wait(2, 1_000), await house.wait(3)]
    await house.advance(1_000)
    refused = await house.ask(Acquire(digest(4), 30), 20_000)
    assert isinstance(refused, Denied)
    assert (refused.code, refused.retry_after_seconds) == ("too_many_waiters", 1)
    waiting.append(await house.wait(2))
    other = LockKey("other")
    await house.service.perform("p", 0, other, Acquire(digest(1), 30))
    last = asyncio.create_task(house.service.perform("p", 0, other, Acquire(digest(5), 30), 20_000))
    await settled()
    full = await house.service.perform("p", 0, LockKey("third"), Acquire(digest(6), 30), 20_000)
    assert isinstance(full.outcome, Denied)
    assert full.outcome.code == "lock_service_unavailable"
    await house.advance(11_000)
    for task in (*waiting, last):
        task.cancel()


async def test_a_stop_answers_all_who_wait_at_once(house: House) -> None:
    """WAIT-8: and who is being granted the lock at that moment hears of it."""
    await house.acquire(1)
    first, second = await house.wait(2), await house.wait(3)
    house.store.gate.clear()
    releasing = asyncio.create_task(house.release(1))
    await settled()
    house.service.stop_waiting()
    late = await house.ask(Acquire(digest(4), 30), 20_000)
    assert code(late) == "lock_service_unavailable"
    house.store.gate.set()
    await releasing
    assert granted(await soon(first))
    assert code(await soon(second)) == "lock_service_unavailable"
    assert house.count == 0


async def test_a_stop_waits_for_no_commit_of_another_lock(house: House) -> None:
    """WAIT-8."""
    await house.acquire(1)
    waiting = await house.wait(2)
    house.service.stop_waiting()
    await settled()
    assert code(waiting.result()) == "lock_service_unavailable"


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_release_whose_commit_fails_wakes_the_line_all_the_same(house: House, moment: When) -> None:
    """WAIT-9: whether it was done is found out by looking again."""
    await house.acquire(1)
    waiting = await house.wait(2)
    house.store.fail_updates([moment])
    assert code(await house.release(1)) == "lock_service_unavailable"
    await house.advance(1_000)
    if moment == "before":
        assert not waiting.done()
        await house.release(1)
    told = await soon(waiting)
    assert isinstance(told, Granted)
    assert house.store.holder == 2


async def test_the_line_is_looked_at_less_and_less_often_while_the_store_is_away(house: House) -> None:
    """WAIT-9: at most a second apart."""
    await house.acquire(1)
    waiting = await house.wait(2, 60_000)
    house.store.fail_updates(["before"] * 1_000)
    assert code(await house.release(1)) == "lock_service_unavailable"
    before = house.store.calls["update"]
    for _ in range(200):
        await house.advance(50)
    assert 10 <= house.store.calls["update"] - before <= 16
    house.store.recover()
    assert granted(await house.release(1)) is False
    assert granted(await soon(waiting))


async def test_a_wait_that_ends_while_the_grant_is_uncertain_is_told_so(house: House) -> None:
    """WAIT-9: and the token finds what it has when it asks again."""
    await house.acquire(1)
    waiting = await house.wait(2, 1_000)
    house.store.fail_updates(["after", *["before"] * 30])
    assert code(await house.release(1)) == "lock_service_unavailable"
    assert house.store.holder == 2
    await house.advance(1_000)
    assert code(waiting.result()) == "lock_service_unavailable"
    house.store.recover()
    assert granted(await house.acquire(2))
    await house.advance(3_000)
    assert house.store.holder == 2


async def test_an_uncertain_grant_of_somebody_who_is_gone_is_given_back(house: House) -> None:
    """WAIT-5, WAIT-9: as soon as the store is there again."""
    await house.acquire(1)
    gone = await house.wait(2)
    house.store.fail_updates(["after", *["before"] * 3])
    assert code(await house.release(1)) == "lock_service_unavailable"
    gone.cancel()
    await settled()
    assert house.store.holder == 2
    for _ in range(6):
        await house.advance(1_000)
    assert house.store.holder is None


async def test_an_uncertain_grant_that_is_found_is_given_back_if_its_bearer_hangs_up_then(house: House) -> None:
    """WAIT-5, WAIT-9."""
    await house.acquire(1)
    gone = await house.wait(2)
    house.store.fail_updates(["after"])
    assert code(await house.release(1)) == "lock_service_unavailable"
    house.store.gate.clear()
    await house.advance(100)
    assert house.store.at_gate
    gone.cancel()
    house.store.gate.set()
    await settled()
    await house.advance(1_000)
    assert house.store.holder is None


async def test_a_first_acquire_that_fails_is_answered_as_without_a_wait(house: House) -> None:
    """WAIT-2, LEASE-16: but a grant that nobody heard of does not stay."""
    house.store.fail_updates(["after"])
    assert code(await house.ask(Acquire(digest(2), 30), 20_000)) == "lock_service_unavailable"
    await house.advance(1_000)
    assert house.store.holder is None


async def test_a_wait_that_ends_during_a_commit_hears_what_came_of_it(house: House) -> None:
    """WAIT-9."""
    await house.acquire(1)
    first, second = await house.wait(2, 1_000), await house.wait(3, 1_000)
    house.store.gate.clear()
    releasing = asyncio.create_task(house.release(1))
    await settled()
    await house.advance(1_000)
    assert not first.done()
    house.store.gate.set()
    await releasing
    assert granted(await soon(first))
    assert code(await soon(second)) == "lock_held"


@pytest.mark.real_time
async def test_a_commit_that_hangs_keeps_nobody_past_the_end_of_the_wait(house: House) -> None:
    """WAIT-9, LEASE-16: and what it grants at last is given back, or found by whoever asks again."""
    house.service._commit._commit_seconds_max = 0.05  # type: ignore[misc]
    house.service._commit._watch_seconds = 0.01  # type: ignore[misc]
    await house.acquire(1)
    first = await house.wait(2, 1_000)
    house.store.gate.clear()
    assert code(await house.release(1)) == "lock_service_unavailable"
    house.clock.advance(1_000)
    assert code(await asyncio.wait_for(first, 30)) == "lock_service_unavailable"
    assert house.store.holder == 2
    house.store.gate.set()
    await settled()
    assert house.store.holder is None


async def test_a_grant_that_took_too_long_is_not_told(house: House) -> None:
    """WAIT-3: no more than the margin is left of it when it could be answered."""
    await house.acquire(1)
    waiting = await house.wait(2, 60_000, ttl_seconds=5)
    house.store.gate.clear()
    releasing = asyncio.create_task(house.release(1))
    await settled()
    house.clock.advance(4_000)
    house.store.gate.set()
    await releasing
    assert code(await soon(waiting)) == "lock_service_unavailable"
    await settled()
    assert house.store.holder is None


async def test_a_lock_freed_elsewhere_is_noticed(house: House) -> None:
    """WAIT-10: when another node says so; and without a word where there may be other nodes."""
    await house.acquire(1)
    waiting = await house.wait(2)
    free_elsewhere(house)
    await house.advance(10_000)
    assert not waiting.done(), "one process alone looks at nothing"
    house.service.lines.look(LOCK)
    assert granted(await soon(waiting))


async def test_a_lock_freed_elsewhere_is_not_for_passers_by(house: House) -> None:
    """WAIT-4: the first command that finds it free finds that the first in line has it."""
    await house.acquire(1)
    waiting = await house.wait(2)
    free_elsewhere(house)
    assert code(await house.acquire(9)) == "lock_held"
    assert granted(await soon(waiting))


async def test_nodes_look_again_without_a_word() -> None:
    """WAIT-10: all lines in one batch, every LOOK_SECONDS_MAX, and not at all when nobody waits."""
    house = House(ManualClock(), several_nodes=True)
    await house.acquire(1)
    waiting = await house.wait(2)
    free_elsewhere(house)
    await house.advance(recheck.LOOK_SECONDS_MAX * 1_000)
    assert granted(waiting.result())
    await house.advance(recheck.LOOK_SECONDS_MAX * 1_000)
    before = house.store.calls["update"]
    for _ in range(5):
        await house.advance(recheck.LOOK_SECONDS_MAX * 1_000)
    assert house.store.calls["update"] == before
    await house.service.close()


async def test_a_node_leaves_the_lock_to_others_who_wait(house: House) -> None:
    """WAIT-10: after HANDOFFS_IN_A_ROW_MAX grants, for YIELD_MS; then it goes on if nobody came."""
    house.service.lines.sharing.others_wait = lambda _key: True
    await house.acquire(1)
    waiting = {owner: await house.wait(owner, 60_000) for owner in range(2, 14)}
    for owner in range(1, 1 + fairness.HANDOFFS_IN_A_ROW_MAX):
        await house.release(owner)
        assert granted(await soon(waiting[owner + 1]))
    await house.release(1 + fairness.HANDOFFS_IN_A_ROW_MAX)
    await settled()
    assert house.store.holder is None
    assert code(await house.acquire(99)) == "lock_held", "left to others is not free to passers-by"
    await house.advance(fairness.YIELD_MS - 1)
    assert house.store.holder is None
    await house.advance(1)
    assert granted(await soon(waiting[2 + fairness.HANDOFFS_IN_A_ROW_MAX]))
    for task in waiting.values():
        task.cancel()


async def test_of_many_locks_that_others_wait_for_little_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """WAIT-10: names of locks that never come again do not fill the memory; the latest are known."""
    monkeypatch.setattr(fairness, "LOCKS_MAX", 2)
    house = House(ManualClock())
    share = house.service.lines.sharing
    share.others_wait = lambda _key: True
    for number in range(5):
        await house.service.perform("p", 0, LockKey(f"job-{number}"), Acquire(digest(1), 30), 1_000)
    assert [key.key for key in share._in_a_row] == ["job-3", "job-4"]
    await house.service.close()


async def test_what_others_are_told_of_a_line(house: House) -> None:
    """WAIT-11 and the events: who joined and who left, and why; not who never had to wait."""
    told: list[tuple[str, ...]] = []
    house.service.lines.on_joined = lambda key, holder: told.append(("joined", key.key, str(holder)))
    house.service.lines.on_left = lambda key, holder, why: told.append(("left", key.key, str(holder), why))
    await house.ask(Acquire(digest(1), 30, "one"), 1_000)
    assert told == []
    tasks = [asyncio.create_task(house.ask(Acquire(digest(n), 30, str(n)), 20_000)) for n in (2, 3)]
    await settled()
    await house.release(1)
    tasks[1].cancel()
    await settled()
    joined = [("joined", str(KEY), "2"), ("joined", str(KEY), "3")]
    assert told == [*joined, ("left", str(KEY), "2", "granted"), ("left", str(KEY), "3", "gave_up")]


async def test_a_step_that_is_disturbed_may_run_again(house: House) -> None:
    """WAIT-4: what an earlier run granted counts for nothing."""
    await house.acquire(1)
    first, second = await house.wait(2), await house.wait(3)
    plain = house.store.update

    async def disturbed(keys: Sequence[RecordKey], step: Step) -> Sequence[object]:
        now_ms = house.clock.now_ms()
        step(dict.fromkeys(keys), now_ms)
        step({key: house.store.memory.records.get(key) for key in keys}, now_ms)
        return await plain(keys, step)

    house.store.update = disturbed  # type: ignore[method-assign]
    await house.release(1)
    assert granted(await soon(first))
    assert not second.done()
    await house.release(2)
    assert granted(await soon(second))


async def test_the_quota_counts_one_request(house: House) -> None:
    """WAIT-1, QUOTA-4: on arrival; a spent quota lets nobody wait."""
    await house.service.perform("p", 2, KEY, Acquire(digest(1), 30))
    waiting = asyncio.create_task(house.service.perform("p", 2, KEY, Acquire(digest(2), 30), 1_000))
    await settled()
    spent = await house.service.perform("p", 2, KEY, Acquire(digest(3), 30), 1_000)
    assert code(spent.outcome) == "lock_rate_limited"
    await house.advance(1_000)
    reply = await asyncio.wait_for(waiting, 30)
    assert code(reply.outcome) == "lock_held"
    assert reply.admission.remaining == 0


async def test_reads_see_the_new_holder(house: House) -> None:
    """LEASE-12."""
    await house.acquire(1)
    waiting = await house.wait(2)
    await house.release(1)
    await waiting
    state = await house.ask(Read())
    assert isinstance(state, State)
    assert state.lease is not None
    assert state.lease.owner_digest == digest(2)


def free_elsewhere(house: House) -> None:
    """Another node released the lock."""
    record = house.store.memory.records[LOCK]
    house.store.memory.records[LOCK] = Free(record.fencing_token, house.clock.now_ms())
