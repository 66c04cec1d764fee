"""The admin API: projects and service keys."""

import re
from datetime import UTC, datetime
from typing import Any

import pytest

from volcano_locks_server.rules.values import PERMISSION_LENGTH_MAX, PERMISSIONS_MAX

from .conftest import HttpHarness, problem

UNKNOWN_ID = "018f6a3e-7c4b-4d2a-9b1e-2f6d5c4b3a21"
INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


async def test_a_project_is_created_shown_changed_listed_and_deleted(harness: HttpHarness) -> None:
    """ADMIN-1, ADMIN-2: create, show, change, list, delete."""
    made = await harness.admin("POST", "/projects", json={"name": "nightly"})
    assert made.status_code == 201
    project = made.json()
    assert set(project) == {"id", "name", "requests_per_minute", "created_at"}
    assert (project["name"], project["requests_per_minute"]) == ("nightly", 600)
    assert INSTANT.fullmatch(project["created_at"])
    path = f"/projects/{project['id']}"
    assert (await harness.admin("GET", path)).json() == project
    changed = await harness.admin("PATCH", path, json={"name": "hourly", "requests_per_minute": 0})
    assert changed.json() == {**project, "name": "hourly", "requests_per_minute": 0}
    listed = (await harness.admin("GET", "/projects")).json()
    assert [item["name"] for item in listed["items"]] == ["test", "hourly"]
    assert listed["next_cursor"] is None
    gone = await harness.admin("DELETE", path)
    assert (gone.status_code, gone.content) == (204, b"")
    assert problem(await harness.admin("GET", path)) == (404, "not_found")


async def test_a_service_key_is_created_shown_regenerated_and_revoked(harness: HttpHarness) -> None:
    """ADMIN-2, ADMIN-5, ADMIN-6, ADMIN-8: the secret is only in the response that created it."""
    keys = f"/projects/{harness.project_id}/service-keys"
    made = await harness.admin("POST", keys, json={"name": "worker"})
    assert made.status_code == 201
    key = made.json()
    secret = key.pop("key_value")
    assert re.fullmatch(r"sk-[A-Za-z0-9_-]{43}", secret)
    assert secret.startswith(key["key_prefix"])
    assert len(key["key_prefix"]) < 16
    assert key == {
        "id": key["id"], "project_id": harness.project_id, "name": "worker", "key_prefix": key["key_prefix"],
        "permissions": ["*"], "created_at": "2026-07-20T14:00:00.000Z", "expires_at": None, "last_used_at": None,
        "old_secret_good_until": None,
    }  # fmt: skip
    path = f"{keys}/{key['id']}"
    assert (await harness.admin("GET", path)).json() == key
    assert (await harness.admin("GET", keys)).json()["items"][1] == key
    renewed = await harness.admin("POST", f"{path}/regenerate", json={"keep_old_seconds": 5})
    assert renewed.status_code == 200
    second = renewed.json()
    assert second.pop("key_value") != secret
    rotated = {**key, "key_prefix": second["key_prefix"], "old_secret_good_until": "2026-07-20T14:00:05.000Z"}
    assert second == rotated
    assert (await harness.admin("GET", path)).json() == rotated
    assert (await harness.admin("GET", keys)).json()["items"][1] == rotated
    assert (await harness.admin("DELETE", path)).status_code == 204
    assert problem(await harness.admin("GET", path)) == (404, "not_found")


async def test_names_are_unique_and_free_again_after_deletion(harness: HttpHarness) -> None:
    """ADMIN-4: of projects, and of the keys of one project."""
    keys = f"/projects/{harness.project_id}/service-keys"
    for path in ("/projects", keys):
        made = (await harness.admin("POST", path, json={"name": "n"})).json()
        assert problem(await harness.admin("POST", path, json={"name": "n"})) == (409, "name_taken")
        await harness.admin("DELETE", f"{path}/{made['id']}")
        assert (await harness.admin("POST", path, json={"name": "n"})).status_code == 201
    taken = await harness.admin("PATCH", f"/projects/{harness.project_id}", json={"name": "n"})
    assert problem(taken) == (409, "name_taken")


@pytest.mark.parametrize("missing", [UNKNOWN_ID, "unknown", "%2F", "a%20b", UNKNOWN_ID.upper(), "*"])
async def test_an_unknown_id_is_404(harness: HttpHarness, missing: str) -> None:
    """ADMIN-2: in every form."""
    mine = f"/projects/{harness.project_id}/service-keys"
    asked: list[tuple[str, str, dict[str, Any]]] = [
        ("GET", f"/projects/{missing}", {}),
        ("PATCH", f"/projects/{missing}", {"json": {"name": "x"}}),
        ("DELETE", f"/projects/{missing}", {}),
        ("GET", f"/projects/{missing}/service-keys", {}),
        ("POST", f"/projects/{missing}/service-keys", {"json": {"name": "x"}}),
        ("GET", f"{mine}/{missing}", {}),
        ("DELETE", f"{mine}/{missing}", {}),
        ("POST", f"{mine}/{missing}/regenerate", {}),
    ]
    for method, path, more in asked:
        assert problem(await harness.admin(method, path, **more)) == (404, "not_found"), (method, path)


@pytest.mark.parametrize(
    "change", [{}, {"requests_per_minute": -1}, {"requests_per_minute": 1_000_000_001}, {"requests_per_minute": 1.0},
               {"requests_per_minute": True}, {"requests_per_minute": None}, {"name": None}, {"id": "x"}]
)  # fmt: skip
async def test_an_invalid_change_is_refused(harness: HttpHarness, change: dict[str, object]) -> None:
    """ADMIN-3."""
    response = await harness.admin("PATCH", f"/projects/{harness.project_id}", json=change)
    assert problem(response) == (400, "invalid_request")


@pytest.mark.parametrize(
    "fields",
    [
        {}, {"name": "k", "permissions": "*"}, {"name": "k", "permissions": ["locks.break"]},
        {"name": "k", "permissions": [""]}, {"name": "k", "permissions": ["functions.invoke"] * 51},
        {"name": "k", "permissions": [1]}, {"name": "k", "expires_at": 1}, {"name": "k", "expires_at": "tomorrow"},
        {"name": "k", "expires_at": "2020-01-01T00:00:00Z"}, {"name": "k", "expires_at": "2030-02-30T00:00:00Z"},
        {"name": "k", "expires_at": "2030-01-01T00:00:00"}, {"name": "k", "expires_at": "9999-12-31T23:59:59-14:00"},
        {"name": "k", "expires_at": "2030-01-01"}, {"name": "k", "secret": "mine"},
    ],
)  # fmt: skip
async def test_an_invalid_service_key_is_refused(harness: HttpHarness, fields: dict[str, object]) -> None:
    """ADMIN-3, ADMIN-6, ADMIN-7."""
    response = await harness.admin("POST", f"/projects/{harness.project_id}/service-keys", json=fields)
    assert problem(response) == (400, "invalid_request")


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        (None, ["*"]),
        ([], ["*"]),
        (["locks.manage"], ["locks.manage"]),
        (["locks.read"], ["locks.read"]),
        (["locks.manage", "*", "*"], ["*", "locks.manage"]),
        (["locks.read", "functions.invoke", "db.*"], ["db.*", "functions.invoke", "locks.read"]),
        (["functions.invoke"], ["functions.invoke"]),
    ],
)
async def test_missing_permissions_mean_all(harness: HttpHarness, asked: object, given: list[str]) -> None:
    """ADMIN-6."""
    assert (await harness.new_key(permissions=asked))["permissions"] == given


async def test_the_maximum_of_permissions_is_stored(harness: HttpHarness) -> None:
    """ADMIN-6: in every response that shows them."""
    most = sorted(f"{number:02}".rjust(PERMISSION_LENGTH_MAX, "x") for number in range(PERMISSIONS_MAX))
    made = await harness.new_key(permissions=most)
    address = f"/projects/{harness.project_id}/service-keys/{made['id']}"
    assert made["permissions"] == most
    assert (await harness.admin("GET", address)).json()["permissions"] == most
    assert (await harness.admin("POST", f"{address}/regenerate")).json()["permissions"] == most


async def test_an_expiry_may_have_any_offset(harness: HttpHarness) -> None:
    """ADMIN-7."""
    key = await harness.new_key(expires_at="2030-01-01T02:00:00.5+02:00")
    assert key["expires_at"] == "2030-01-01T00:00:00.500Z"


@pytest.mark.parametrize("seconds", [-1, 604_801, 1.0, "1", True, None])
async def test_keep_old_seconds_has_limits(harness: HttpHarness, seconds: object) -> None:
    """ADMIN-8, ADMIN-3."""
    key = await harness.new_key()
    path = f"/projects/{harness.project_id}/service-keys/{key['id']}/regenerate"
    assert problem(await harness.admin("POST", path, json={"keep_old_seconds": seconds})) == (400, "invalid_request")
    assert (await harness.request("GET", "/locks/a", key=key["key_value"])).status_code == 200


async def test_lists_are_walked_in_pages(harness: HttpHarness) -> None:
    """ADMIN-10: each item once, oldest first."""
    names = [f"p{number}" for number in range(5)]
    for name in names:
        await harness.admin("POST", "/projects", json={"name": name})
        await harness.new_key(name)
    for path, before in (("/projects", "test"), (f"/projects/{harness.project_id}/service-keys", "first")):
        seen: list[str] = []
        cursor = ""
        while cursor is not None:
            page = (await harness.admin("GET", f"{path}?limit=2{cursor and '&cursor=' + cursor}")).json()
            assert len(page["items"]) <= 2
            seen += [item["name"] for item in page["items"]]
            cursor = page["next_cursor"]
        assert seen == [before, *names]


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=101", "limit=-1", "limit=", "limit=1.0", "limit=x", "limit=%D9%A1", "cursor=x"]
)
@pytest.mark.parametrize("path", ["/projects", "/projects/ID/service-keys"])
async def test_an_invalid_page_is_refused(harness: HttpHarness, path: str, query: str) -> None:
    """ADMIN-10, ADMIN-3."""
    response = await harness.admin("GET", f"{path.replace('ID', harness.project_id)}?{query}")
    assert problem(response) == (400, "invalid_request")


async def test_the_last_use_of_a_key_is_stored(harness: HttpHarness) -> None:
    """ADMIN-2: shown after it is stored, and never moved back."""
    await harness.request("GET", "/locks/a")
    harness.clock.advance(1_500)
    await harness.request("GET", "/locks/a")
    await harness.server.remember_last_used()
    keys = (await harness.admin("GET", f"/projects/{harness.project_id}/service-keys")).json()["items"]
    used = datetime.fromisoformat(keys[0]["last_used_at"])
    assert used == datetime.fromtimestamp(harness.clock.now_ms() / 1_000, UTC)


async def test_the_admin_api_has_a_budget_of_its_own(harness: HttpHarness) -> None:
    """HTTP-33: past it, admin requests get 503; requests of projects do not use it, nor the other way round."""
    budgets = harness.server.budgets
    budgets.admin_requests.limit = 0
    refused = await harness.admin("GET", "/projects")
    assert (problem(refused), refused.headers["retry-after"]) == ((503, "lock_service_unavailable"), "1")
    assert (await harness.request("GET", "/locks")).status_code == 200
    assert (await harness.request("GET", "/healthz")).status_code == 200
    budgets.admin_requests.limit = 1
    for budget in budgets:
        if budget is not budgets.admin_requests:
            budget.limit = 0
    assert (await harness.admin("GET", "/projects")).status_code == 200
    assert problem(await harness.admin("GET", f"/projects/{UNKNOWN_ID}")) == (404, "not_found")
    assert (await harness.admin("GET", "/projects")).status_code == 200
