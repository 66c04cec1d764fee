"""The quota as callers see it: what counts, what every answer tells, and the owners' reserve."""

from collections.abc import AsyncIterator

import httpx2
import pytest

from volcano_locks_server.http.app import App
from volcano_locks_server.http.auth import Authenticator
from volcano_locks_server.rules.errors import StoreUnavailableError
from volcano_locks_server.service.lock_service import LockService
from volcano_locks_server.testing import MemoryQuotas

from .conftest import House, new_token, problem


def told(answer: object) -> tuple[int, int, int]:
    headers = answer.headers  # type: ignore[attr-defined]
    return tuple(int(headers[f"x-ratelimit-{name}"]) for name in ("limit", "remaining", "reset"))  # type: ignore[return-value]


async def test_every_counted_answer_tells_the_quota(house: House) -> None:
    """QUOTA-1, QUOTA-2, QUOTA-3: granted, refused and malformed requests count alike."""
    await house.set_quota(10)
    reset = house.clock.now_ms() // 1_000 + 60
    answers = [
        await house.acquire("a", new_token()),
        await house.acquire("a", new_token()),
        await house.ask("GET", "/locks/a"),
        await house.acquire(".bad", new_token()),
        await house.acquire("a", "bad"),
        await house.acquire("a", new_token(), 1),
        await house.ask("DELETE", "/locks/a"),
    ]
    assert [answer.status_code for answer in answers] == [201, 409, 200, 400, 400, 400, 204]
    assert [told(answer) for answer in answers] == [(10, left, reset) for left in range(9, 2, -1)]


async def test_what_nobody_is_known_to_have_asked_is_not_counted(house: House) -> None:
    """QUOTA-2: without a credential, at another address, or for the admin API."""
    await house.ask("GET", "/locks/a", key=None)
    await house.ask("PUT", "/locks/a")
    await house.ask("GET", "/healthz")
    await house.admin("GET", "/projects")
    assert told(await house.ask("GET", "/locks/a"))[:2] == (600, 599)


async def test_past_the_quota_it_is_429_until_the_minute_ends(house: House) -> None:
    """QUOTA-4: nothing changes, also for malformed requests, and `Retry-After` is rounded up."""
    await house.set_quota(1)
    await house.acquire("a", new_token())
    house.clock.advance(30_500)
    for answer in (
        await house.acquire("b", new_token()),
        await house.acquire("b", "bad"),
        await house.ask("GET", "/locks/.a"),
    ):
        assert problem(answer) == (429, "lock_rate_limited")
        assert answer.headers["retry-after"] == "30"
        assert told(answer)[:2] == (1, 0)
    house.clock.advance(29_499)
    assert (await house.ask("GET", "/locks/b")).headers["retry-after"] == "1"
    house.clock.advance(1)
    assert await house.read("b") == {"held": False}


async def test_a_stampede_does_not_cost_the_owner_its_lease(house: House) -> None:
    """case 7, QUOTA-5: renew and release by the current owner are served from the reserve, by nobody else."""
    await house.set_quota(3)
    owner, other = new_token(), new_token()
    await house.acquire("a", owner)
    for _ in range(10):
        await house.acquire("a", other)
    assert problem(await house.renew("a", other)) == (429, "lock_rate_limited")
    assert problem(await house.renew("a", "bad")) == (429, "lock_rate_limited")
    assert problem(await house.acquire("a", owner)) == (429, "lock_rate_limited")
    assert (await house.renew("a", owner)).status_code == 200
    assert (await house.renew("a", owner)).status_code == 200
    assert (await house.release("a", owner)).status_code == 204
    assert problem(await house.release("a", owner)) == (429, "lock_rate_limited")


async def test_the_reserve_is_as_large_as_the_quota(house: House) -> None:
    """QUOTA-5: malformed requests and those of others do not use it up; owners do."""
    await house.set_quota(2)
    owner = new_token()
    await house.acquire("a", owner)
    await house.ask("GET", "/locks/a")
    for _ in range(5):
        await house.renew("a", owner, 1)
        await house.renew("a", new_token())
    assert (await house.renew("a", owner)).status_code == 200
    assert (await house.renew("a", owner)).status_code == 200
    assert problem(await house.renew("a", owner)) == (429, "lock_rate_limited")


class TestWithoutReserve:
    """QUOTA-5: it can be switched off."""

    @pytest.fixture
    def owner_reserve(self) -> bool:
        return False

    async def test_owners_are_refused_like_everybody(self, house: House) -> None:
        await house.set_quota(1)
        owner = new_token()
        await house.acquire("a", owner)
        assert problem(await house.renew("a", owner)) == (429, "lock_rate_limited")


async def test_no_quota_is_told_as_zero(house: House) -> None:
    """QUOTA-1, QUOTA-3."""
    await house.set_quota(0)
    for _ in range(5):
        assert told(await house.ask("GET", "/locks/a"))[0] == 0


async def test_a_changed_quota_counts_from_the_next_request(house: House) -> None:
    """QUOTA-6."""
    await house.ask("GET", "/locks/a")
    await house.set_quota(2)
    assert told(await house.ask("GET", "/locks/a"))[:2] == (2, 0)
    assert problem(await house.ask("GET", "/locks/a")) == (429, "lock_rate_limited")
    await house.set_quota(3)
    assert (await house.ask("GET", "/locks/a")).status_code == 200


class SharedCount(MemoryQuotas):
    away = False

    async def take(self, project_id: str, window_started_at_ms: int, *, limit: int, wanted: int) -> int:
        if self.away:
            raise StoreUnavailableError("away", "what the store says")
        return await super().take(project_id, window_started_at_ms, limit=limit, wanted=wanted)


@pytest.fixture
async def shared(house: House) -> AsyncIterator[SharedCount]:
    """The house over the same store with a count that it shares with other nodes."""
    count, server = SharedCount(), house.server
    store, clock = server.store, house.clock
    service = LockService(store.locks, clock, quotas=count)
    authenticator = Authenticator(store.registry, clock, server.admin_token)
    app = App(
        service=service, store=store.locks, registry=store.registry, authenticator=authenticator,
        clock=clock, log=server.log, metrics=server.metrics,
    )  # fmt: skip
    await house.client.aclose()
    house.client = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://locks.test")
    yield count
    await house.client.aclose()
    await service.close()


async def test_what_other_nodes_drew_is_gone_here_too(house: House, shared: SharedCount) -> None:
    """QUOTA-7: until the store says so, this node tells what it knows."""
    await house.set_quota(80)
    assert told(await house.ask("GET", "/locks/a"))[:2] == (80, 79)
    (place,) = shared.gone
    shared.gone[place] = 80
    assert told(await house.ask("GET", "/locks/a"))[:2] == (80, 78), "drawn ahead"
    answer = await house.ask("GET", "/locks/a")
    assert problem(answer) == (429, "lock_rate_limited")
    assert told(answer)[:2] == (80, 0)


async def test_what_cannot_be_counted_is_not_served(house: House, shared: SharedCount) -> None:
    """QUOTA-8: 503 without the store's own words and without a quota, and counted by nobody."""
    await house.set_quota(3)
    token = new_token()
    assert (await house.acquire("a", token)).status_code == 201
    shared.away = True
    for _ in range(3):
        answer = await house.acquire("a", token)
        assert problem(answer) == (503, "lock_service_unavailable")
        assert "what the store says" not in answer.text
        assert answer.headers["retry-after"] == "1"
        assert "x-ratelimit-limit" not in answer.headers
    shared.away = False
    assert told(await house.acquire("a", token))[:2] == (3, 1)
