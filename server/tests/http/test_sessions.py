"""The dashboard's sign-in and its sessions: UI-1 to UI-6."""

import asyncio
import io
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from volcano_locks_server.http import credential_cache, sessions
from volcano_locks_server.http.event_stream import PING_MS
from volcano_locks_server.runtime.server import Server
from volcano_locks_server.runtime.settings import Settings
from volcano_locks_server.stores import OpenStore
from volcano_locks_server.testing import ManualClock

from .conftest import ADMIN_TOKEN, HttpHarness, new_token, problem
from .test_event_stream import StreamClient, turns

COOKIE = "__Host-volcano_locks_session"


@pytest.fixture
def dashboard() -> bool:
    return True


async def sign_in(harness: HttpHarness, key: str = "") -> dict[str, Any]:
    """Sign in by a code for this credential; the client then has the cookie. Returns the session."""
    made = await harness.request("POST", "/ui/codes", key=key)
    assert made.status_code == 200, made.text
    signed_in = await harness.request("POST", "/ui/session", key=None, json={"code": made.json()["code"]})
    assert signed_in.status_code == 200, signed_in.text
    found: dict[str, Any] = signed_in.json()
    return found


async def status(harness: HttpHarness, path: str = "/ui/session", method: str = "GET", **more: Any) -> int:
    """The status of a request with the cookie alone."""
    return (await harness.request(method, path, key=None, **more)).status_code


async def test_a_code_signs_in_once(harness: HttpHarness) -> None:
    """UI-1, UI-2."""
    code = (await harness.request("POST", "/ui/codes")).json()
    assert re.fullmatch(r"[\w-]{43}", code["code"])
    assert code["expires_at"] == "2026-07-20T14:01:00.000Z"
    signed_in = await harness.request("POST", "/ui/session", key=None, json={"code": code["code"]})
    cookie = signed_in.headers["set-cookie"]
    assert re.fullmatch(rf"{COOKIE}=[\w-]{{43}}; HttpOnly; SameSite=Strict; Path=/; Max-Age=28800; Secure", cookie), (
        "the in-process client is not at a loopback name"
    )
    session = signed_in.json()
    assert session == {
        "kind": "service_key",
        "name": "first",
        "project_id": harness.project_id,
        "project_name": "test",
        "permissions": ["*"],
        "csrf_token": session["csrf_token"],
        "expires_at": "2026-07-20T22:00:00.000Z",
    }
    again = await harness.request("POST", "/ui/session", key=None, json={"code": code["code"]})
    assert problem(again) == (401, "invalid_credentials")


async def test_a_first_visit_is_no_failed_credential(harness: HttpHarness) -> None:
    """UI-1, HTTP-35: but a session that is unknown is one."""
    assert await status(harness, "/ui/session") == 401
    assert harness.server.metrics.failed_credentials == 0
    assert await status(harness, "/ui/session", headers={"Cookie": f"{COOKIE}={'x' * 43}"}) == 401
    assert harness.server.metrics.failed_credentials == 1


async def test_a_sign_out_of_an_unknown_session_is_a_failed_credential(harness: HttpHarness) -> None:
    """UI-1, HTTP-35: without a cookie it is none."""
    assert await status(harness, "/ui/session", "DELETE") == 204
    assert harness.server.metrics.failed_credentials == 0
    assert await status(harness, "/ui/session", "DELETE", headers={"Cookie": f"{COOKIE}={'x' * 43}"}) == 401
    assert harness.server.metrics.failed_credentials == 1


async def test_a_code_lasts_a_minute(harness: HttpHarness) -> None:
    """UI-2."""
    code = (await harness.request("POST", "/ui/codes")).json()["code"]
    harness.clock.advance(60_000)
    late = await harness.request("POST", "/ui/session", key=None, json={"code": code})
    assert problem(late) == (401, "invalid_credentials")


async def test_made_up_codes_reach_no_write_of_the_store(harness: HttpHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """HTTP-24: anyone can send them. They are looked up within the bounds of all unknown credentials."""
    store, taken = harness.server.store.sessions, 0
    take = store.take

    async def counted(digest: bytes, **more: Any) -> Any:
        nonlocal taken
        taken += 1
        return await take(digest, **more)

    monkeypatch.setattr(store, "take", counted)
    await sign_in(harness)
    assert taken == 1
    made_up = {"json": {"code": "x" * 43}}
    assert await status(harness, "/ui/session", "POST", **made_up) == 401
    assert taken == 1
    monkeypatch.setattr(credential_cache, "LOOKUPS_MAX", 0)
    refused = await harness.request("POST", "/ui/session", key=None, **made_up)
    assert problem(refused) == (503, "lock_service_unavailable")


async def test_a_session_is_no_code_and_a_code_no_session(harness: HttpHarness) -> None:
    code = (await harness.request("POST", "/ui/codes")).json()["code"]
    assert await status(harness, headers={"Cookie": f"{COOKIE}={code}"}) == 401
    await sign_in(harness)
    session = harness.client.cookies[COOKIE]
    assert await status(harness, "/ui/session", "POST", json={"code": session}) == 401
    assert await status(harness) == 200, "a session that is sent as a code goes on"


async def test_a_session_reads_locks(harness: HttpHarness) -> None:
    """UI-5."""
    await harness.acquire("nightly", new_token())
    await sign_in(harness)
    listed = await harness.request("GET", "/locks", key=None)
    assert [row["key"] for row in listed.json()["items"]] == ["nightly"]
    assert listed.headers["cache-control"] == "no-store"
    for path in ("/activity?project_id=x", f"/projects/{harness.project_id}/audit?limit=x", "/locks?limit=x", "/audit"):
        refused = await harness.request("GET", path, key=None)
        assert (refused.is_error, refused.headers["cache-control"]) == (True, "no-store"), path
    assert (await harness.request("GET", "/locks/nightly", key=None)).json()["held"] is True
    assert (await harness.request("GET", "/locks/nightly?view=full", key=None)).json()["key"] == "nightly"


async def test_a_session_holds_no_lock(harness: HttpHarness) -> None:
    """UI-5: acquire, renew and release ignore the cookie, with the CSRF token too."""
    token = new_token()
    await harness.acquire("nightly", token)
    session = await sign_in(harness)
    for send in (harness.acquire, harness.renew):
        sent = await send("nightly", token, key=None, headers={"X-Volcano-CSRF": session["csrf_token"]})
        assert problem(sent) == (401, "invalid_credentials")
    assert problem(await harness.release("nightly", token, key=None)) == (401, "invalid_credentials")
    for path in ("/admin-tokens", "/backups/1"):
        assert await status(harness, path) == 401
    assert (await harness.read("nightly"))["held"] is True


async def test_a_change_needs_the_csrf_token(harness: HttpHarness) -> None:
    """UI-8."""
    await harness.acquire("nightly", new_token())
    session = await sign_in(harness)
    for sent in ({}, {"X-Volcano-CSRF": "0" * 64}, {"X-Volcano-CSRF": session["csrf_token"][:-1]}):
        refused = await harness.request("DELETE", "/locks/nightly", key=None, headers=sent)
        assert problem(refused) == (403, "cross_site_refused")
    assert (await harness.read("nightly"))["held"] is True
    csrf = {"X-Volcano-CSRF": session["csrf_token"]}
    assert await status(harness, "/locks/nightly", "DELETE", headers=csrf) == 204
    assert (await harness.read("nightly"))["held"] is False


async def test_an_admin_tokens_session_manages_projects(harness: HttpHarness) -> None:
    """UI-5: and no locks, as with the token itself."""
    session = await sign_in(harness, ADMIN_TOKEN)
    assert (session["kind"], session["name"], session["project_id"]) == ("admin_token", "(configured)", None)
    assert await status(harness, "/projects") == 200
    assert await status(harness, "/projects", "POST", json={"name": "made"}) == 403
    csrf = {"X-Volcano-CSRF": session["csrf_token"]}
    assert await status(harness, "/projects", "POST", json={"name": "made"}, headers=csrf) == 201
    assert problem(await harness.request("GET", "/locks", key=None)) == (403, "service_key_required")


async def test_a_keys_session_manages_no_projects(harness: HttpHarness) -> None:
    await sign_in(harness)
    assert problem(await harness.request("GET", "/projects", key=None)) == (403, "admin_token_required")


async def test_permissions_are_those_of_the_key(harness: HttpHarness) -> None:
    """UI-5: a key that only reads sees and cannot change; one without a permission here does not sign in."""
    session = await sign_in(harness, (await harness.new_key("reader", permissions=["locks.read"]))["key_value"])
    assert session["permissions"] == ["locks.read"]
    assert await status(harness, "/locks") == 200
    csrf = {"X-Volcano-CSRF": session["csrf_token"]}
    refused = await harness.request("DELETE", "/locks/nightly", key=None, headers=csrf)
    assert problem(refused) == (403, "missing_permission")
    other = (await harness.new_key("other", permissions=["functions.invoke"]))["key_value"]
    assert problem(await harness.request("POST", "/ui/codes", key=other)) == (403, "missing_permission")


async def test_the_header_wins_over_the_cookie(harness: HttpHarness) -> None:
    """UI-5: also if its credential is refused."""
    await sign_in(harness)
    assert await status(harness, "/locks") == 200
    assert (await harness.request("GET", "/locks", key="sk-" + "0" * 43)).status_code == 401
    counted = await harness.request("GET", "/locks")
    assert counted.headers["x-ratelimit-limit"] == "600"


async def test_signing_out_ends_the_session(harness: HttpHarness) -> None:
    """UI-1, UI-3."""
    await sign_in(harness)
    cookie = {"Cookie": f"{COOKIE}={harness.client.cookies[COOKIE]}"}
    assert await status(harness) == 200
    gone = await harness.request("DELETE", "/ui/session", key=None)
    assert gone.status_code == 204
    assert gone.headers["set-cookie"].startswith(f"{COOKIE}=; HttpOnly; SameSite=Strict; Path=/; Max-Age=0")
    assert await status(harness, headers=cookie) == 401
    assert await status(harness, "/locks", headers=cookie) == 401


async def test_a_session_lasts_eight_hours(harness: HttpHarness) -> None:
    """UI-3."""
    await sign_in(harness)
    harness.clock.advance(8 * 3_600_000 - 1)
    assert await status(harness) == 200
    harness.clock.advance(1)
    assert await status(harness) == 401
    assert await status(harness, "/locks") == 401


@pytest.mark.parametrize("how", ["delete", "rotate", "expire", "project"])
async def test_a_session_ends_with_its_key(harness: HttpHarness, how: str) -> None:
    """UI-3."""
    made = await harness.new_key("mine", expires_at="2026-07-20T15:00:00Z")
    session = await sign_in(harness, made["key_value"])
    assert session["expires_at"] == "2026-07-20T15:00:00.000Z"
    assert await status(harness, "/locks") == 200
    path = f"/projects/{harness.project_id}/service-keys/{made['id']}"
    match how:
        case "delete":
            await harness.admin("DELETE", path)
        case "rotate":
            await harness.admin("POST", f"{path}/regenerate")
        case "project":
            await harness.admin("DELETE", f"/projects/{harness.project_id}")
        case "expire":
            harness.clock.advance(3_600_000)
    assert await status(harness, "/locks") == 401
    assert await status(harness) == 401


async def test_a_rotation_with_overlap_ends_the_session_with_the_old_secret(harness: HttpHarness) -> None:
    """UI-3."""
    made = await harness.new_key("mine")
    await sign_in(harness, made["key_value"])
    path = f"/projects/{harness.project_id}/service-keys/{made['id']}/regenerate"
    await harness.admin("POST", path, json={"keep_old_seconds": 60})
    assert await status(harness, "/locks") == 200
    harness.clock.advance(60_000)
    assert await status(harness, "/locks") == 401


async def test_a_session_ends_with_its_admin_token(harness: HttpHarness) -> None:
    """UI-3."""
    made = (await harness.admin("POST", "/admin-tokens", json={"name": "ann"})).json()
    assert (await sign_in(harness, made["token_value"]))["name"] == "ann"
    assert await status(harness, "/projects") == 200
    await harness.admin("DELETE", f"/admin-tokens/{made['id']}")
    assert await status(harness, "/projects") == 401


async def test_a_session_has_a_budget_of_its_own(harness: HttpHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """UI-6."""
    monkeypatch.setattr(sessions, "SESSION_REQUESTS_PER_MINUTE", 3)
    await sign_in(harness)
    await harness.set_quota(1)
    assert (await harness.request("GET", "/locks")).status_code == 200
    assert problem(await harness.request("GET", "/locks")) == (429, "lock_rate_limited")
    remaining = [(await harness.request("GET", "/locks", key=None)).headers["x-ratelimit-remaining"] for _ in range(3)]
    assert remaining == ["2", "1", "0"]
    spent = await harness.request("GET", "/locks", key=None)
    assert problem(spent) == (429, "lock_rate_limited")
    assert spent.headers["retry-after"] == "60"
    assert problem(await harness.request("GET", "/ui/session", key=None)) == (429, "lock_rate_limited")
    harness.clock.advance(60_000)
    assert await status(harness, "/locks") == 200


async def test_the_sessions_of_a_project_share_a_budget(harness: HttpHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """UI-6: more keys and sessions read no more; those of other projects and of admin tokens are not affected."""
    monkeypatch.setattr(sessions, "PROJECT_SESSION_REQUESTS_PER_MINUTE", 4)
    monkeypatch.setattr(sessions, "SESSION_REQUESTS_PER_MINUTE", 3)
    await sign_in(harness)
    assert [await status(harness, path) for path in ("/locks", "/activity", "/nodes", "/locks")] == [200, 200, 200, 429]
    await sign_in(harness, (await harness.new_key("second"))["key_value"])
    assert await status(harness, f"/projects/{harness.project_id}/audit") == 200
    spent = await harness.request("GET", "/locks", key=None)
    assert problem(spent) == (429, "lock_rate_limited")
    assert "4 requests a minute" in spent.json()["error"]
    assert (await harness.request("GET", "/locks")).status_code == 200, "the quota is another budget"
    await sign_in(harness, ADMIN_TOKEN)
    assert await status(harness, "/nodes") == 200
    harness.clock.advance(60_000)
    await sign_in(harness)
    assert await status(harness, "/locks") == 200


async def test_the_oldest_session_of_a_key_makes_room(harness: HttpHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """UI-4."""
    monkeypatch.setitem(sessions._LIMITS, "session", sessions.SessionLimits(2, 10))
    cookies = []
    for _ in range(3):
        await sign_in(harness)
        cookies.append(harness.client.cookies[COOKIE])
        harness.clock.advance(5_000)
    harness.client.cookies.clear()
    seen = [await status(harness, headers={"Cookie": f"other=1; {COOKIE}={cookie}; b=2"}) for cookie in cookies]
    assert seen == [401, 200, 200]


async def test_a_credential_signs_in_so_often_a_minute(harness: HttpHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """UI-4: each sign-in has an entry in the audit, and a session with a budget of its own."""
    monkeypatch.setattr(sessions, "SIGN_INS_PER_MINUTE", 2)
    for _ in range(2):
        await sign_in(harness)
    spent = await harness.request("POST", "/ui/codes")
    assert problem(spent) == (429, "lock_rate_limited")
    assert spent.headers["retry-after"] == "60"
    spent = await harness.request("POST", "/ui/session", key=None, json={"credential": harness.service_key})
    assert problem(spent) == (429, "lock_rate_limited")
    entries = (await harness.admin("GET", "/audit")).json()["items"]
    assert [entry["action"] for entry in entries].count("signed_in") == 2
    await sign_in(harness, ADMIN_TOKEN)
    harness.clock.advance(60_000)
    await sign_in(harness)


@pytest.mark.parametrize("body", ["{}", '{"code":"a","credential":"b"}', '{"code":1}', '{"code":"é"}', "[]", '{"x":1}'])
async def test_a_malformed_sign_in_is_refused(harness: HttpHarness, body: str) -> None:
    refused = await harness.request("POST", "/ui/session", key=None, content=body.encode())
    assert problem(refused) == (400, "invalid_request")


async def test_no_secret_is_logged(harness: HttpHarness) -> None:
    """UI-2: the log names who signed in, how, and with which credential."""
    session = await sign_in(harness)
    await status(harness, "/ui/session", "POST", json={"code": "made-up"})
    cookie = harness.client.cookies[COOKIE]
    await harness.server.close()
    log = harness.log.getvalue()
    assert '"dashboard_signed_in"' in log
    assert '"key_name":"first"' in log.replace('": "', '":"')
    for secret in (cookie, session["csrf_token"], harness.service_key, "made-up"):
        assert secret not in log


async def test_without_the_dashboard_there_is_none(clock: ManualClock) -> None:
    """UI-1: also no cookie is accepted."""
    server = Server(Settings(store="memory://", port=0, admin_token=ADMIN_TOKEN), clock=clock, log_stream=io.StringIO())
    await server.open()
    transport = httpx2.ASGITransport(app=server.app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        for method, path in (("GET", "/ui"), ("GET", "/ui/session"), ("POST", "/ui/codes"), ("GET", "/ui/app.js")):
            assert problem(await client.request(method, path)) == (404, "not_found")
        cookie = {"Cookie": f"{COOKIE}={'0' * 43}"}
        assert problem(await client.get("/locks", headers=cookie)) == (401, "invalid_credentials")
    await server.close()


async def test_a_session_watches_until_it_ends(harness: HttpHarness) -> None:
    """UI-5, UI-3: the stream ends at the next ping after the sign-out."""
    await sign_in(harness)
    sent = {"authorization": "", "host": "locks.test", "cookie": f"{COOKIE}={harness.client.cookies[COOKIE]}"}
    stream = StreamClient(harness, "/locks/events", "prefix=", **sent)
    await turns()
    await harness.acquire("nightly", new_token())
    await turns()
    assert stream.names() == ["acquired nightly"]
    await harness.request("DELETE", "/ui/session", key=None)
    harness.clock.advance(PING_MS)
    await asyncio.wait_for(stream.task, 30)
    assert stream.whole


@pytest.fixture
async def second(harness: HttpHarness, clock: ManualClock) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of another node over the same store."""
    store: OpenStore = harness.server.store
    settings = Settings(store="memory://", port=0, admin_token=ADMIN_TOKEN, dashboard=True)
    server = Server(settings, clock=clock, store=store, log_stream=io.StringIO())
    await server.open()
    transport = httpx2.ASGITransport(app=server.app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client
    await server.close()


@pytest.mark.parametrize("key", ["", ADMIN_TOKEN])
async def test_a_session_is_valid_on_every_node(harness: HttpHarness, second: httpx2.AsyncClient, key: str) -> None:
    """UI-3: and ends there within 5 seconds."""
    await sign_in(harness, key)
    cookie = {"Cookie": f"{COOKIE}={harness.client.cookies[COOKIE]}"}
    assert (await second.get("/ui/session", headers=cookie)).status_code == 200
    await harness.request("DELETE", "/ui/session", key=None)
    harness.clock.advance(5_000)
    assert (await second.get("/ui/session", headers=cookie)).status_code == 401


async def test_the_configured_token_counts_only_where_it_is_configured(
    harness: HttpHarness, clock: ManualClock
) -> None:
    """UI-3: a node with another configured token does not accept the session."""
    await sign_in(harness, ADMIN_TOKEN)
    cookie = {"Cookie": f"{COOKIE}={harness.client.cookies[COOKIE]}"}
    settings = Settings(store="memory://", port=0, admin_token="another-admin-token", dashboard=True)
    other = Server(settings, clock=clock, store=harness.server.store, log_stream=io.StringIO())
    await other.open()
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=other.app), base_url="http://localhost") as client:
        assert (await client.get("/ui/session", headers=cookie)).status_code == 401
    await other.close()
