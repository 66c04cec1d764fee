"""Limits of the query, and when it is parsed (HTTP-13, HTTP-27)."""

import pytest

from volcano_locks_server.http.auth import CREDENTIAL_BYTES_MAX
from volcano_locks_server.http.codec import PARAMETERS_MAX, QUERY_BYTES_MAX

from .conftest import ADMIN_TOKEN, HttpHarness, problem

LONGEST = "a" * QUERY_BYTES_MAX
MOST = "&".join(["a=b"] * PARAMETERS_MAX)
ADDRESSES = [
    ("GET", "/locks", ""),
    ("GET", "/locks/a", ""),
    ("DELETE", "/locks/a", ""),
    ("GET", "/locks/events", ""),
    ("GET", "/projects", ADMIN_TOKEN),
    ("GET", "/healthz", None),
    ("GET", "/openapi.json", None),
]
BROKEN = "prefix=a&prefix=b&limit=x&state=&view=&cursor="


@pytest.mark.parametrize(("method", "path", "key"), ADDRESSES)
@pytest.mark.parametrize("query", [LONGEST, MOST])
async def test_the_limits_of_a_query_are_allowed(
    harness: HttpHarness, method: str, path: str, key: str | None, query: str
) -> None:
    """HTTP-27."""
    assert (await harness.request(method, f"{path}?{query}", key=key)).status_code in (200, 204)


@pytest.mark.parametrize(("method", "path", "key"), ADDRESSES)
async def test_a_longer_query_is_414(harness: HttpHarness, method: str, path: str, key: str | None) -> None:
    """HTTP-27: the error sentence names the limit and the length."""
    response = await harness.request(method, f"{path}?{LONGEST}a", key=key)
    assert problem(response) == (414, "uri_too_long")
    assert f"{QUERY_BYTES_MAX} bytes; got {QUERY_BYTES_MAX + 1}" in response.json()["error"]


@pytest.mark.parametrize(("method", "path", "key"), ADDRESSES)
async def test_more_parameters_are_400(harness: HttpHarness, method: str, path: str, key: str | None) -> None:
    """HTTP-27."""
    response = await harness.request(method, f"{path}?{MOST}&a=b", key=key)
    assert problem(response) == (400, "invalid_request")
    assert f"{PARAMETERS_MAX} parameters; got {PARAMETERS_MAX + 1}" in response.json()["error"]


@pytest.mark.parametrize("path", ["/locks", "/locks/a", "/locks/events", "/locks/a/events", "/projects"])
@pytest.mark.parametrize("query", [BROKEN, MOST + "&a=b"])
async def test_the_credential_comes_before_the_query(harness: HttpHarness, path: str, query: str) -> None:
    """HTTP-13, HTTP-27."""
    assert problem(await harness.request("GET", f"{path}?{query}", key=None)) == (401, "invalid_credentials")


async def test_the_length_of_a_query_comes_before_the_credential(harness: HttpHarness) -> None:
    """HTTP-13: after address and method, before the credential."""
    assert problem(await harness.request("GET", f"/locks?{LONGEST}a", key=None)) == (414, "uri_too_long")
    assert problem(await harness.request("GET", f"/projects?{LONGEST}a", key=None)) == (414, "uri_too_long")
    assert problem(await harness.request("PUT", f"/locks?{LONGEST}a", key=None)) == (405, "method_not_allowed")
    assert problem(await harness.request("GET", f"/nowhere?{LONGEST}a", key=None)) == (404, "not_found")


async def test_a_refused_query_counts(harness: HttpHarness) -> None:
    """QUOTA-2: too many parameters are refused after the credential, too many bytes before it."""
    many = await harness.request("GET", f"/locks?{MOST}&a=b")
    assert many.headers["x-ratelimit-remaining"] == "599"
    assert "x-ratelimit-remaining" not in (await harness.request("GET", f"/locks?{LONGEST}a")).headers


async def test_a_lock_may_be_named_events(harness: HttpHarness) -> None:
    """EVENT-1: without `prefix`, `GET /locks/events` reads the lock of that name."""
    assert (await harness.request("GET", "/locks/events")).json() == {"held": False}
    assert (await harness.request("GET", "/locks/events?a=prefix")).json() == {"held": False}


@pytest.mark.parametrize("path", ["/locks/a", "/projects"])
async def test_a_long_credential_is_malformed(harness: HttpHarness, path: str) -> None:
    """HTTP-27, HTTP-14: its length is checked first."""
    value = "Bearer " + "a" * (CREDENTIAL_BYTES_MAX - 6)
    response = await harness.request("GET", path, headers={"Authorization": value})
    assert problem(response) == (401, "invalid_credentials")
    assert f"{CREDENTIAL_BYTES_MAX} bytes; got {CREDENTIAL_BYTES_MAX + 1}" in response.json()["error"]
