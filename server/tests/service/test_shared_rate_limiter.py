"""Services that share a quota: together they serve the limit, with few draws, and fail closed (QUOTA-7, QUOTA-8)."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
from testsupport.server_ports import MemoryQuotas
from testsupport.service_requests import Reply, perform

from volcano_locks_server.rules.errors import LockError, StoreUnavailableError
from volcano_locks_server.rules.lease import Acquire, Granted, Read, Release, Renew, State
from volcano_locks_server.rules.quota import Verdict
from volcano_locks_server.rules.values import LockKey
from volcano_locks_server.service import rate_limiter
from volcano_locks_server.service.lock_service import LockService
from volcano_locks_server.service.rate_limiter import SharedRateLimiter
from volcano_locks_server.stores.memory import MemoryStore
from volcano_locks_server.testing import ManualClock

KEY = LockKey("daily-rollup")
ME, OTHER = b"m" * 32, b"o" * 32


class Count(MemoryQuotas):
    """Can be made unavailable (`away`), and its answers can be held back (`gate`)."""

    def __init__(self) -> None:
        super().__init__()
        self.wanted: list[int] = []
        self.away = False
        self.gate = asyncio.Event()
        self.gate.set()

    async def take(self, project_id: str, window_started_at_ms: int, *, limit: int, wanted: int) -> int:
        self.wanted.append(wanted)
        await asyncio.sleep(0)
        await self.gate.wait()
        if self.away:
            raise StoreUnavailableError("away", "the store is away")
        return await super().take(project_id, window_started_at_ms, limit=limit, wanted=wanted)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_800_000_000_000)


@pytest.fixture
def count() -> Count:
    return Count()


@pytest.fixture
async def nodes(clock: ManualClock, count: Count) -> AsyncIterator[Sequence[LockService]]:
    """Three services over one store."""
    store = MemoryStore(clock)
    three = [LockService(store, clock, quotas=count) for _ in range(3)]
    yield three
    for node in three:
        await node.close()


def served(replies: Sequence[Reply]) -> int:
    return sum(not isinstance(reply.outcome, LockError) for reply in replies)


async def test_three_nodes_at_once_serve_no_more_than_the_limit_and_at_least_95_percent_of_it(
    nodes: Sequence[LockService], count: Count
) -> None:
    replies = await asyncio.gather(*(perform(nodes[n % 3], "p", 600, KEY, Read()) for n in range(1_200)))
    assert 570 <= served(replies) <= 600
    one_by_one = [await perform(nodes[0], "q", 600, KEY, Read()) for _ in range(600)]
    assert served(one_by_one) == 600
    assert {reply.outcome.code for reply in replies if isinstance(reply.outcome, LockError)} == {"lock_rate_limited"}


async def test_a_store_write_serves_many_requests(nodes: Sequence[LockService], count: Count) -> None:
    for n in range(900):
        await perform(nodes[n % 3], "p", 600, KEY, Read())
    assert len(count.wanted) <= 600 // 15 + 3


@pytest.mark.real_time
async def test_waiting_requests_share_one_draw(nodes: Sequence[LockService], count: Count) -> None:
    count.gate.clear()
    asking = [asyncio.create_task(perform(nodes[0], "p", 40, KEY, Read())) for _ in range(30)]
    await asyncio.sleep(0.01)
    count.gate.set()
    assert served(await asyncio.gather(*asking)) == 30
    assert len(count.wanted) <= 3, "one for the first request, one for the others"


async def test_the_next_minute_begins_anew(nodes: Sequence[LockService], clock: ManualClock) -> None:
    assert [served([await perform(nodes[0], "p", 1, KEY, Read())]) for _ in range(2)] == [1, 0]
    clock.advance(60_000)
    assert served([await perform(nodes[1], "p", 1, KEY, Read())]) == 1


async def test_an_owner_renews_from_the_reserve_on_any_node(nodes: Sequence[LockService]) -> None:
    """case 7, QUOTA-5: the reserve is shared, too."""
    assert isinstance((await perform(nodes[0], "p", 2, KEY, Acquire(ME, 30))).outcome, Granted)
    await perform(nodes[1], "p", 2, KEY, Read())
    for node in nodes:
        for owner in (OTHER, OTHER, OTHER):
            stranger = await perform(node, "p", 2, KEY, Renew(owner, 30))
            assert isinstance(stranger.outcome, LockError)
            assert stranger.admission.remaining == 0
    owners = [(await perform(node, "p", 2, KEY, Renew(ME, 30))).outcome for node in (*nodes, *nodes)]
    assert 1 <= sum(isinstance(outcome, Granted) for outcome in owners) <= 2


async def test_if_the_store_cannot_count_only_drawn_requests_are_served(
    nodes: Sequence[LockService], count: Count
) -> None:
    """LEASE-16, QUOTA-8."""
    await perform(nodes[0], "p", 80, KEY, Read())
    count.away = True
    assert isinstance((await perform(nodes[0], "p", 80, KEY, Read())).outcome, State), "drawn before"
    for _ in range(2):
        with pytest.raises(StoreUnavailableError) as caught:
            await perform(nodes[0], "p", 80, KEY, Read())
        assert caught.value.cause_code == "away"
    assert isinstance((await perform(nodes[0], "q", 0, KEY, Read())).outcome, State), "no quota, nothing to count"
    count.away = False
    assert isinstance((await perform(nodes[0], "p", 80, KEY, Read())).outcome, State)


@pytest.mark.real_time
async def test_a_draw_that_hangs_is_given_up(clock: ManualClock, count: Count) -> None:
    one = SharedRateLimiter(count, clock, owner_reserve=True, draw_seconds_max=0.5)
    count.gate.clear()
    with pytest.raises(StoreUnavailableError) as caught:
        await one.admit("p", 600, may_draw_on_reserve=False)
    assert caught.value.cause_code == "quota_late"
    count.gate.set()
    await asyncio.sleep(0.02)
    assert (await one.admit("p", 600, may_draw_on_reserve=False)).verdict is Verdict.ADMITTED
    await one.close()


@pytest.mark.real_time
async def test_a_cancelled_request_leaves_the_draw_to_the_others(nodes: Sequence[LockService], count: Count) -> None:
    count.gate.clear()
    first, second = (asyncio.create_task(perform(nodes[0], "p", 600, KEY, Read())) for _ in range(2))
    await asyncio.sleep(0.01)
    first.cancel()
    await asyncio.wait([first])
    count.gate.set()
    assert served([await second]) == 1


@pytest.mark.real_time
async def test_a_service_that_stops_fails_requests_that_wait_for_a_draw(clock: ManualClock, count: Count) -> None:
    service = LockService(MemoryStore(clock), clock, quotas=count)
    count.gate.clear()
    waiting = asyncio.create_task(perform(service, "p", 600, KEY, Release(ME)))
    await asyncio.sleep(0.01)
    await service.close()
    for asked in (waiting, perform(service, "p", 600, KEY, Read())):
        with pytest.raises(StoreUnavailableError) as caught:
            await asked
        assert caught.value.cause_code == "stopping"


async def test_a_bug_in_the_store_fails_requests_that_wait_for_a_draw(clock: ManualClock) -> None:
    class Broken(Count):
        async def take(self, project_id: str, window_started_at_ms: int, *, limit: int, wanted: int) -> int:
            raise ZeroDivisionError

    one = SharedRateLimiter(Broken(), clock, owner_reserve=True)
    with pytest.raises(StoreUnavailableError) as caught:
        await one.admit("p", 600, may_draw_on_reserve=False)
    assert caught.value.cause_code == "store_error"
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


async def test_shares_of_past_minutes_are_forgotten(
    clock: ManualClock, count: Count, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rate_limiter, "WINDOWS_MAX", 3)
    one = SharedRateLimiter(count, clock, owner_reserve=True)
    for project in "abc":
        await one.admit(project, 1, may_draw_on_reserve=False)
    clock.advance(60_000)
    await one.admit("d", 1, may_draw_on_reserve=False)
    assert len(one._shares) == 1
