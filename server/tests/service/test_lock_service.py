"""The lock service: the verdict of the quota, the outcome of the lease, and the result if the store fails."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from testsupport.server_ports import FaultyStore
from testsupport.service_requests import perform

from volcano_locks_server.rules.errors import LockError, StoreUnavailableError
from volcano_locks_server.rules.lease import Acquire, Granted, Read, Refused, Release, Released, Renew, State
from volcano_locks_server.rules.values import LockKey
from volcano_locks_server.service import rate_limiter
from volcano_locks_server.service.lock_service import LockService
from volcano_locks_server.stores.memory import MemoryStore
from volcano_locks_server.testing import ManualClock

KEY = LockKey("daily-rollup")
ME, OTHER = b"m" * 32, b"o" * 32


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_800_000_000_000)


@pytest.fixture
async def service(clock: ManualClock) -> AsyncIterator[LockService]:
    one = LockService(MemoryStore(clock), clock)
    yield one
    await one.close()


async def test_sixty_four_racing_acquires_have_one_winner(service: LockService) -> None:
    """LEASE-6."""
    replies = await asyncio.gather(*(perform(service, "p", 0, KEY, Acquire(bytes([n]) * 32, 30)) for n in range(64)))
    outcomes = [reply.outcome for reply in replies]
    assert sum(isinstance(outcome, Granted) for outcome in outcomes) == 1
    assert sum(isinstance(outcome, Refused) and outcome.code == "lock_held" for outcome in outcomes) == 63


async def test_projects_do_not_see_each_other_s_locks(service: LockService) -> None:
    for project in ("p", "q"):
        assert isinstance((await perform(service, project, 0, KEY, Acquire(ME, 30))).outcome, Granted)


async def test_each_reply_carries_the_quota(service: LockService) -> None:
    remaining = [(await perform(service, "p", 3, KEY, Read())).admission.remaining for _ in range(3)]
    assert remaining == [2, 1, 0]
    reply = await perform(service, "p", 3, KEY, Read())
    assert isinstance(reply.outcome, LockError)
    assert reply.outcome.code == "lock_rate_limited"
    assert reply.outcome.retry_after_seconds == reply.admission.retry_after_seconds
    assert isinstance((await perform(service, "q", 3, KEY, Read())).outcome, State)


async def test_a_stampede_does_not_cost_the_holder_its_lease(service: LockService) -> None:
    """case 7: the owner renews and releases from the reserve; other tokens get 429 and use none of it."""
    assert isinstance((await perform(service, "p", 3, KEY, Acquire(ME, 30))).outcome, Granted)
    for _ in range(10):
        await perform(service, "p", 3, KEY, Acquire(OTHER, 30))
    for _ in range(10):
        stranger = await perform(service, "p", 3, KEY, Renew(OTHER, 30))
        assert isinstance(stranger.outcome, LockError)
        assert stranger.outcome.code == "lock_rate_limited"
    assert isinstance((await perform(service, "p", 3, KEY, Renew(ME, 30))).outcome, Granted)
    assert isinstance((await perform(service, "p", 3, KEY, Renew(ME, 30))).outcome, Granted)
    assert isinstance((await perform(service, "p", 3, KEY, Release(ME))).outcome, Released)
    again = await perform(service, "p", 3, KEY, Release(ME))
    assert isinstance(again.outcome, LockError)


async def test_the_reserve_can_be_switched_off(clock: ManualClock) -> None:
    service = LockService(MemoryStore(clock), clock, owner_reserve=False)
    assert isinstance((await perform(service, "p", 1, KEY, Acquire(ME, 30))).outcome, Granted)
    assert isinstance((await perform(service, "p", 1, KEY, Renew(ME, 30))).outcome, LockError)
    await service.close()


async def test_the_reserve_is_bounded_even_for_concurrent_owners(service: LockService) -> None:
    await perform(service, "p", 5, KEY, Acquire(ME, 30))
    replies = await asyncio.gather(*(perform(service, "p", 5, KEY, Renew(ME, 30)) for _ in range(40)))
    assert sum(isinstance(reply.outcome, Granted) for reply in replies) == 4 + 5


def test_windows_of_past_minutes_are_forgotten(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_limiter, "WINDOWS_MAX", 3)
    one = rate_limiter.LocalRateLimiter(clock, owner_reserve=True)
    for project in "abc":
        one.admit_now(project, 1, may_draw_on_reserve=False)
    clock.advance(60_000)
    one.admit_now("d", 1, may_draw_on_reserve=False)
    assert len(one._windows) == 1


async def test_a_store_failure_returns_unavailable_and_carries_the_quota(clock: ManualClock) -> None:
    """LEASE-16."""
    store = FaultyStore(MemoryStore(clock))
    store.failure = StoreUnavailableError("disk_full", "the disk is full")
    service = LockService(store, clock)
    reply = await perform(service, "p", 3, KEY, Acquire(ME, 30))
    assert isinstance(reply.outcome, StoreUnavailableError)
    assert (reply.outcome.code, reply.outcome.cause_code) == ("lock_service_unavailable", "disk_full")
    assert reply.admission.remaining == 2
    await service.close()


async def test_a_store_failure_uses_none_of_the_owners_reserve(clock: ManualClock) -> None:
    """QUOTA-5: no token proved its ownership during the outage, so the whole reserve is left afterwards."""
    store = FaultyStore(MemoryStore(clock))
    service = LockService(store, clock)
    await perform(service, "p", 1, KEY, Acquire(ME, 30))
    store.failure = StoreUnavailableError("disk_full", "the disk is full")
    for owner in (OTHER, OTHER, ME):
        reply = await perform(service, "p", 1, KEY, Renew(owner, 30))
        assert isinstance(reply.outcome, LockError)
        assert reply.outcome.code == "lock_service_unavailable"
    store.failure = None
    assert isinstance((await perform(service, "p", 1, KEY, Renew(ME, 30))).outcome, Granted)
    await service.close()
