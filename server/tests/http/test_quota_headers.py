"""The quota over HTTP: what counts, what responses show, and the owners' reserve."""

from collections.abc import AsyncIterator

import httpx2
import pytest
from testsupport.server_ports import MemoryQuotas

from volcano_locks_server.http.app import App
from volcano_locks_server.http.auth import Authenticator
from volcano_locks_server.rules.errors import StoreUnavailableError
from volcano_locks_server.service.lock_service import LockService

from .conftest import HttpHarness, both_ways, new_token, problem

over_socket = both_ways


def quota_headers(response: object) -> tuple[int, int, int]:
    headers = response.headers  # type: ignore[attr-defined]
    return tuple(int(headers[f"x-ratelimit-{name}"]) for name in ("limit", "remaining", "reset"))  # type: ignore[return-value]


async def test_every_counted_response_shows_the_quota(harness: HttpHarness) -> None:
    """QUOTA-1, QUOTA-2, QUOTA-3: granted, refused and malformed requests count alike."""
    await harness.set_quota(10)
    reset = harness.clock.now_ms() // 1_000 + 60
    responses = [
        await harness.acquire("a", new_token()),
        await harness.acquire("a", new_token()),
        await harness.request("GET", "/locks/a"),
        await harness.acquire(".bad", new_token()),
        await harness.acquire("a", "bad"),
        await harness.acquire("a", new_token(), 1),
        await harness.request("DELETE", "/locks/a"),
    ]
    assert [response.status_code for response in responses] == [201, 409, 200, 400, 400, 400, 204]
    assert [quota_headers(response) for response in responses] == [(10, left, reset) for left in range(9, 2, -1)]


async def test_requests_of_no_project_are_not_counted(harness: HttpHarness) -> None:
    """QUOTA-2: without a credential, at another address, or for the admin API."""
    await harness.request("GET", "/locks/a", key=None)
    await harness.request("PUT", "/locks/a")
    await harness.request("GET", "/healthz")
    await harness.admin("GET", "/projects")
    assert quota_headers(await harness.request("GET", "/locks/a"))[:2] == (600, 599)


async def test_requests_over_the_quota_are_429_until_the_minute_ends(harness: HttpHarness) -> None:
    """QUOTA-4: nothing changes, for malformed requests too, and `Retry-After` is rounded up."""
    await harness.set_quota(1)
    await harness.acquire("a", new_token())
    harness.clock.advance(30_500)
    for response in (
        await harness.acquire("b", new_token()),
        await harness.acquire("b", "bad"),
        await harness.request("GET", "/locks/.a"),
    ):
        assert problem(response) == (429, "lock_rate_limited")
        assert response.headers["retry-after"] == "30"
        assert quota_headers(response)[:2] == (1, 0)
    harness.clock.advance(29_499)
    assert (await harness.request("GET", "/locks/b")).headers["retry-after"] == "1"
    harness.clock.advance(1)
    assert await harness.read("b") == {"held": False}


async def test_a_stampede_does_not_cost_the_owner_its_lease(harness: HttpHarness) -> None:
    """case 7, QUOTA-5: renew and release by the current owner are served from the reserve, no other request is."""
    await harness.set_quota(3)
    owner, other = new_token(), new_token()
    await harness.acquire("a", owner)
    for _ in range(10):
        await harness.acquire("a", other)
    assert problem(await harness.renew("a", other)) == (429, "lock_rate_limited")
    assert problem(await harness.renew("a", "bad")) == (429, "lock_rate_limited")
    assert problem(await harness.acquire("a", owner)) == (429, "lock_rate_limited")
    assert (await harness.renew("a", owner)).status_code == 200
    assert (await harness.renew("a", owner)).status_code == 200
    assert (await harness.release("a", owner)).status_code == 204
    assert problem(await harness.release("a", owner)) == (429, "lock_rate_limited")


async def test_the_reserve_is_as_large_as_the_quota(harness: HttpHarness) -> None:
    """QUOTA-5: malformed requests and those of other owners do not use it up."""
    await harness.set_quota(2)
    owner = new_token()
    await harness.acquire("a", owner)
    await harness.request("GET", "/locks/a")
    for _ in range(5):
        await harness.renew("a", owner, 1)
        await harness.renew("a", new_token())
    assert (await harness.renew("a", owner)).status_code == 200
    assert (await harness.renew("a", owner)).status_code == 200
    assert problem(await harness.renew("a", owner)) == (429, "lock_rate_limited")


async def test_no_quota_is_shown_as_zero(harness: HttpHarness) -> None:
    """QUOTA-1, QUOTA-3."""
    await harness.set_quota(0)
    for _ in range(5):
        assert quota_headers(await harness.request("GET", "/locks/a"))[0] == 0


async def test_a_changed_quota_applies_from_the_next_request(harness: HttpHarness) -> None:
    """QUOTA-6."""
    await harness.request("GET", "/locks/a")
    await harness.set_quota(2)
    assert quota_headers(await harness.request("GET", "/locks/a"))[:2] == (2, 0)
    assert problem(await harness.request("GET", "/locks/a")) == (429, "lock_rate_limited")
    await harness.set_quota(3)
    assert (await harness.request("GET", "/locks/a")).status_code == 200


class SharedQuotas(MemoryQuotas):
    away = False

    async def take(self, project_id: str, window_started_at_ms: int, *, limit: int, wanted: int) -> int:
        if self.away:
            raise StoreUnavailableError("away", "what the store says")
        return await super().take(project_id, window_started_at_ms, limit=limit, wanted=wanted)


@pytest.fixture
async def shared(harness: HttpHarness) -> AsyncIterator[SharedQuotas]:
    """The harness over the same store, with a quota that other nodes share."""
    count, server = SharedQuotas(), harness.server
    store, clock = server.store, harness.clock
    service = LockService(store.locks, clock, quotas=count)
    authenticator = Authenticator(store.registry, clock, server.admin_token, store.admin_tokens)
    app = App(
        service=service, store=store.locks, registry=store.registry, admin_tokens=store.admin_tokens,
        audit=store.audit, authenticator=authenticator, clock=clock, log=server.log, metrics=server.metrics,
    )  # fmt: skip
    await harness.client.aclose()
    harness.client = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://locks.test")
    yield count
    await harness.client.aclose()
    await service.close()


async def test_draws_of_other_nodes_count_here_too(harness: HttpHarness, shared: SharedQuotas) -> None:
    """QUOTA-7: `remaining` is what this node knows."""
    await harness.set_quota(80)
    assert quota_headers(await harness.request("GET", "/locks/a"))[:2] == (80, 79)
    (place,) = shared.gone
    shared.gone[place] = 80
    assert quota_headers(await harness.request("GET", "/locks/a"))[:2] == (80, 78), "drawn ahead"
    response = await harness.request("GET", "/locks/a")
    assert problem(response) == (429, "lock_rate_limited")
    assert quota_headers(response)[:2] == (80, 0)


async def test_a_request_that_cannot_be_counted_is_503(harness: HttpHarness, shared: SharedQuotas) -> None:
    """QUOTA-8: 503 without the store's own error text and without quota headers, and not counted."""
    await harness.set_quota(3)
    token = new_token()
    assert (await harness.acquire("a", token)).status_code == 201
    shared.away = True
    for _ in range(3):
        response = await harness.acquire("a", token)
        assert problem(response) == (503, "lock_service_unavailable")
        assert "what the store says" not in response.text
        assert response.headers["retry-after"] == "1"
        assert "x-ratelimit-limit" not in response.headers
    shared.away = False
    assert quota_headers(await harness.acquire("a", token))[:2] == (3, 1)
