"""The history over HTTP: entries, periods, pages, permissions and budgets (HISTORY rules)."""

import asyncio
from typing import Any

import pytest

from volcano_locks_server.rules.shares import HISTORY_AT_ONCE_MAX, share_of

from .conftest import HttpHarness, new_token, problem

WORKER = {"User-Agent": "volcano-locks-python/1.2", "X-Volcano-Lock-Holder": "host-1/4711"}
NO_TIMES = {"count": 0, "p50_seconds": None, "p95_seconds": None, "maximum_seconds": None}


async def history(harness: HttpHarness, lock: str, **parameters: object) -> list[dict[str, Any]]:
    response = await harness.request("GET", f"/locks/{lock}/history", params=parameters)
    assert response.status_code == 200, response.text
    items: list[dict[str, Any]] = response.json()["items"]
    return items


async def test_an_entry_names_holder_key_client_and_end(harness: HttpHarness) -> None:
    """HISTORY-1, HISTORY-6: renewed, then forced by another key with a reason."""
    operator = await harness.new_key("operator")
    fencing_token = (await harness.acquire("a", token := new_token(), 60, headers=WORKER)).json()["fencing_token"]
    harness.clock.advance(1_500)
    await harness.renew("a", token, 60)
    harness.clock.advance(500)
    await harness.request(
        "DELETE", "/locks/a", key=operator["key_value"], headers={"X-Volcano-Reason": "a%20stuck%20job"}
    )
    response = await harness.request("GET", "/locks/a/history")
    (entry,) = response.json()["items"]
    assert entry.pop("key_id")
    assert entry == {
        "key": "a",
        "fencing_token": fencing_token,
        "holder": "host-1/4711",
        "key_name": "first",
        "address": entry["address"],
        "client": "volcano-locks-python/1.2",
        "began": "free",
        "waited_seconds": None,
        "began_at": "2026-07-20T14:00:00.000Z",
        "renewals": 1,
        "renewed_at": "2026-07-20T14:00:01.500Z",
        "ended": "forced",
        "ended_by": "operator",
        "reason": "a stuck job",
        "ended_at": "2026-07-20T14:00:02.000Z",
        "expires_at": "2026-07-20T14:01:01.500Z",
        "held_seconds": 2.0,
    }
    assert response.json()["held"] == {"count": 1, "p50_seconds": 2.0, "p95_seconds": 2.0, "maximum_seconds": 2.0}
    assert token not in "".join(one.decode() for one in harness.responses)


async def test_a_current_hold_has_no_end(harness: HttpHarness) -> None:
    """HISTORY-1, HISTORY-3: until the end of its grace; after that it expired."""
    await harness.acquire("a", new_token(), 5)
    harness.clock.advance(5_999)
    (current,) = await history(harness, "a")
    assert (current["ended"], current["ended_at"], current["held_seconds"]) == (None, None, 5.999)
    harness.clock.advance(1)
    (expired,) = await history(harness, "a")
    assert (expired["ended"], expired["ended_at"], expired["held_seconds"]) == (
        "expired",
        "2026-07-20T14:00:06.000Z",
        6.0,
    )


async def test_a_waiter_s_hold_says_how_long_it_waited(harness: HttpHarness) -> None:
    """HISTORY-1: `waited` by the commit that handed the lock on."""
    await harness.acquire("a", first := new_token(), 60)
    waiting = asyncio.create_task(
        harness.request(
            "POST",
            "/locks/a/lease",
            headers={"X-Volcano-Lock-Token": new_token()},
            json={"ttl_seconds": 30, "wait_seconds": 20},
        )
    )
    while harness.server.service.queues.table.request_count == 0 or not harness.server.service.is_idle:
        await asyncio.sleep(0)
    harness.clock.advance(1_250)
    await harness.release("a", first)
    assert (await waiting).status_code == 201
    waited, released = await history(harness, "a")
    assert (waited["began"], waited["waited_seconds"], waited["began_at"]) == ("waited", 1.25, released["ended_at"])
    assert (released["began"], released["ended"]) == ("free", "released")


async def test_the_history_of_several_locks_is_by_prefix_and_paged(harness: HttpHarness) -> None:
    """HISTORY-5, HISTORY-6: without `held`, and each hold once over all pages."""
    for lock in ("b-2", "b-1", "c", "b-1"):
        await harness.acquire(lock, token := new_token())
        await harness.release(lock, token)
        harness.clock.advance(1_000)
    found, cursor = [], None
    while True:
        parameters = {"prefix": "b", "limit": 1} | ({"cursor": cursor} if cursor else {})
        page = (await harness.request("GET", "/history", params=parameters)).json()
        assert set(page) == {"items", "next_cursor"}
        found += [(one["key"], one["began_at"][-7:-1]) for one in page["items"]]
        if (cursor := page["next_cursor"]) is None:
            break
    assert found == [("b-1", "03.000"), ("b-1", "01.000"), ("b-2", "00.000")]
    assert [one["began_at"][-7:-1] for one in await history(harness, "b-1", limit=1)] == ["03.000"]


async def test_at_and_from_and_to_select_holds(harness: HttpHarness) -> None:
    """HISTORY-5: who held it at 03:12?"""
    for holder in ("ann", "ben"):
        await harness.acquire("a", token := new_token(), headers={"X-Volcano-Lock-Holder": holder})
        harness.clock.advance(1_000)
        await harness.release("a", token)
        harness.clock.advance(1_000)
    at = "2026-07-20T16:00:02.500+02:00"
    assert [one["holder"] for one in await history(harness, "a", at=at)] == ["ben"]
    assert [one["holder"] for one in await history(harness, "a", to="2026-07-20T14:00:02Z")] == ["ann"]
    everything = await harness.request("GET", "/history", params={"from": "2026-07-20T14:00:01Z"})
    assert [one["holder"] for one in everything.json()["items"]] == ["ben"]


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("at=03:12", "at"),
        ("from=2026-07-20", "from"),
        ("from=2026-07-20T14:00:00Z&to=2026-07-20T14:00:00Z", "to"),
        ("limit=501", "limit"),
        ("cursor=locks.a", "cursor"),
        ("cursor=history.1.b", "cursor"),
        ("at=2026-07-20T14:00:00Z&at=2026-07-20T14:00:00Z", "at"),
    ],
)
async def test_a_parameter_outside_its_limits_is_named(harness: HttpHarness, query: str, named: str) -> None:
    """HISTORY-5."""
    response = await harness.request("GET", f"/locks/a/history?{query}")
    assert problem(response) == (400, "invalid_request")
    assert response.json()["error"].startswith(named)


async def test_reading_needs_a_key_of_the_project(harness: HttpHarness) -> None:
    """HISTORY-5, HISTORY-7: `locks.read` is enough; other methods and credentials are refused; it counts."""
    reader = await harness.new_key("reader", permissions=["locks.read"])
    for path in ("/locks/a/history", "/history"):
        response = await harness.request("GET", path, key=reader["key_value"])
        assert response.status_code == 200
        assert "x-ratelimit-remaining" in response.headers
        assert problem(await harness.request("GET", path, key=None)) == (401, "invalid_credentials")
        refused = await harness.request("POST", path)
        assert (problem(refused), refused.headers["allow"]) == ((405, "method_not_allowed"), "GET")
    response = await harness.request("GET", "/locks/a/history", key=reader["key_value"])
    assert response.json() == {"items": [], "next_cursor": None, "held": NO_TIMES}
    assert problem(await harness.request("GET", "/locks//history")) == (400, "invalid_lock_key")
    assert (await harness.request("GET", "/locks/history")).json() == {"held": False}


async def test_a_user_agent_is_shown_safely(harness: HttpHarness) -> None:
    """HISTORY-1: cut short, and without characters that a terminal obeys."""
    await harness.acquire("a", new_token(), headers={"User-Agent": "x\x1b[2J" + "y" * 200})
    (entry,) = await history(harness, "a")
    assert entry["client"] == "x?[2J" + "y" * 123


async def test_the_budgets_are_apart_from_those_of_the_lists(harness: HttpHarness) -> None:
    """HISTORY-7, HTTP-32: past its share of waiting requests a project gets 429, and lists go on."""
    budgets = harness.server.service.budgets
    budgets.history_waiting.limit = 2
    for _ in range(HISTORY_AT_ONCE_MAX):
        budgets.history_at_once.add(harness.project_id)
    waiting = asyncio.create_task(harness.request("GET", "/history"))
    while budgets.history_waiting.used < share_of(2, 0):
        await asyncio.sleep(0)
    assert problem(await harness.request("GET", "/history")) == (429, "too_many_requests")
    assert (await harness.request("GET", "/locks")).status_code == 200
    waiting.cancel()


async def test_without_history_nothing_is_stored(harness: HttpHarness) -> None:
    """HISTORY-4: `--history-days 0`. A current hold still shows."""
    harness.server.service.keeps_history = False  # type: ignore[misc]
    await harness.acquire("a", new_token())
    (entry,) = await history(harness, "a")
    assert (entry["key_name"], entry["began"], entry["renewals"]) == (None, None, None)
