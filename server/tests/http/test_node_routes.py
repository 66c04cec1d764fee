"""Nodes and activity over HTTP: UI-10, UI-11."""

import asyncio
from typing import Any

import httpx2
import pytest

from volcano_locks_server.http import app
from volcano_locks_server.ports.lock_store import RecordKey
from volcano_locks_server.ports.nodes import OtherNode
from volcano_locks_server.rules.values import LockKey
from volcano_locks_server.runtime.server import Server
from volcano_locks_server.runtime.settings import Settings
from volcano_locks_server.stores import open_store
from volcano_locks_server.testing import ManualClock, running_server_async

from .conftest import HttpHarness, both_ways, new_token, problem

__all__ = ["both_ways"]


async def activity(harness: HttpHarness, query: str = "", **more: Any) -> dict[str, Any]:
    found = await harness.request("GET", f"/activity{query}", **more)
    assert found.status_code == 200, found.text
    body: dict[str, Any] = found.json()
    return body


async def test_this_node_is_shown(harness: HttpHarness) -> None:
    """UI-10."""
    (node,) = (await harness.request("GET", "/nodes")).json()["items"]
    assert node["connections"] in (0, 1)
    assert {name: node[name] for name in node if name not in ("id", "version", "connections")} == {
        "is_this": True,
        "is_live": True,
        "store": "memory",
        "worker": None,
        "started_at": "2026-07-20T14:00:00.000Z",
        "seen_at": "2026-07-20T14:00:00.000Z",
        "health": {"status": "ok", "cause": None, "takeovers_held": None},
        "clock_difference_ms": None,
        "waiters": 0,
        "streams": 0,
    }


async def test_reader_requests_of_a_project_have_a_budget(
    harness: HttpHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AUDIT-4: of all its keys together. The quota, other projects and admin tokens are not affected."""
    monkeypatch.setattr(app, "READER_REQUESTS_PER_MINUTE", 3)
    second = (await harness.new_key("second"))["key_value"]
    for path, key in (("/nodes", ""), ("/activity", second), (f"/projects/{harness.project_id}/audit", "")):
        assert (await harness.request("GET", path, key=key)).status_code == 200
    spent = await harness.request("GET", "/nodes", key=second)
    assert problem(spent) == (429, "lock_rate_limited")
    assert spent.headers["retry-after"] == "60"
    assert (await harness.request("GET", "/locks")).status_code == 200
    assert (await harness.admin("GET", "/nodes")).status_code == 200
    harness.clock.advance(60_000)
    assert (await harness.request("GET", "/nodes")).status_code == 200


async def test_a_report_is_made_once_a_second(harness: HttpHarness) -> None:
    """UI-11: of each project, and of all together."""
    await harness.acquire("nightly", new_token())
    first = await activity(harness)
    assert first["minutes"][-1]["requests"] == 1
    await harness.acquire("weekly", new_token())
    harness.clock.advance(999)
    assert await activity(harness) == first
    assert (await activity(harness, key=harness.server.admin_token))["minutes"][-1]["requests"] == 2
    harness.clock.advance(1)
    second = await activity(harness)
    assert (second["minutes"][-1]["requests"], second["at"]) == (2, "2026-07-20T14:00:01.000Z")


async def test_the_hour_of_a_project(harness: HttpHarness) -> None:
    """UI-11: through both ways that a lease request takes."""
    first, second = new_token(), new_token()
    await harness.acquire("nightly", first)
    assert (await harness.acquire("nightly", second)).status_code == 409
    waiting = asyncio.create_task(
        harness.request(
            "POST",
            "/locks/nightly/lease",
            headers={"X-Volcano-Lock-Token": second},
            json={"ttl_seconds": 30, "wait_seconds": 30},
        )
    )
    lock = RecordKey(harness.project_id, LockKey("nightly"))
    while not any(waiter.is_evaluated for waiter in harness.server.service.queues.first(lock, 1)):
        await asyncio.sleep(0.001)
    await harness.release("nightly", first)
    assert (await waiting).status_code == 201
    await harness.request("DELETE", "/locks/nightly")
    await harness.renew("nightly", second)
    found = await activity(harness)
    assert (found["project_id"], found["requests_per_minute"]) == (harness.project_id, 600)
    assert len(found["minutes"]) == 60
    last = found["minutes"][-1]
    assert last["at"] == "2026-07-20T14:00:00.000Z"
    names = ("requests", "grants", "contended", "hand_offs", "over_quota")
    assert [last[name] for name in names] == [6, 2, 2, 1, 0]
    assert last["losses"] == {"not_renewed": 0, "forced": 1, "ownership_lost": 1}
    assert found["most_contended"] == [{"key": "nightly", "count": 2}]
    for times in (last["wait_ms"], last["commit_ms"], found["hour"]["wait_ms"]):
        assert 0 < times["p50"] <= times["p95"]


async def test_a_refusal_for_the_quota_is_counted(harness: HttpHarness) -> None:
    """UI-11."""
    await harness.set_quota(1)
    for lock in ("a", "b"):
        await harness.acquire(lock, new_token())
    assert (await activity(harness))["minutes"][-1]["over_quota"] == 1


async def test_a_key_sees_its_project_and_the_admin_token_all(harness: HttpHarness) -> None:
    """UI-11."""
    await harness.acquire("nightly", new_token())
    project = (await harness.admin("POST", "/projects", json={"name": "made"})).json()
    path = f"/projects/{project['id']}/service-keys"
    other = (await harness.admin("POST", path, json={"name": "k"})).json()["key_value"]
    for _ in range(2):
        await harness.request("GET", "/locks", key=other)
    token = harness.server.admin_token
    requests = {
        who: (await activity(harness, query, key=key))["minutes"][-1]["requests"]
        for who, query, key in (
            ("own", "", ""),
            ("own still", f"?project_id={project['id']}", ""),
            ("other", "", other),
            ("one", f"?project_id={project['id']}", token),
            ("all", "", token),
        )
    }
    assert requests == {"own": 1, "own still": 1, "other": 2, "one": 2, "all": 3}
    for asked in ("nodes", "activity"):
        assert problem(await harness.request("GET", f"/{asked}", key=None)) == (401, "invalid_credentials")
        useless = (await harness.new_key(asked, permissions=["functions.invoke"]))["key_value"]
        assert problem(await harness.request("GET", f"/{asked}", key=useless)) == (403, "missing_permission")
    assert problem(await harness.admin("GET", "/activity?project_id=x")) == (404, "not_found")


@pytest.mark.parametrize("kind", ["etcd", "postgres"])
async def test_a_shared_store_knows_clocks_and_nodes(kind: str) -> None:
    """UI-10."""
    from testsupport.engines import etcd, postgres

    from volcano_locks_server.ports.clock import SystemClock

    server = postgres.shared()
    url = etcd.shared().url() if kind == "etcd" else server.url(server.new_database())
    first, second = [await open_store(url, SystemClock()) for _ in range(2)]
    settings = Settings(store=url, port=0, log_level="error", allow_plaintext_store=True)
    async with running_server_async(settings, store=second) as running:
        view = running.server.store.nodes
        assert view is not None
        assert first.nodes is not None
        if kind == "etcd":
            assert view.clock_difference_ms() is None
            assert [(node.id, node.is_live) for node in view.other_nodes()] == [(first.nodes.node_id, True)]
            assert isinstance(view.other_nodes()[0], OtherNode)
        else:
            difference_ms = view.clock_difference_ms()
            assert difference_ms is not None
            assert abs(difference_ms) < 1_000
            assert view.other_nodes() == ()
    await first.close()


async def test_two_nodes_over_postgres_show_only_themselves() -> None:
    """UI-10: with the database's clock, and the waiters and streams of their own."""
    from testsupport.engines import postgres

    server = postgres.shared()
    url, shown = server.url(server.new_database()), []
    settings = Settings(store=url, port=0, log_level="error", allow_plaintext_store=True, admin_token=new_token())
    async with (
        running_server_async(settings) as first,
        running_server_async(settings) as second,
        httpx2.AsyncClient(headers={"Authorization": f"Bearer {settings.admin_token}"}) as client,
    ):
        for running in (first, second):
            (node,) = (await client.get(f"{running.url}/nodes")).json()["items"]
            shown.append(node)
    for node in shown:
        assert (node["is_this"], node["is_live"], node["store"], node["waiters"]) == (True, True, "postgresql", 0)
        assert node["health"]["status"] == "ok"
        assert abs(node["clock_difference_ms"]) < 1_000
    assert len({node["id"] for node in shown}) == 2


async def test_a_server_that_stops_says_so(clock: ManualClock) -> None:
    """UI-10: and names the cause of a store that cannot answer."""
    server = Server(Settings(store="memory://", port=0, log_level="error"), clock=clock)
    await server.open()
    health = server.app._health
    assert (await health.summary())["status"] == "ok"
    health.draining = True
    assert await health.summary() == {"status": "unavailable", "cause": "stopping", "takeovers_held": None}
    await server.close()
