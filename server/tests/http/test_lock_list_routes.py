"""Lists of locks over HTTP: rows, pages, permissions, quota and limits."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from volcano_locks_server.http import lock_list_routes as listing_module
from volcano_locks_server.http.auth import Authenticator
from volcano_locks_server.http.failed_credentials import FailedCredentials
from volcano_locks_server.http.history_routes import HistoryReader
from volcano_locks_server.http.lock_list_routes import QUEUE_SHOWN_MAX, LockListReader
from volcano_locks_server.http.lock_routes import LockRoutes
from volcano_locks_server.ports.lock_store import LockPage, LockQuery, RecordKey
from volcano_locks_server.rules.errors import LockError, StoreUnavailableError
from volcano_locks_server.rules.shares import LISTS_AT_ONCE_MAX, LISTS_WAITING_MAX
from volcano_locks_server.rules.values import LIST_LIMIT_MAX, LockKey
from volcano_locks_server.service.lock_service import LockService
from volcano_locks_server.stores.lock_pages import SCAN_RECORDS_MAX

from .conftest import ADMIN_TOKEN, HttpHarness, LockRoutesApp, new_token, problem

NO_LEASE = dict.fromkeys(["holder", "acquired_at", "renewed_at", "expires_at", "ttl_seconds"])


async def listed(harness: HttpHarness, **parameters: object) -> dict[str, Any]:
    response = await harness.request("GET", "/locks", params=parameters)
    assert response.status_code == 200, response.text
    page: dict[str, Any] = response.json()
    assert set(page) == {"items", "next_cursor"}
    return page


async def keys(harness: HttpHarness, **parameters: object) -> list[str]:
    return [row["key"] for row in (await listed(harness, **parameters))["items"]]


async def view(harness: HttpHarness, lock: str) -> dict[str, Any]:
    """The row of one lock, without its queue."""
    row: dict[str, Any] = (await harness.request("GET", f"/locks/{lock}?view=full")).json()
    assert row.pop("queue") == []
    return row


async def test_a_row_shows_the_holder_and_the_lease(harness: HttpHarness) -> None:
    """LIST-1, LIST-2, LIST-5."""
    token = new_token()
    acquired = await harness.acquire("a", token, 30, headers={"X-Volcano-Lock-Holder": "host-1/4711"})
    harness.clock.advance(1_500)
    await harness.renew("a", token, 60)
    row = {
        "key": "a",
        "held": True,
        "holder": "host-1/4711",
        "acquired_at": "2026-07-20T14:00:00.000Z",
        "renewed_at": "2026-07-20T14:00:01.500Z",
        "expires_at": "2026-07-20T14:01:01.500Z",
        "ttl_seconds": 60,
        "fencing_token": acquired.json()["fencing_token"],
        "waiters": 0,
    }
    assert await listed(harness) == {"items": [row], "next_cursor": None}
    assert await view(harness, "a") == row


async def test_the_row_of_one_lock_has_its_queue(harness: HttpHarness) -> None:
    """LIST-9: in the order of the grants, at most 20; a list has only their number."""
    await harness.acquire("a", new_token(), 600)
    body = {"ttl_seconds": 30, "wait_seconds": 60}
    waits = []
    for number in range(QUEUE_SHOWN_MAX + 1):
        label = {"X-Volcano-Lock-Holder": f"w-{number}"} if number else {}
        headers = {"X-Volcano-Lock-Token": new_token(), **label}
        waits.append(asyncio.create_task(harness.request("POST", "/locks/a/lease", headers=headers, json=body)))
        for _ in range(60):
            await asyncio.sleep(0)
        harness.clock.advance(1)
    row = (await harness.request("GET", "/locks/a?view=full")).json()
    assert [one["holder"] for one in row["queue"]] == [None, *(f"w-{n}" for n in range(1, QUEUE_SHOWN_MAX))]
    assert [one["since"] for one in row["queue"][:2]] == ["2026-07-20T14:00:00.000Z", "2026-07-20T14:00:00.001Z"]
    assert row["waiters"] == QUEUE_SHOWN_MAX + 1
    assert set((await listed(harness))["items"][0]) == set(row) - {"queue"}
    for wait in waits:
        wait.cancel()
    await asyncio.gather(*waits, return_exceptions=True)


async def test_a_free_row_has_its_last_fencing_token_and_nothing_of_a_lease(harness: HttpHarness) -> None:
    """LIST-2, LIST-5: released, expired, released before it was ever held, and unknown."""
    token = new_token()
    released = (await harness.acquire("released", token)).json()["fencing_token"]
    await harness.release("released", token)
    lapsed = (await harness.acquire("lapsed", new_token(), 5)).json()["fencing_token"]
    await harness.release("given-up", new_token())
    harness.clock.advance(6_000)
    tokens = {"given-up": None, "lapsed": lapsed, "released": released}
    rows = [{"key": key, "held": False, **NO_LEASE, "fencing_token": one, "waiters": 0} for key, one in tokens.items()]
    assert (await listed(harness))["items"] == rows
    assert [await view(harness, key) for key in tokens] == rows
    assert await view(harness, "unknown") == {**rows[0], "key": "unknown"}
    assert "unknown" not in await keys(harness)


async def test_held_is_what_a_read_says(harness: HttpHarness) -> None:
    """LIST-3, LEASE-12: until the grace ends, by the store's clock."""
    await harness.acquire("a", new_token(), 5)
    harness.clock.advance(5_999)
    assert (await harness.read("a"))["held"] is (await view(harness, "a"))["held"] is True
    assert (await keys(harness, state="held"), await keys(harness, state="free")) == (["a"], [])
    harness.clock.advance(1)
    assert (await harness.read("a"))["held"] is (await view(harness, "a"))["held"] is False
    assert (await keys(harness, state="held"), await keys(harness, state="free")) == ([], ["a"])
    assert await keys(harness, state="all") == ["a"]


async def test_a_page_continues_after_the_previous_one(harness: HttpHarness) -> None:
    """LIST-1, LIST-4: in the order of bytes, with the cursor alone or with a prefix."""
    names = ["B", "a", "a-1", "a.1", "a1", "a:1", "aB", "a_1", "ab", "b"]
    for name in reversed(names):
        await harness.acquire(name, new_token())
    for parameters in ({}, {"prefix": "a"}, {"prefix": "a", "state": "held"}):
        met, cursor = [], None
        while True:
            page = await listed(harness, limit=3, **parameters, **({} if cursor is None else {"cursor": cursor}))
            met += [row["key"] for row in page["items"]]
            cursor = page["next_cursor"]
            if cursor is None:
                break
            assert len(page["items"]) == 3
        assert met == [name for name in names if name.startswith(parameters.get("prefix", ""))]
    assert await keys(harness, prefix="a:") == ["a:1"]


async def test_a_page_has_100_rows_by_default(harness: HttpHarness) -> None:
    """LIST-1."""
    for number in range(101):
        await harness.acquire(f"k{number:03}", new_token())
    page = await listed(harness)
    assert (len(page["items"]), page["next_cursor"] is None) == (100, False)
    assert await keys(harness, cursor=page["next_cursor"]) == ["k100"]
    assert len(await keys(harness, limit=LIST_LIMIT_MAX)) == 101


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("limit=0", "limit"),
        ("limit=501", "limit"),
        ("limit=", "limit"),
        ("limit=1.0", "limit"),
        ("limit=%2B1", "limit"),
        ("limit=%D9%A3", "limit"),
        ("limit=" + "9" * 2_000, "limit"),
        ("state=lapsed", "state"),
        ("state=", "state"),
        ("state=HELD", "state"),
        ("prefix=.a", "prefix"),
        ("prefix=a%2Fb", "prefix"),
        ("prefix=a+b", "prefix"),
        ("prefix=%00", "prefix"),
        ("prefix=%FF", "prefix"),
        ("prefix=" + "a" * 129, "prefix"),
        ("cursor=", "cursor"),
        ("cursor=a", "cursor"),
        ("cursor=locks.", "cursor"),
        ("cursor=locks..a", "cursor"),
        ("cursor=projects.1", "cursor"),
        ("limit=1&limit=1", "limit"),
        ("prefix=a&state=all&prefix=b", "prefix"),
    ],
)
async def test_a_parameter_outside_its_limits_is_named(harness: HttpHarness, query: str, named: str) -> None:
    """LIST-6."""
    response = await harness.request("GET", f"/locks?{query}")
    assert problem(response) == (400, "invalid_request")
    assert response.json()["error"].startswith(named)
    assert len(response.text) < 400
    assert int(response.headers["x-ratelimit-remaining"]) == 599


@pytest.mark.parametrize("query", ["view=", "view=short", "view=FULL", "view=full&view=full", "view"])
async def test_an_unknown_view_is_refused(harness: HttpHarness, query: str) -> None:
    """LIST-5, LIST-6."""
    assert problem(await harness.request("GET", f"/locks/a?{query}")) == (400, "invalid_request")
    assert problem(await harness.request("GET", "/locks/.a?view=full")) == (400, "invalid_lock_key")


async def test_unknown_parameters_are_ignored(harness: HttpHarness) -> None:
    """LIST-5, LIST-6, HTTP-3: one that a proxy adds, and `view` on a list or on a verb that changes something."""
    await harness.acquire("a", new_token())
    assert await keys(harness, view="short", utm="x", key="b") == ["a"]
    assert set((await harness.request("GET", "/locks/a?limit=0&Prefix=%2F&limit=1")).json()) == {
        "held",
        "expires_at",
        "fencing_token",
    }
    assert (await harness.request("DELETE", "/locks/a?view=short")).status_code == 204


async def test_a_list_has_only_locks_of_the_keys_project(harness: HttpHarness) -> None:
    """LIST-1, HTTP-2."""
    project = (await harness.admin("POST", "/projects", json={"name": "other"})).json()
    made = await harness.admin("POST", f"/projects/{project['id']}/service-keys", json={"name": "k"})
    other = made.json()["key_value"]
    await harness.acquire("mine", new_token())
    await harness.acquire("theirs", new_token(), key=other)
    assert await keys(harness) == ["mine"]
    assert [row["key"] for row in (await harness.request("GET", "/locks", key=other)).json()["items"]] == ["theirs"]
    assert (await harness.request("GET", "/locks/mine?view=full", key=other)).json()["held"] is False


async def test_no_list_and_no_log_line_shows_a_token(harness: HttpHarness) -> None:
    """LIST-2, LEASE-15, HTTP-16."""
    tokens = [new_token(), new_token()]
    await harness.acquire("a", tokens[0])
    await harness.acquire("b", tokens[1])
    await harness.release("b", tokens[1])
    shown = [
        (await harness.request("GET", path)).text for path in ("/locks", "/locks/a?view=full", "/locks/b?view=full")
    ]
    harness.server.log.writer.close()
    shown.append(harness.log.getvalue())
    for token in tokens:
        digest = hashlib.sha256(token.encode()).digest()
        for secret in (token, digest.hex(), harness.service_key):
            assert all(secret not in text for text in shown)


async def test_lists_count_against_the_quota(harness: HttpHarness) -> None:
    """LIST-7, QUOTA-1, QUOTA-3, QUOTA-4: invalid requests count too, and requests over the quota get 429."""
    await harness.set_quota(4)
    paths = ["/locks", "/locks/a?view=full", "/locks?limit=0", "/locks/a?view="]
    responses = [await harness.request("GET", path) for path in paths]
    assert [response.status_code for response in responses] == [200, 200, 400, 400]
    assert [response.headers["x-ratelimit-remaining"] for response in responses] == ["3", "2", "1", "0"]
    assert {response.headers["x-ratelimit-limit"] for response in responses} == {"4"}
    for path in paths:
        response = await harness.request("GET", path)
        assert problem(response) == (429, "lock_rate_limited")
        assert response.headers["retry-after"] == "60"


async def test_lists_need_a_service_key(harness: HttpHarness) -> None:
    """HTTP-13, HTTP-14, HTTP-15, LIST-7."""
    for path in ("/locks", "/locks?limit=0", "/locks/a?view=full"):
        assert problem(await harness.request("GET", path, key=None)) == (401, "invalid_credentials")
        assert problem(await harness.request("GET", path, key=ADMIN_TOKEN)) == (403, "service_key_required")
    assert "x-ratelimit-limit" not in (await harness.request("GET", "/locks", key=None)).headers


async def test_a_key_that_only_reads_cannot_change_anything(harness: HttpHarness) -> None:
    """HTTP-15, ADMIN-6: `locks.read` reads, lists and views; the rest is 403 before its input is checked."""
    reader = (await harness.new_key(permissions=["locks.read"]))["key_value"]
    token = new_token()
    await harness.acquire("a", token)
    for path in ("/locks/a", "/locks/a?view=full", "/locks?state=held"):
        assert (await harness.request("GET", path, key=reader)).status_code == 200
    for response in (
        await harness.acquire("b", new_token(), key=reader),
        await harness.acquire(".bad", "bad", 0, key=reader),
        await harness.renew("a", token, key=reader),
        await harness.release("a", token, key=reader),
        await harness.request("DELETE", "/locks/a", key=reader),
    ):
        assert problem(response) == (403, "missing_permission")
        assert "locks.manage" in response.json()["error"]
    assert (await view(harness, "a"))["held"] is True
    assert (await view(harness, "b"))["held"] is False
    manager = (await harness.new_key("third", permissions=["locks.manage"]))["key_value"]
    assert (await harness.request("GET", "/locks", key=manager)).status_code == 200


async def test_lists_are_counted_in_the_metrics_without_names(harness: HttpHarness) -> None:
    """OPS-3."""
    await harness.request("GET", "/locks?prefix=secret-prefix")
    await harness.request("GET", "/locks/secret-lock?view=full")
    text = (await harness.request("GET", "/metrics", key=None)).text
    assert 'volcano_locks_requests_total{operation="list",outcome="listed"} 1.0' in text
    assert 'volcano_locks_requests_total{operation="view",outcome="listed"} 1.0' in text
    assert "secret" not in text


# --- over a store that the test controls ------------------------------------------------------------------


class SlowListStore:
    """A store whose lists wait for `go_on`, or fail."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.failure: Exception | None = None
        self.at_once = self.at_once_max = 0

    async def list_locks(self, query: LockQuery) -> LockPage:
        self.at_once += 1
        self.at_once_max = max(self.at_once_max, self.at_once)
        try:
            await self.go_on.wait()
        finally:
            self.at_once -= 1
        if self.failure is not None:
            raise self.failure
        return LockPage([], 0, None)

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} must not be used here")


@pytest.fixture
def slow_lists() -> SlowListStore:
    return SlowListStore()


@pytest.fixture
async def reader(harness: HttpHarness, slow_lists: SlowListStore) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of lock routes whose lists come from `slow_lists`; the lock `a` has ten waiters."""
    server = harness.server
    authenticator = Authenticator(server.store.registry, harness.clock, ADMIN_TOKEN, server.store.admin_tokens)
    service = LockService(server.store.locks, harness.clock)
    listing = LockListReader(
        slow_lists,
        lambda record: 10 if record == RecordKey(harness.project_id, LockKey("a")) else 0,
        server.log,
        server.budgets,
    )
    failures = FailedCredentials(harness.clock, server.metrics)
    history = HistoryReader(server.store.locks, server.budgets)
    routes = LockRoutes(service, listing, authenticator, server.log, server.metrics, history=history, failures=failures)
    app = LockRoutesApp(routes)
    headers = {"Authorization": f"Bearer {harness.service_key}"}
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://x", headers=headers) as client:
        yield client
    await service.close()


async def test_a_row_shows_the_number_of_waiters(reader: httpx2.AsyncClient, slow_lists: SlowListStore) -> None:
    """LIST-2."""
    slow_lists.go_on.set()
    assert (await reader.get("/locks/a?view=full")).json()["waiters"] == 10
    assert (await reader.get("/locks/b?view=full")).json()["waiters"] == 0


async def test_pending_lists_are_bounded(reader: httpx2.AsyncClient, slow_lists: SlowListStore) -> None:
    """LIST-8, HTTP-32: one project has half of both budgets, and locks are served meanwhile."""
    at_once = LISTS_AT_ONCE_MAX // 2
    crowd = [
        asyncio.create_task(reader.get("/locks" if number % 2 else "/locks/a?view=full"))
        for number in range(at_once + LISTS_WAITING_MAX // 2)
    ]
    while slow_lists.at_once < at_once:
        await asyncio.sleep(0)
    for _ in range(100):
        await asyncio.sleep(0)
    for path in ("/locks", "/locks/a?view=full"):
        refused = await reader.get(path)
        assert problem(refused) == (429, "too_many_requests")
        assert refused.headers["retry-after"] == "1"
    assert (await reader.get("/locks/a")).json() == {"held": False}
    crowd.pop().cancel()
    slow_lists.go_on.set()
    assert {response.status_code for response in await asyncio.gather(*crowd)} == {200}
    assert slow_lists.at_once_max == at_once
    assert (await reader.get("/locks")).status_code == 200


@pytest.mark.parametrize("failure", [StoreUnavailableError("disk_full", "no room at /var/lib"), None])
async def test_a_store_that_cannot_list_is_503(
    harness: HttpHarness,
    reader: httpx2.AsyncClient,
    slow_lists: SlowListStore,
    failure: LockError | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """HTTP-19, HTTP-20: it failed, or did not respond in time."""
    slow_lists.failure = failure
    if failure is not None:
        slow_lists.go_on.set()
    else:
        monkeypatch.setattr(listing_module, "LIST_SECONDS_MAX", 0.01)
    response = await reader.get("/locks")
    assert problem(response) == (503, "lock_service_unavailable")
    assert response.headers["retry-after"] == "1"
    assert "/var/lib" not in response.text
    cause = "list_late" if failure is None else "disk_full"
    assert harness.server.metrics.store_errors == {cause: 1}


async def test_a_short_page_is_not_the_last(harness: HttpHarness) -> None:
    """LIST-4: a walk yields the same rows for every page size."""
    assert SCAN_RECORDS_MAX > LIST_LIMIT_MAX
    for number in range(20):
        token = new_token()
        await harness.acquire(f"k{number:02}", token)
        if number % 3:
            await harness.release(f"k{number:02}", token)
    for limit in (1, 5, 7, 500):
        met: list[str] = []
        cursor: dict[str, str] = {}
        while True:
            page = await listed(harness, state="held", limit=limit, **cursor)
            met += [row["key"] for row in page["items"]]
            if page["next_cursor"] is None:
                break
            cursor = {"cursor": page["next_cursor"]}
        assert met == [f"k{number:02}" for number in range(0, 20, 3)]
