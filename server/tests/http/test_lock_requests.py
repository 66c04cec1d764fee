"""The five lock requests as a client sees them: statuses, bodies, and what a late or doubled one does."""

import re
import uuid

import pytest

from .conftest import House, new_token, problem


async def test_the_five_requests_succeed(house: House) -> None:
    """HTTP-1, HTTP-3, HTTP-4, HTTP-5: status and body of each verb."""
    token = new_token()
    acquired = await house.acquire("daily-rollup", token, 30)
    assert acquired.status_code == 201
    assert acquired.json() == {"expires_at": "2026-07-20T14:00:30.000Z", "fencing_token": house.clock.now_ms()}
    house.clock.advance(123)
    renewed = await house.renew("daily-rollup", token, 60)
    assert renewed.status_code == 200
    lease = {"expires_at": "2026-07-20T14:01:00.123Z", "fencing_token": acquired.json()["fencing_token"]}
    assert renewed.json() == lease
    assert await house.read("daily-rollup") == {"held": True, **lease}
    released = await house.release("daily-rollup", token)
    assert (released.status_code, released.content) == (204, b"")
    assert await house.read("daily-rollup") == {"held": False}
    await house.acquire("daily-rollup", new_token())
    forced = await house.ask("DELETE", "/locks/daily-rollup")
    assert (forced.status_code, forced.content) == (204, b"")
    assert await house.read("daily-rollup") == {"held": False}


async def test_a_held_lock_and_a_lost_one_are_409(house: House) -> None:
    """LEASE-6, LEASE-8, HTTP-18."""
    assert (await house.acquire("a", new_token())).status_code == 201
    assert problem(await house.acquire("a", new_token())) == (409, "lock_held")
    assert problem(await house.renew("a", new_token())) == (409, "lock_ownership_lost")
    assert problem(await house.release("a", new_token())) == (409, "lock_ownership_lost")


async def test_a_renewal_after_the_release_creates_nothing(house: House) -> None:
    """case 8: a late PATCH after DELETE is 409, and the lock stays free."""
    token = new_token()
    await house.acquire("a", token)
    await house.release("a", token)
    assert problem(await house.renew("a", token)) == (409, "lock_ownership_lost")
    assert await house.read("a") == {"held": False}


async def test_a_delayed_double_of_an_acquire_stays_without_effect(house: House) -> None:
    """case 15: an acquire that arrives after its release, even as the first to arrive, brings nothing back."""
    token, given_up = new_token(), new_token()
    await house.acquire("a", token)
    await house.release("a", token)
    assert problem(await house.acquire("a", token)) == (409, "lock_ownership_lost")
    await house.release("b", given_up)
    assert problem(await house.acquire("b", given_up)) == (409, "lock_ownership_lost")
    assert await house.read("a") == await house.read("b") == {"held": False}


async def test_a_release_is_bound_to_its_token(house: House) -> None:
    """case 19: a repeated release does not touch the lease that the same client took since."""
    first, second = new_token(), new_token()
    await house.acquire("a", first)
    await house.release("a", first)
    await house.acquire("a", second)
    assert problem(await house.release("a", first)) == (409, "lock_ownership_lost")
    assert (await house.read("a"))["held"] is True


async def test_the_same_acquire_twice_is_one_lease(house: House) -> None:
    """case 13, case 32, LEASE-4: a POST that a runtime sent twice does no harm, and the retry gets the lease."""
    token, request_id = new_token(), str(uuid.uuid4())
    sent = {"X-Volcano-Request-Id": request_id}
    once = await house.acquire("a", token, headers=sent)
    again = await house.acquire("a", token, headers=sent)
    assert (once.status_code, again.status_code) == (201, 201)
    assert once.json() == again.json()


async def test_the_case_of_a_token_does_not_matter(house: House) -> None:
    """HTTP-8."""
    token = new_token()
    await house.acquire("a", token)
    assert (await house.renew("a", token.upper())).status_code == 200


async def test_locks_of_two_projects_never_meet(house: House) -> None:
    """HTTP-2: the service key decides whose lock it is."""
    project = (await house.admin("POST", "/projects", json={"name": "other"})).json()
    made = await house.admin("POST", f"/projects/{project['id']}/service-keys", json={"name": "k"})
    other = made.json()["key_value"]
    assert (await house.acquire("a", new_token())).status_code == 201
    assert (await house.acquire("a", new_token(), key=other)).status_code == 201
    await house.ask("DELETE", "/locks/a", key=other)
    assert (await house.read("a"))["held"] is True


@pytest.mark.parametrize(
    ("sent", "stored"),
    [("a%3Ab", "a:b"), ("%61", "a"), ("a.b_c-D:9", "a.b_c-D:9"), ("lease", "lease"), ("k" * 128, "k" * 128)],
)
async def test_a_key_is_decoded_once(house: House, sent: str, stored: str) -> None:
    """HTTP-7: percent-decoding happens once, whatever the verb."""
    assert (await house.acquire(sent, new_token())).status_code == 201
    assert (await house.read(stored))["held"] is True
    assert (await house.ask("DELETE", f"/locks/{sent}")).status_code == 204
    assert await house.read(stored) == {"held": False}


@pytest.mark.parametrize(
    "key", ["a%2Fb", "a%253Ab", ".a", "-a", "a%20b", "%00", "a%", "a%zz", "%C3%A9", "%FF", "k" * 129, "a,b", "a%0D%0Ab"]
)
async def test_what_is_no_key_is_refused(house: House, key: str) -> None:
    """HTTP-7: an encoded slash is a bad key, not another address."""
    assert problem(await house.acquire(key, new_token())) == (400, "invalid_lock_key")
    assert problem(await house.ask("GET", f"/locks/{key}")) == (400, "invalid_lock_key")


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
async def test_an_unknown_address_is_404(house: House, path: str) -> None:
    """HTTP-6: addresses are matched exactly, as they were sent."""
    assert problem(await house.ask("GET", path)) == (404, "not_found")


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
async def test_another_method_is_405(house: House, method: str, path: str, allowed: str) -> None:
    """HTTP-6, HTTP-13: the methods there are stand in `Allow`, told without a credential."""
    answer = await house.ask(method, path, key=None)
    assert answer.status_code == 405
    assert answer.headers["allow"] == allowed
    assert method == "HEAD" or answer.json()["code"] == "method_not_allowed"


async def test_query_parameters_are_passed_over(house: House) -> None:
    """HTTP-6."""
    assert (await house.ask("GET", "/locks/a?key=b&x=%2F")).json() == {"held": False}


async def test_a_request_id_is_echoed_in_lower_case(house: House) -> None:
    """HTTP-9: the one that was sent, or a new one, on every kind of answer."""
    sent = str(uuid.uuid4()).upper()
    for method, path in (
        ("GET", "/locks/a"),
        ("GET", "/locks/.a"),
        ("GET", "/nowhere"),
        ("PUT", "/locks/a"),
        ("GET", "/healthz"),
    ):
        answer = await house.ask(method, path, headers={"X-Volcano-Request-Id": sent})
        assert answer.headers["x-volcano-request-id"] == sent.lower()
        made = await house.ask(method, path)
        assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", made.headers["x-volcano-request-id"])
        assert made.headers["x-volcano-request-id"] != sent.lower()


async def test_an_invalid_request_id_is_replaced(house: House) -> None:
    """HTTP-9: the answer that refuses it carries one of ours."""
    for path, key in (("/locks/a", None), ("/projects", "admin")):
        headers = {"X-Volcano-Request-Id": "nope"}
        answer = await (house.admin if key else house.ask)("GET", path, headers=headers)
        assert problem(answer) == (400, "invalid_request_id")
        uuid.UUID(answer.headers["x-volcano-request-id"])
