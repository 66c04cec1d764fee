"""The five lock requests: statuses, bodies, addresses and request ids."""

import json
import re
import uuid

import pytest

from volcano_locks_server.http.lock_operations import ACQUIRE
from volcano_locks_server.http.responses import outcome_response
from volcano_locks_server.rules.lease import held_by

from .conftest import HttpHarness, both_ways, new_token, problem

over_socket = both_ways


async def test_the_five_requests_succeed(harness: HttpHarness) -> None:
    """HTTP-1, HTTP-3, HTTP-4, HTTP-5: status and body of each verb."""
    token = new_token()
    acquired = await harness.acquire("daily-rollup", token, 30)
    assert acquired.status_code == 201
    assert acquired.json() == {"expires_at": "2026-07-20T14:00:30.000Z", "fencing_token": harness.clock.now_ms()}
    harness.clock.advance(123)
    renewed = await harness.renew("daily-rollup", token, 60)
    assert renewed.status_code == 200
    lease = {"expires_at": "2026-07-20T14:01:00.123Z", "fencing_token": acquired.json()["fencing_token"]}
    assert renewed.json() == lease
    assert await harness.read("daily-rollup") == {"held": True, **lease}
    released = await harness.release("daily-rollup", token)
    assert (released.status_code, released.content) == (204, b"")
    assert await harness.read("daily-rollup") == {"held": False}
    await harness.acquire("daily-rollup", new_token())
    forced = await harness.request("DELETE", "/locks/daily-rollup")
    assert (forced.status_code, forced.content) == (204, b"")
    assert await harness.read("daily-rollup") == {"held": False}


async def test_the_same_acquire_twice_is_one_lease(harness: HttpHarness) -> None:
    """case 13, case 32, LEASE-4: the repeat of a POST, such as a runtime sends, gets the same lease."""
    token, request_id = new_token(), str(uuid.uuid4())
    sent = {"X-Volcano-Request-Id": request_id}
    once = await harness.acquire("a", token, headers=sent)
    again = await harness.acquire("a", token, headers=sent)
    assert (once.status_code, again.status_code) == (201, 201)
    assert once.json() == again.json()


async def test_the_case_of_a_token_does_not_matter(harness: HttpHarness) -> None:
    """HTTP-8."""
    token = new_token()
    await harness.acquire("a", token)
    assert (await harness.renew("a", token.upper())).status_code == 200


async def test_locks_of_two_projects_are_independent(harness: HttpHarness) -> None:
    """HTTP-2: the service key determines the project."""
    project = (await harness.admin("POST", "/projects", json={"name": "other"})).json()
    made = await harness.admin("POST", f"/projects/{project['id']}/service-keys", json={"name": "k"})
    other = made.json()["key_value"]
    assert (await harness.acquire("a", new_token())).status_code == 201
    assert (await harness.acquire("a", new_token(), key=other)).status_code == 201
    await harness.request("DELETE", "/locks/a", key=other)
    assert (await harness.read("a"))["held"] is True


@pytest.mark.parametrize(
    ("sent", "stored"),
    [("a%3Ab", "a:b"), ("%61", "a"), ("a.b_c-D:9", "a.b_c-D:9"), ("lease", "lease"), ("k" * 128, "k" * 128)],
)
async def test_a_key_is_decoded_once(harness: HttpHarness, sent: str, stored: str) -> None:
    """HTTP-7: keys are percent-decoded once, for each verb."""
    assert (await harness.acquire(sent, new_token())).status_code == 201
    assert (await harness.read(stored))["held"] is True
    assert (await harness.request("DELETE", f"/locks/{sent}")).status_code == 204
    assert await harness.read(stored) == {"held": False}


@pytest.mark.parametrize(
    "key", ["a%2Fb", "a%253Ab", ".a", "-a", "a%20b", "%00", "a%", "a%zz", "%C3%A9", "%FF", "k" * 129, "a,b", "a%0D%0Ab"]
)
async def test_an_invalid_key_is_refused(harness: HttpHarness, key: str) -> None:
    """HTTP-7: an encoded slash is an invalid key, not another address."""
    assert problem(await harness.acquire(key, new_token())) == (400, "invalid_lock_key")
    assert problem(await harness.request("GET", f"/locks/{key}")) == (400, "invalid_lock_key")


@pytest.mark.parametrize(
    "path",
    [
        "/lock",
        "/locks/a/b",
        "/locks/a/lease/",
        "/locks/a/",
        "/Locks/a",
        "/nowhere",
        "/%6Cocks/a",
        "/%68ealthz",
        "/healthz/",
        "//healthz",
    ],
)
async def test_an_unknown_address_is_404(harness: HttpHarness, path: str) -> None:
    """HTTP-6: addresses are matched exactly, as they were sent."""
    assert problem(await harness.request("GET", path)) == (404, "not_found")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/locks/a/lease", "POST, PATCH, DELETE"),
        ("HEAD", "/locks/a", "GET, DELETE"),
        ("POST", "/locks/a", "GET, DELETE"),
        ("OPTIONS", "/locks/a", "GET, DELETE"),
        ("POST", "/locks", "GET"),
        ("HEAD", "/locks", "GET"),
        ("PUT", "/projects", "GET, POST"),
        ("POST", "/healthz", "GET"),
        ("DELETE", "/metrics", "GET"),
    ],
)
async def test_another_method_is_405(harness: HttpHarness, method: str, path: str, allowed: str) -> None:
    """HTTP-6, HTTP-13: `Allow` lists the methods, without a credential too."""
    response = await harness.request(method, path, key=None)
    assert response.status_code == 405
    assert response.headers["allow"] == allowed
    assert method == "HEAD" or response.json()["code"] == "method_not_allowed"


async def test_query_parameters_are_ignored(harness: HttpHarness) -> None:
    """HTTP-6."""
    assert (await harness.request("GET", "/locks/a?key=b&x=%2F")).json() == {"held": False}


async def test_a_request_id_is_echoed_in_lower_case(harness: HttpHarness) -> None:
    """HTTP-9: the one sent or a new one, in every kind of response."""
    sent = str(uuid.uuid4()).upper()
    for method, path in (
        ("GET", "/locks/a"),
        ("GET", "/locks/.a"),
        ("GET", "/nowhere"),
        ("PUT", "/locks/a"),
        ("GET", "/healthz"),
    ):
        response = await harness.request(method, path, headers={"X-Volcano-Request-Id": sent})
        assert response.headers["x-volcano-request-id"] == sent.lower()
        made = await harness.request(method, path)
        assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", made.headers["x-volcano-request-id"])
        assert made.headers["x-volcano-request-id"] != sent.lower()


async def test_an_invalid_request_id_is_replaced(harness: HttpHarness) -> None:
    """HTTP-9: the response that refuses it carries a generated one."""
    for path, key in (("/locks/a", None), ("/projects", "admin")):
        headers = {"X-Volcano-Request-Id": "nope"}
        response = await (harness.admin if key else harness.request)("GET", path, headers=headers)
        assert problem(response) == (400, "invalid_request_id")
        uuid.UUID(response.headers["x-volcano-request-id"])


async def test_a_refused_acquire_names_the_lease(harness: HttpHarness) -> None:
    """HTTP-28: holder, expiry and fencing token, in the form of HTTP-3; in the grace the expiry is in the past."""
    holder = {"X-Volcano-Lock-Holder": 'w"\\/1'}
    lease = (await harness.acquire("a", new_token(), 30, headers=holder)).json()
    for _ in range(2):
        refused = await harness.acquire("a", new_token())
        assert problem(refused) == (409, "lock_held")
        body = refused.json()
        assert list(body) == ["error", "code", "holder", "expires_at", "fencing_token"]
        assert body == {"error": body["error"], "code": "lock_held", "holder": 'w"\\/1', **lease}
        harness.clock.advance(30_500)


async def test_a_lease_without_a_label_has_no_holder(harness: HttpHarness) -> None:
    """HTTP-28: null, and the lease is named all the same."""
    lease = (await harness.acquire("a", new_token())).json()
    refused = (await harness.acquire("a", new_token())).json()
    assert (refused["holder"], refused["fencing_token"]) == (None, lease["fencing_token"])


async def test_a_lost_ownership_names_no_lease(harness: HttpHarness) -> None:
    """HTTP-28: only `lock_held` does; a former owner learns nothing about the next one."""
    token = new_token()
    await harness.acquire("a", new_token())
    for response in (await harness.renew("a", token), await harness.release("a", token)):
        assert problem(response) == (409, "lock_ownership_lost")
        assert set(response.json()) == {"error", "code"}


def test_an_unknown_lease_is_null() -> None:
    """HTTP-28: the fields are present; a free lock reserved for earlier waiters has no lease."""
    body = json.loads(outcome_response(ACQUIRE, held_by(None)).body)
    assert {word: body[word] for word in ("holder", "expires_at", "fencing_token")} == {
        "holder": None,
        "expires_at": None,
        "fencing_token": None,
    }
