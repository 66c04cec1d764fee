"""Who holds what, as whoever looks sees it: rows, pages, and what looking costs and may not do."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from volcano_locks_server.http import lock_list_routes as listing_module
from volcano_locks_server.http.auth import Authenticator
from volcano_locks_server.http.lock_list_routes import LISTS_AT_ONCE, LISTS_WAITING_MAX, LockListReader
from volcano_locks_server.http.lock_routes import LockRoutes
from volcano_locks_server.ports.lock_store import LockPage, LockQuery, RecordKey
from volcano_locks_server.rules.errors import LockError, StoreUnavailableError
from volcano_locks_server.rules.values import LIST_LIMIT_MAX, LockKey
from volcano_locks_server.service.lock_service import LockService
from volcano_locks_server.stores.lock_pages import SCAN_RECORDS_MAX

from .conftest import ADMIN_TOKEN, House, OnlyLocks, new_token, problem

NO_LEASE = dict.fromkeys(["holder", "acquired_at", "renewed_at", "expires_at", "ttl_seconds"])


async def listed(house: House, **parameters: object) -> dict[str, Any]:
    answer = await house.ask("GET", "/locks", params=parameters)
    assert answer.status_code == 200, answer.text
    page: dict[str, Any] = answer.json()
    assert set(page) == {"items", "next_cursor"}
    return page


async def keys(house: House, **parameters: object) -> list[str]:
    return [row["key"] for row in (await listed(house, **parameters))["items"]]


async def view(house: House, lock: str) -> dict[str, Any]:
    row: dict[str, Any] = (await house.ask("GET", f"/locks/{lock}?view=full")).json()
    return row


async def test_a_row_tells_who_holds_the_lock_and_until_when(house: House) -> None:
    """LIST-1, LIST-2, LIST-5."""
    token = new_token()
    acquired = await house.acquire("a", token, 30, headers={"X-Volcano-Lock-Holder": "host-1/4711"})
    house.clock.advance(1_500)
    await house.renew("a", token, 60)
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
    assert await listed(house) == {"items": [row], "next_cursor": None}
    assert await view(house, "a") == row


async def test_a_free_row_has_its_last_fencing_token_and_nothing_of_a_lease(house: House) -> None:
    """LIST-2, LIST-5: released, lapsed, given up before it was ever held, and never heard of."""
    token = new_token()
    released = (await house.acquire("released", token)).json()["fencing_token"]
    await house.release("released", token)
    lapsed = (await house.acquire("lapsed", new_token(), 5)).json()["fencing_token"]
    await house.release("given-up", new_token())
    house.clock.advance(6_000)
    tokens = {"given-up": None, "lapsed": lapsed, "released": released}
    rows = [{"key": key, "held": False, **NO_LEASE, "fencing_token": one, "waiters": 0} for key, one in tokens.items()]
    assert (await listed(house))["items"] == rows
    assert [await view(house, key) for key in tokens] == rows
    assert await view(house, "unknown") == {**rows[0], "key": "unknown"}
    assert "unknown" not in await keys(house)


async def test_held_is_what_a_read_says(house: House) -> None:
    """LIST-3, LEASE-12: until the grace is over, by the store's clock."""
    await house.acquire("a", new_token(), 5)
    house.clock.advance(5_999)
    assert (await house.read("a"))["held"] is (await view(house, "a"))["held"] is True
    assert (await keys(house, state="held"), await keys(house, state="free")) == (["a"], [])
    house.clock.advance(1)
    assert (await house.read("a"))["held"] is (await view(house, "a"))["held"] is False
    assert (await keys(house, state="held"), await keys(house, state="free")) == ([], ["a"])
    assert await keys(house, state="all") == ["a"]


async def test_pages_go_on_where_the_one_before_ended(house: House) -> None:
    """LIST-1, LIST-4: in the order of bytes, with the cursor alone or with a prefix."""
    names = ["B", "a", "a-1", "a.1", "a1", "a:1", "aB", "a_1", "ab", "b"]
    for name in reversed(names):
        await house.acquire(name, new_token())
    for parameters in ({}, {"prefix": "a"}, {"prefix": "a", "state": "held"}):
        met, cursor = [], None
        while True:
            page = await listed(house, limit=3, **parameters, **({} if cursor is None else {"cursor": cursor}))
            met += [row["key"] for row in page["items"]]
            cursor = page["next_cursor"]
            if cursor is None:
                break
            assert len(page["items"]) == 3
        assert met == [name for name in names if name.startswith(parameters.get("prefix", ""))]
    assert await keys(house, prefix="a:") == ["a:1"]


async def test_a_hundred_rows_are_a_page_unless_asked_otherwise(house: House) -> None:
    """LIST-1."""
    for number in range(101):
        await house.acquire(f"k{number:03}", new_token())
    page = await listed(house)
    assert (len(page["items"]), page["next_cursor"] is None) == (100, False)
    assert await keys(house, cursor=page["next_cursor"]) == ["k100"]
    assert len(await keys(house, limit=LIST_LIMIT_MAX)) == 101


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
async def test_a_parameter_outside_its_limits_is_named(house: House, query: str, named: str) -> None:
    """LIST-6."""
    answer = await house.ask("GET", f"/locks?{query}")
    assert problem(answer) == (400, "invalid_request")
    assert answer.json()["error"].startswith(named)
    assert len(answer.text) < 400
    assert int(answer.headers["x-ratelimit-remaining"]) == 599


@pytest.mark.parametrize("query", ["view=", "view=short", "view=FULL", "view=full&view=full", "view"])
async def test_another_view_is_refused(house: House, query: str) -> None:
    """LIST-5, LIST-6."""
    assert problem(await house.ask("GET", f"/locks/a?{query}")) == (400, "invalid_request")
    assert problem(await house.ask("GET", "/locks/.a?view=full")) == (400, "invalid_lock_key")


async def test_parameters_of_others_change_nothing(house: House) -> None:
    """LIST-5, LIST-6, HTTP-3: a proxy's own, a view where none is asked for, and on a verb that changes something."""
    await house.acquire("a", new_token())
    assert await keys(house, view="short", utm="x", key="b") == ["a"]
    assert set((await house.ask("GET", "/locks/a?limit=0&Prefix=%2F&limit=1")).json()) == {
        "held",
        "expires_at",
        "fencing_token",
    }
    assert (await house.ask("DELETE", "/locks/a?view=short")).status_code == 204


async def test_the_list_is_of_the_keys_project_alone(house: House) -> None:
    """LIST-1, HTTP-2."""
    project = (await house.admin("POST", "/projects", json={"name": "other"})).json()
    made = await house.admin("POST", f"/projects/{project['id']}/service-keys", json={"name": "k"})
    other = made.json()["key_value"]
    await house.acquire("mine", new_token())
    await house.acquire("theirs", new_token(), key=other)
    assert await keys(house) == ["mine"]
    assert [row["key"] for row in (await house.ask("GET", "/locks", key=other)).json()["items"]] == ["theirs"]
    assert (await house.ask("GET", "/locks/mine?view=full", key=other)).json()["held"] is False


async def test_no_answer_and_no_log_line_tells_a_token(house: House) -> None:
    """LIST-2, LEASE-15, HTTP-16."""
    tokens = [new_token(), new_token()]
    await house.acquire("a", tokens[0])
    await house.acquire("b", tokens[1])
    await house.release("b", tokens[1])
    told = [(await house.ask("GET", path)).text for path in ("/locks", "/locks/a?view=full", "/locks/b?view=full")]
    house.server.log.writer.close()
    told.append(house.log.getvalue())
    for token in tokens:
        digest = hashlib.sha256(token.encode()).digest()
        for secret in (token, digest.hex(), house.service_key):
            assert all(secret not in text for text in told)


async def test_looking_counts_like_every_other_request(house: House) -> None:
    """LIST-7, QUOTA-1, QUOTA-3, QUOTA-4: also when it is refused, and past the quota nobody looks."""
    await house.set_quota(4)
    paths = ["/locks", "/locks/a?view=full", "/locks?limit=0", "/locks/a?view="]
    answers = [await house.ask("GET", path) for path in paths]
    assert [answer.status_code for answer in answers] == [200, 200, 400, 400]
    assert [answer.headers["x-ratelimit-remaining"] for answer in answers] == ["3", "2", "1", "0"]
    assert {answer.headers["x-ratelimit-limit"] for answer in answers} == {"4"}
    for path in paths:
        answer = await house.ask("GET", path)
        assert problem(answer) == (429, "lock_rate_limited")
        assert answer.headers["retry-after"] == "60"


async def test_nobody_without_a_credential_learns_about_locks(house: House) -> None:
    """HTTP-13, HTTP-14, HTTP-15, LIST-7."""
    for path in ("/locks", "/locks?limit=0", "/locks/a?view=full"):
        assert problem(await house.ask("GET", path, key=None)) == (401, "invalid_credentials")
        assert problem(await house.ask("GET", path, key=ADMIN_TOKEN)) == (403, "service_key_required")
    assert "x-ratelimit-limit" not in (await house.ask("GET", "/locks", key=None)).headers


async def test_a_key_that_only_looks_changes_nothing(house: House) -> None:
    """HTTP-15, ADMIN-6: `locks.read` reads, lists and views; the rest is 403 before its input is looked at."""
    reader = (await house.new_key(permissions=["locks.read"]))["key_value"]
    token = new_token()
    await house.acquire("a", token)
    for path in ("/locks/a", "/locks/a?view=full", "/locks?state=held"):
        assert (await house.ask("GET", path, key=reader)).status_code == 200
    for answer in (
        await house.acquire("b", new_token(), key=reader),
        await house.acquire(".bad", "bad", 0, key=reader),
        await house.renew("a", token, key=reader),
        await house.release("a", token, key=reader),
        await house.ask("DELETE", "/locks/a", key=reader),
    ):
        assert problem(answer) == (403, "missing_permission")
        assert "locks.manage" in answer.json()["error"]
    assert (await view(house, "a"))["held"] is True
    assert (await view(house, "b"))["held"] is False
    manager = (await house.new_key("third", permissions=["locks.manage"]))["key_value"]
    assert (await house.ask("GET", "/locks", key=manager)).status_code == 200


async def test_looking_is_counted_in_the_metrics_without_a_name(house: House) -> None:
    """OPS-3."""
    await house.ask("GET", "/locks?prefix=secret-prefix")
    await house.ask("GET", "/locks/secret-lock?view=full")
    text = (await house.ask("GET", "/metrics", key=None)).text
    assert 'volcano_locks_requests_total{operation="list",outcome="listed"} 1.0' in text
    assert 'volcano_locks_requests_total{operation="view",outcome="listed"} 1.0' in text
    assert "secret" not in text


# --- over a store that the test holds ---------------------------------------------------------------------


class HeldUpStore:
    """A store whose lists wait until they are let go on, or fail."""

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
        raise AssertionError(f"{name} was not to be asked for")


@pytest.fixture
def held_up() -> HeldUpStore:
    return HeldUpStore()


@pytest.fixture
async def onlooker(house: House, held_up: HeldUpStore) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of lock routes whose lists come from `held_up`; ten wait for the lock `a`."""
    server = house.server
    authenticator = Authenticator(server.store.registry, house.clock, ADMIN_TOKEN)
    service = LockService(server.store.locks, house.clock)
    listing = LockListReader(held_up, lambda record: 10 if record == RecordKey(house.project_id, LockKey("a")) else 0)
    app = OnlyLocks(LockRoutes(service, listing, authenticator, server.log, server.metrics))
    headers = {"Authorization": f"Bearer {house.service_key}"}
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://x", headers=headers) as client:
        yield client
    await service.close()


async def test_a_row_tells_how_many_wait(onlooker: httpx2.AsyncClient, held_up: HeldUpStore) -> None:
    """LIST-2."""
    held_up.go_on.set()
    assert (await onlooker.get("/locks/a?view=full")).json()["waiters"] == 10
    assert (await onlooker.get("/locks/b?view=full")).json()["waiters"] == 0


async def test_a_crowd_that_looks_waits_in_a_bounded_line(onlooker: httpx2.AsyncClient, held_up: HeldUpStore) -> None:
    """LIST-8: and the locks themselves are served meanwhile."""
    crowd = [
        asyncio.create_task(onlooker.get("/locks" if number % 2 else "/locks/a?view=full"))
        for number in range(LISTS_AT_ONCE + LISTS_WAITING_MAX)
    ]
    while held_up.at_once < LISTS_AT_ONCE:
        await asyncio.sleep(0)
    for _ in range(100):
        await asyncio.sleep(0)
    for path in ("/locks", "/locks/a?view=full"):
        refused = await onlooker.get(path)
        assert problem(refused) == (503, "lock_service_unavailable")
        assert refused.headers["retry-after"] == "1"
    assert (await onlooker.get("/locks/a")).json() == {"held": False}
    crowd.pop().cancel()
    held_up.go_on.set()
    assert {answer.status_code for answer in await asyncio.gather(*crowd)} == {200}
    assert held_up.at_once_max == LISTS_AT_ONCE
    assert (await onlooker.get("/locks")).status_code == 200


@pytest.mark.parametrize("failure", [StoreUnavailableError("disk_full", "no room at /var/lib"), None])
async def test_a_store_that_cannot_list_is_503(
    house: House,
    onlooker: httpx2.AsyncClient,
    held_up: HeldUpStore,
    failure: LockError | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """HTTP-19, HTTP-20: it failed, or did not answer in time."""
    held_up.failure = failure
    if failure is not None:
        held_up.go_on.set()
    else:
        monkeypatch.setattr(listing_module, "LIST_SECONDS_MAX", 0.01)
    answer = await onlooker.get("/locks")
    assert problem(answer) == (503, "lock_service_unavailable")
    assert answer.headers["retry-after"] == "1"
    assert "/var/lib" not in answer.text
    cause = "list_late" if failure is None else "disk_full"
    assert house.server.metrics.store_errors == {cause: 1}


async def test_a_short_page_is_not_the_last(house: House) -> None:
    """LIST-4: what a walk meets does not depend on how the pages are cut."""
    assert SCAN_RECORDS_MAX > LIST_LIMIT_MAX
    for number in range(20):
        token = new_token()
        await house.acquire(f"k{number:02}", token)
        if number % 3:
            await house.release(f"k{number:02}", token)
    for limit in (1, 5, 7, 500):
        met: list[str] = []
        cursor: dict[str, str] = {}
        while True:
            page = await listed(house, state="held", limit=limit, **cursor)
            met += [row["key"] for row in page["items"]]
            if page["next_cursor"] is None:
                break
            cursor = {"cursor": page["next_cursor"]}
        assert met == [f"k{number:02}" for number in range(0, 20, 3)]
