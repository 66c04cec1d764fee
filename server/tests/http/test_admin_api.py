"""Projects and service keys over the wire."""

import re
from datetime import UTC, datetime
from typing import Any

import pytest

from volcano_locks_server.rules.values import PERMISSION_LENGTH_MAX, PERMISSIONS_MAX

from .conftest import House, problem

NOBODY = "018f6a3e-7c4b-4d2a-9b1e-2f6d5c4b3a21"
INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


async def test_a_project_from_its_making_to_its_end(house: House) -> None:
    """ADMIN-1, ADMIN-2: create, show, change, list, delete."""
    made = await house.admin("POST", "/projects", json={"name": "nightly"})
    assert made.status_code == 201
    project = made.json()
    assert set(project) == {"id", "name", "requests_per_minute", "created_at"}
    assert (project["name"], project["requests_per_minute"]) == ("nightly", 600)
    assert INSTANT.fullmatch(project["created_at"])
    path = f"/projects/{project['id']}"
    assert (await house.admin("GET", path)).json() == project
    changed = await house.admin("PATCH", path, json={"name": "hourly", "requests_per_minute": 0})
    assert changed.json() == {**project, "name": "hourly", "requests_per_minute": 0}
    listed = (await house.admin("GET", "/projects")).json()
    assert [item["name"] for item in listed["items"]] == ["test", "hourly"]
    assert listed["next_cursor"] is None
    gone = await house.admin("DELETE", path)
    assert (gone.status_code, gone.content) == (204, b"")
    assert problem(await house.admin("GET", path)) == (404, "not_found")


async def test_a_service_key_from_its_making_to_its_end(house: House) -> None:
    """ADMIN-2, ADMIN-5, ADMIN-6, ADMIN-8: the secret is in the answer that made it and in no other."""
    keys = f"/projects/{house.project_id}/service-keys"
    made = await house.admin("POST", keys, json={"name": "worker"})
    assert made.status_code == 201
    key = made.json()
    secret = key.pop("key_value")
    assert re.fullmatch(r"sk-[A-Za-z0-9_-]{43}", secret)
    assert secret.startswith(key["key_prefix"])
    assert len(key["key_prefix"]) < 16
    assert key == {
        "id": key["id"], "project_id": house.project_id, "name": "worker", "key_prefix": key["key_prefix"],
        "permissions": ["*"], "created_at": "2026-07-20T14:00:00.000Z", "expires_at": None, "last_used_at": None,
    }  # fmt: skip
    path = f"{keys}/{key['id']}"
    assert (await house.admin("GET", path)).json() == key
    assert (await house.admin("GET", keys)).json()["items"][1] == key
    renewed = await house.admin("POST", f"{path}/regenerate", json={"keep_old_seconds": 5})
    assert renewed.status_code == 200
    second = renewed.json()
    assert second.pop("key_value") != secret
    assert second == {**key, "key_prefix": second["key_prefix"]}
    assert (await house.admin("DELETE", path)).status_code == 204
    assert problem(await house.admin("GET", path)) == (404, "not_found")


async def test_names_are_unique_and_free_again_after_the_end(house: House) -> None:
    """ADMIN-4: of projects, and of the keys of one project."""
    keys = f"/projects/{house.project_id}/service-keys"
    for path in ("/projects", keys):
        made = (await house.admin("POST", path, json={"name": "n"})).json()
        assert problem(await house.admin("POST", path, json={"name": "n"})) == (409, "name_taken")
        await house.admin("DELETE", f"{path}/{made['id']}")
        assert (await house.admin("POST", path, json={"name": "n"})).status_code == 201
    taken = await house.admin("PATCH", f"/projects/{house.project_id}", json={"name": "n"})
    assert problem(taken) == (409, "name_taken")


@pytest.mark.parametrize("missing", [NOBODY, "nobody", "%2F", "a%20b", NOBODY.upper(), "*"])
async def test_an_id_nobody_has_is_404(house: House, missing: str) -> None:
    """ADMIN-2: whatever it looks like."""
    mine = f"/projects/{house.project_id}/service-keys"
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
        assert problem(await house.admin(method, path, **more)) == (404, "not_found"), (method, path)


@pytest.mark.parametrize(
    "change", [{}, {"requests_per_minute": -1}, {"requests_per_minute": 1_000_000_001}, {"requests_per_minute": 1.0},
               {"requests_per_minute": True}, {"requests_per_minute": None}, {"name": None}, {"id": "x"}]
)  # fmt: skip
async def test_what_is_no_change_is_refused(house: House, change: dict[str, object]) -> None:
    """ADMIN-3."""
    answer = await house.admin("PATCH", f"/projects/{house.project_id}", json=change)
    assert problem(answer) == (400, "invalid_request")


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
async def test_what_is_no_service_key_is_refused(house: House, fields: dict[str, object]) -> None:
    """ADMIN-3, ADMIN-6, ADMIN-7."""
    answer = await house.admin("POST", f"/projects/{house.project_id}/service-keys", json=fields)
    assert problem(answer) == (400, "invalid_request")


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
async def test_permissions_left_open_are_all(house: House, asked: object, given: list[str]) -> None:
    """ADMIN-6."""
    assert (await house.new_key(permissions=asked))["permissions"] == given


async def test_the_most_permissions_are_kept(house: House) -> None:
    """ADMIN-6: as many and as long as may be, in every answer that shows them."""
    most = sorted(f"{number:02}".rjust(PERMISSION_LENGTH_MAX, "x") for number in range(PERMISSIONS_MAX))
    made = await house.new_key(permissions=most)
    address = f"/projects/{house.project_id}/service-keys/{made['id']}"
    assert made["permissions"] == most
    assert (await house.admin("GET", address)).json()["permissions"] == most
    assert (await house.admin("POST", f"{address}/regenerate")).json()["permissions"] == most


async def test_an_expiry_may_have_any_offset(house: House) -> None:
    """ADMIN-7."""
    key = await house.new_key(expires_at="2030-01-01T02:00:00.5+02:00")
    assert key["expires_at"] == "2030-01-01T00:00:00.500Z"


@pytest.mark.parametrize("seconds", [-1, 604_801, 1.0, "1", True, None])
async def test_an_overlap_has_limits(house: House, seconds: object) -> None:
    """ADMIN-8, ADMIN-3."""
    key = await house.new_key()
    path = f"/projects/{house.project_id}/service-keys/{key['id']}/regenerate"
    assert problem(await house.admin("POST", path, json={"keep_old_seconds": seconds})) == (400, "invalid_request")
    assert (await house.ask("GET", "/locks/a", key=key["key_value"])).status_code == 200


async def test_lists_are_walked_in_pages(house: House) -> None:
    """ADMIN-10: each item once, oldest first."""
    names = [f"p{number}" for number in range(5)]
    for name in names:
        await house.admin("POST", "/projects", json={"name": name})
        await house.new_key(name)
    for path, before in (("/projects", "test"), (f"/projects/{house.project_id}/service-keys", "first")):
        seen: list[str] = []
        cursor = ""
        while cursor is not None:
            page = (await house.admin("GET", f"{path}?limit=2{cursor and '&cursor=' + cursor}")).json()
            assert len(page["items"]) <= 2
            seen += [item["name"] for item in page["items"]]
            cursor = page["next_cursor"]
        assert seen == [before, *names]


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=101", "limit=-1", "limit=", "limit=1.0", "limit=x", "limit=%D9%A1", "cursor=x"]
)
@pytest.mark.parametrize("path", ["/projects", "/projects/ID/service-keys"])
async def test_what_is_no_page_is_refused(house: House, path: str, query: str) -> None:
    """ADMIN-10, ADMIN-3."""
    answer = await house.admin("GET", f"{path.replace('ID', house.project_id)}?{query}")
    assert problem(answer) == (400, "invalid_request")


async def test_the_last_use_of_a_key_is_remembered(house: House) -> None:
    """ADMIN-2: not earlier than it was, and shown after the next writing-down."""
    await house.ask("GET", "/locks/a")
    house.clock.advance(1_500)
    await house.ask("GET", "/locks/a")
    await house.server.remember_last_used()
    keys = (await house.admin("GET", f"/projects/{house.project_id}/service-keys")).json()["items"]
    used = datetime.fromisoformat(keys[0]["last_used_at"])
    assert used == datetime.fromtimestamp(house.clock.now_ms() / 1_000, UTC)
