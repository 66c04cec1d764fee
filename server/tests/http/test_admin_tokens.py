"""Named admin tokens over HTTP: ADMIN-11, ADMIN-12."""

import json
import re
from typing import Any

import pytest

from volcano_locks_server.http.auth import CONFIGURED
from volcano_locks_server.http.credential_cache import CREDENTIAL_SECONDS_MAX

from .conftest import ADMIN_TOKEN, HttpHarness, problem


async def create(harness: HttpHarness, name: str = "ann", key: str = ADMIN_TOKEN) -> dict[str, Any]:
    response = await harness.request("POST", "/admin-tokens", key=key, json={"name": name})
    assert response.status_code == 201, response.text
    token: dict[str, Any] = response.json()
    return token


async def listed(harness: HttpHarness) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = (await harness.admin("GET", "/admin-tokens")).json()["items"]
    return items


def lines(harness: HttpHarness) -> list[dict[str, Any]]:
    harness.server.log.writer.close()
    return [json.loads(line) for line in harness.log.getvalue().splitlines()]


async def test_a_created_token_is_shown_once_and_works(harness: HttpHarness) -> None:
    """ADMIN-11, ADMIN-12: beside the configured one."""
    token = await create(harness)
    secret = token.pop("token_value")
    assert re.fullmatch(r"admin-[A-Za-z0-9_-]{43}", secret)
    assert token["token_prefix"] == secret[:14]
    assert (token["name"], token["last_used_at"]) == ("ann", None)
    assert await listed(harness) == [token]
    for key in (secret, ADMIN_TOKEN):
        assert (await harness.request("GET", "/projects", key=key)).status_code == 200
    assert secret.encode() not in b"".join(harness.responses[1:])
    assert secret not in json.dumps(lines(harness))


async def test_a_named_token_is_no_service_key(harness: HttpHarness) -> None:
    """HTTP-15, ADMIN-1: and a service key is no admin token."""
    secret = (await create(harness))["token_value"]
    assert problem(await harness.request("GET", "/locks/a", key=secret)) == (403, "service_key_required")
    for method, path in (("GET", "/admin-tokens"), ("POST", "/admin-tokens"), ("DELETE", "/admin-tokens/x")):
        for key, code in ((harness.service_key, (403, "admin_token_required")), (None, (401, "invalid_credentials"))):
            assert problem(await harness.request(method, path, key=key)) == code


async def test_a_revoked_token_stops_at_once(harness: HttpHarness) -> None:
    """ADMIN-12: it may revoke itself. Its name is free again."""
    token = await create(harness)
    secret = token["token_value"]
    assert (await harness.request("GET", "/projects", key=secret)).status_code == 200
    assert (await harness.request("DELETE", f"/admin-tokens/{token['id']}", key=secret)).status_code == 204
    assert problem(await harness.request("GET", "/projects", key=secret)) == (401, "invalid_credentials")
    assert problem(await harness.admin("DELETE", f"/admin-tokens/{token['id']}")) == (404, "not_found")
    await create(harness)


async def test_a_token_revoked_elsewhere_stops_within_five_seconds(harness: HttpHarness) -> None:
    """ADMIN-12."""
    token = await create(harness)
    assert (await harness.request("GET", "/projects", key=token["token_value"])).status_code == 200
    await harness.server.store.admin_tokens.delete(token["id"])
    harness.clock.advance(CREDENTIAL_SECONDS_MAX * 1_000)
    assert problem(await harness.request("GET", "/projects", key=token["token_value"])) == (401, "invalid_credentials")


async def test_a_name_is_unique_and_input_is_checked(harness: HttpHarness) -> None:
    """ADMIN-3, ADMIN-4."""
    await create(harness)
    assert problem(await harness.admin("POST", "/admin-tokens", json={"name": "ann"})) == (409, "name_taken")
    for body in ({}, {"name": "a b"}, {"name": CONFIGURED}, {"name": "x", "more": 1}, {"name": None}):
        assert problem(await harness.admin("POST", "/admin-tokens", json=body)) == (400, "invalid_request")
    assert problem(await harness.admin("GET", "/admin-tokens?cursor=projects.1")) == (400, "invalid_request")
    assert problem(await harness.admin("DELETE", "/admin-tokens/nothing")) == (404, "not_found")
    assert [one["name"] for one in await listed(harness)] == ["ann"]


async def test_the_last_use_is_stored(harness: HttpHarness) -> None:
    """ADMIN-11."""
    first, second = await create(harness, "first"), await create(harness, "second")
    harness.clock.advance(60_000)
    await harness.request("GET", "/projects", key=first["token_value"])
    await harness.server.remember_last_used()
    used = [one["last_used_at"] for one in await listed(harness)]
    assert used == ["2026-07-20T14:01:00.000Z", None]
    assert second["last_used_at"] is None


@pytest.mark.parametrize("named", [True, False])
async def test_the_log_names_the_admin_token(harness: HttpHarness, named: bool) -> None:
    """OPS-14: in every line about an admin request, and about one with the wrong credential."""
    token = await create(harness)
    key, expected = (token["token_value"], (token["id"], "ann")) if named else (ADMIN_TOKEN, (None, CONFIGURED))
    await harness.request("POST", "/projects", key=key, json={"name": "more"})
    other = await create(harness, "other", key=key)
    await harness.request("DELETE", f"/admin-tokens/{other['id']}", key=key)
    await harness.request("GET", "/locks/a", key=key)
    await harness.request("GET", "/projects/x", key=key)
    await harness.request("POST", "/projects", key=key, json={"name": "more"})
    found = lines(harness)[1:]
    events = [line["event"] for line in found]
    assert events == ["project_created", "admin_token_created", "admin_token_revoked", "refused", "refused", "refused"]
    for line in found:
        assert (line["admin_token_id"], line["admin_token_name"]) == expected, line
        assert line["address"] == "127.0.0.1"
        assert line["request_id"]
    assert [(line["token_id"], line["name"]) for line in found[1:3]] == [(other["id"], "other")] * 2
    assert [(line["code"], line["level"]) for line in found[3:]] == [
        ("service_key_required", "info"),
        ("not_found", "info"),
        ("name_taken", "debug"),
    ]
    assert "admin" in found[3]["reason"] or "service key" in found[3]["reason"]
