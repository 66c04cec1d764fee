"""The audit over HTTP: AUDIT-1, AUDIT-2, AUDIT-4."""

from typing import Any

import pytest

from .conftest import ADMIN_TOKEN, HttpHarness, both_ways, new_token, problem

__all__ = ["both_ways"]


@pytest.fixture
def dashboard() -> bool:
    return True


@pytest.fixture
def log_level() -> str:
    return "warning"


async def entries(harness: HttpHarness, path: str = "/audit", **more: Any) -> list[dict[str, Any]]:
    """The entries without those of the harness's own set-up, the earliest first."""
    page = await harness.admin("GET", path, **more)
    assert page.status_code == 200, page.text
    return [one for one in reversed(page.json()["items"]) if one["actor"]["kind"] != "server"]


async def test_a_force_release_is_named_with_its_reason(harness: HttpHarness) -> None:
    """AUDIT-1: whether or not the lock was held; a refused one is not."""
    held = (await harness.acquire("nightly", new_token(), headers={"X-Volcano-Lock-Holder": "host/1"})).json()
    sent = {"X-Volcano-Reason": "it%20hung", "X-Volcano-Request-Id": "5b0c3f43-6f3c-4b53-9d3b-0c8f2a1f7f10"}
    path = f"/locks/nightly/leases/{held['fencing_token']}"
    assert (await harness.request("DELETE", path, headers=sent)).status_code == 204
    assert (await harness.request("DELETE", "/locks/nightly")).status_code == 204
    await harness.acquire("nightly", new_token())
    assert (await harness.request("DELETE", "/locks/nightly/leases/1")).status_code == 409
    first, second = await entries(harness)
    key_id = first["actor"]["id"]
    assert first == {
        "id": first["id"],
        "at": "2026-07-20T14:00:00.000Z",
        "action": "force_released",
        "actor": {"kind": "service_key", "id": key_id, "name": "first"},
        "address": first["address"],
        "project_id": harness.project_id,
        "target": {"kind": "lock", "id": None, "name": "nightly"},
        "before": {
            "holder": "host/1",
            "fencing_token": held["fencing_token"],
            "acquired_at": "2026-07-20T14:00:00.000Z",
            "expires_at": held["expires_at"],
        },
        "after": {"held": False},
        "reason": "it hung",
        "request_id": "5b0c3f43-6f3c-4b53-9d3b-0c8f2a1f7f10",
    }
    assert (second["before"], second["reason"]) == (None, None)


async def test_admin_actions_are_named(harness: HttpHarness) -> None:
    """AUDIT-1: with the token that did them, and without a secret."""
    token = (await harness.admin("POST", "/admin-tokens", json={"name": "ann"})).json()
    ann = token["token_value"]
    project = (await harness.request("POST", "/projects", key=ann, json={"name": "made"})).json()
    path = f"/projects/{project['id']}"
    await harness.request("PATCH", path, key=ann, json={"requests_per_minute": 7})
    key = (await harness.request("POST", f"{path}/service-keys", key=ann, json={"name": "worker"})).json()
    rotated = (
        await harness.request(
            "POST", f"{path}/service-keys/{key['id']}/regenerate", key=ann, json={"keep_old_seconds": 60}
        )
    ).json()
    await harness.request("DELETE", f"{path}/service-keys/{key['id']}", key=ann)
    await harness.request("DELETE", path, key=ann)
    await harness.admin("DELETE", f"/admin-tokens/{token['id']}")
    found = await entries(harness)
    assert [(one["action"], one["actor"]["name"], one["target"]["name"]) for one in found] == [
        ("admin_token_created", "(configured)", "ann"),
        ("project_created", "ann", "made"),
        ("project_changed", "ann", "made"),
        ("key_created", "ann", "worker"),
        ("key_rotated", "ann", "worker"),
        ("key_revoked", "ann", "worker"),
        ("project_deleted", "ann", "made"),
        ("admin_token_revoked", "(configured)", "ann"),
    ]
    assert found[4]["after"]["old_secret_good_until"] == "2026-07-20T14:01:00.000Z"
    for secret in (ann, key["key_value"], rotated["key_value"], ADMIN_TOKEN):
        assert secret not in str(found)
    outlived = await entries(harness, f"{path}/audit")
    assert [one["action"] for one in outlived][-1] == "project_deleted"
    assert len(outlived) == 6


async def test_sign_in_and_sign_out_are_named(harness: HttpHarness) -> None:
    """AUDIT-1: a sign-out without a session is not."""
    code = (await harness.request("POST", "/ui/codes")).json()["code"]
    headers = {"Host": "localhost"}
    signed_in = await harness.request("POST", "/ui/session", key=None, json={"code": code}, headers=headers)
    cookie = signed_in.headers["set-cookie"].partition(";")[0]
    harness.client.cookies.clear()
    for _ in range(2):
        await harness.request("DELETE", "/ui/session", key=None, headers={"Cookie": cookie, **headers})
    found = await entries(harness, f"/projects/{harness.project_id}/audit")
    assert [(one["action"], one["actor"]["name"]) for one in found] == [("signed_in", "first"), ("signed_out", "first")]
    assert found[0]["after"] == {"good_until": "2026-07-20T22:00:00.000Z"}
    assert cookie.partition("=")[2] not in str(found)


async def test_a_key_reads_the_audit_of_its_own_project(harness: HttpHarness) -> None:
    """AUDIT-4."""
    await harness.request("DELETE", "/locks/nightly")
    own = f"/projects/{harness.project_id}/audit"
    reader = (await harness.new_key("reader", permissions=["locks.read"]))["key_value"]
    actions = [one["action"] for one in (await harness.request("GET", own, key=reader)).json()["items"]]
    assert actions[:2] == ["key_created", "force_released"]
    other = (await harness.new_key("other", permissions=["functions.invoke"]))["key_value"]
    assert problem(await harness.request("GET", own, key=other)) == (403, "missing_permission")
    project = (await harness.admin("POST", "/projects", json={"name": "made"})).json()
    assert problem(await harness.request("GET", f"/projects/{project['id']}/audit")) == (404, "not_found")
    assert problem(await harness.request("GET", "/audit")) == (403, "admin_token_required")
    assert problem(await harness.request("GET", own, key=None)) == (401, "invalid_credentials")
    assert problem(await harness.request("POST", own)) == (405, "method_not_allowed")


async def test_pages_go_back_in_time(harness: HttpHarness) -> None:
    """AUDIT-4."""
    for lock in ("a", "b", "c"):
        harness.clock.advance(1_000)
        await harness.request("DELETE", f"/locks/{lock}")

    async def page(query: str) -> tuple[list[str], str | None]:
        found = (await harness.admin("GET", f"/audit?{query}")).json()
        return [one["target"]["name"] for one in found["items"] if one["target"]["kind"] == "lock"], found[
            "next_cursor"
        ]

    names, cursor = await page("limit=2")
    assert names == ["c", "b"]
    assert (await page(f"limit=1&cursor={cursor}"))[0] == ["a"]
    assert (await page("from=2026-07-20T14:00:02Z&to=2026-07-20T14:00:03Z")) == (["b"], None)
    for query in ("cursor=audit.1", "cursor=locks.a", "from=yesterday", "to=1", "limit=0", "limit=101"):
        assert problem(await harness.admin("GET", f"/audit?{query}")) == (400, "invalid_request")
