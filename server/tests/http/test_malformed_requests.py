"""Invalid input: each kind has its code, and the sentence names the field, the limit and the value (HTTP-17)."""

from typing import Any

import pytest

from volcano_locks_server.http.codec import BODY_BYTES_MAX

from .conftest import ADMIN_TOKEN, HttpHarness, both_ways, new_token, problem

over_socket = both_ways


DEEP = b'{"ttl_seconds":' + b"[" * 7_000 + b"]" * 7_000 + b"}"


@pytest.mark.parametrize(
    "ttl",
    [
        b"4",
        b"7776001",
        b"30.0",
        b"3e1",
        b"true",
        b'"30"',
        b"null",
        b"-30",
        b"[]",
        b"{}",
        b"1" + b"0" * 500,
        b"99999999999999999999",
    ],
)
@pytest.mark.parametrize("method", ["POST", "PATCH"])
async def test_an_invalid_ttl_is_refused(harness: HttpHarness, method: str, ttl: bytes) -> None:
    """HTTP-11: only a whole JSON number from 5 to 7,776,000 is valid."""
    body = b'{"ttl_seconds": %b}' % ttl
    response = await harness.request(
        method, "/locks/a/lease", headers={"X-Volcano-Lock-Token": new_token()}, content=body
    )
    assert problem(response) == (400, "invalid_ttl")
    assert "ttl_seconds" in response.json()["error"]


@pytest.mark.parametrize("ttl", [5, 7_776_000])
async def test_the_limits_of_a_ttl_are_allowed(harness: HttpHarness, ttl: int) -> None:
    """HTTP-11."""
    assert (await harness.acquire("a", new_token(), ttl)).status_code == 201


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{}", "invalid_ttl"),
        (b"", "invalid_request"),
        (b" ", "invalid_request"),
        (b"[]", "invalid_request"),
        (b"null", "invalid_request"),
        (b"30", "invalid_request"),
        (b"{", "invalid_request"),
        (b'{"ttl_seconds": 30} x', "invalid_request"),
        (b'{"ttl_seconds": NaN}', "invalid_request"),
        (b'{"ttl_seconds": 030}', "invalid_request"),
        (b'{"ttl_seconds": 30, "wait": 1}', "invalid_request"),
        (b'{"ttl": 30}', "invalid_request"),
        (b'{"ttl_seconds": 30, "ttl_seconds": 60}', "invalid_request"),
        (b'{"ttl_seconds": 30, "ttl\\u005fseconds": 60}', "invalid_request"),
        (b'{"ttl_seconds": "\xff"}', "invalid_request"),
        (b"\xff\xfe", "invalid_request"),
        (b"\xef\xbb\xbf{}", "invalid_request"),
        ('{"ttl_seconds": 30}'.encode("utf-16"), "invalid_request"),
        (DEEP, "invalid_request"),
    ],
)
async def test_an_invalid_body_of_a_lease_request_is_refused(harness: HttpHarness, body: bytes, code: str) -> None:
    """HTTP-12: a body is one UTF-8 object with its field once and no others; broken UTF-8 and deep nesting are 400."""
    response = await harness.request(
        "POST", "/locks/a/lease", headers={"X-Volcano-Lock-Token": new_token()}, content=body
    )
    assert problem(response) == (400, code)
    assert await harness.read("a") == {"held": False}


async def test_the_content_type_is_ignored(harness: HttpHarness) -> None:
    """HTTP-12: curl sends another content type by default."""
    headers = {"X-Volcano-Lock-Token": new_token(), "Content-Type": "application/x-www-form-urlencoded"}
    response = await harness.request("POST", "/locks/a/lease", headers=headers, content=b'{"ttl_seconds":30}')
    assert response.status_code == 201


async def test_the_body_of_a_request_that_takes_none_is_ignored(harness: HttpHarness) -> None:
    """HTTP-12."""
    token = new_token()
    await harness.acquire("a", token)
    headers = {"X-Volcano-Lock-Token": token}
    assert (await harness.request("DELETE", "/locks/a/lease", headers=headers, content=b"{nonsense")).status_code == 204


@pytest.mark.parametrize(
    "token", [None, "", "x", "5b0c3f43", "{5b0c3f43-6f3c-4b53-9d3b-0c8f2a1f7f10}", "5b0c3f436f3c4b539d3b0c8f2a1f7f10"]
)
@pytest.mark.parametrize("method", ["POST", "PATCH", "DELETE"])
async def test_an_invalid_owner_token_is_refused(harness: HttpHarness, method: str, token: str | None) -> None:
    """HTTP-8: the message does not repeat the token."""
    headers = {} if token is None else {"X-Volcano-Lock-Token": token}
    response = await harness.request(method, "/locks/a/lease", headers=headers, json={"ttl_seconds": 30})
    assert problem(response) == (400, "invalid_lock_token")
    assert not token or token == "x" or token not in response.text


async def test_two_owner_tokens_are_invalid(harness: HttpHarness) -> None:
    """HTTP-8: a header field that is sent twice is invalid."""
    headers = [("Authorization", f"Bearer {harness.service_key}")] + [("X-Volcano-Lock-Token", new_token())] * 2
    response = await harness.client.request("POST", "/locks/a/lease", headers=headers, json={"ttl_seconds": 30})
    assert problem(response) == (400, "invalid_lock_token")


@pytest.mark.parametrize("holder", ["", "a b", "x" * 129, "caf\xe9", "a\tb"])
async def test_an_invalid_holder_is_refused(harness: HttpHarness, holder: str) -> None:
    """HTTP-10."""
    headers = {"X-Volcano-Lock-Holder": holder.encode("latin-1")}
    response = await harness.acquire("a", new_token(), headers=headers)  # type: ignore[arg-type]
    assert problem(response) == (400, "invalid_holder")


async def test_a_holder_label_is_not_shown_to_readers(harness: HttpHarness) -> None:
    """HTTP-10, HTTP-3: a read does not show it."""
    response = await harness.acquire("a", new_token(), headers={"X-Volcano-Lock-Holder": "worker-3/4711"})
    assert response.status_code == 201
    assert set(await harness.read("a")) == {"held", "expires_at", "fencing_token"}


@pytest.mark.parametrize(
    ("method", "path", "key"),
    [
        ("POST", "/locks/a/lease", ""),
        ("DELETE", "/locks/a", ""),
        ("POST", "/projects", ADMIN_TOKEN),
        ("GET", "/healthz", ADMIN_TOKEN),
    ],
)
async def test_a_long_body_is_413(harness: HttpHarness, method: str, path: str, key: str) -> None:
    """HTTP-21: at every address, by its declared length."""
    headers = {"X-Volcano-Lock-Token": new_token()}
    body = b'{"ttl_seconds": 30%b}' % (b" " * BODY_BYTES_MAX)
    response = await harness.request(method, path, key=key, headers=headers, content=body)
    assert problem(response) == (413, "request_too_large")


async def test_a_body_of_the_maximum_length_is_accepted(harness: HttpHarness) -> None:
    """HTTP-21."""
    body = b'{"ttl_seconds": 30}'.ljust(BODY_BYTES_MAX)
    response = await harness.request(
        "POST", "/locks/a/lease", headers={"X-Volcano-Lock-Token": new_token()}, content=body
    )
    assert response.status_code == 201


@pytest.mark.parametrize(
    "case",
    [
        {"content": b"[" * 8_000},
        {"content": b'{"name": "\xff"}'},
        {"content": b'{"name": NaN}'},
        {"content": b'{"name": "a", "name": "b"}'},
        {"content": '{"name": "a"}'.encode("utf-16")},
        {"content": b""},
        {"json": {"name": "a", "quota": 1}},
        {"json": ["a"]},
        {"json": {}},
        {"json": {"name": None}},
        {"json": {"name": "a b"}},
        {"json": {"name": "a" * 256}},
    ],
)
async def test_an_invalid_project_is_refused(harness: HttpHarness, case: dict[str, Any]) -> None:
    """ADMIN-3, HTTP-12."""
    assert problem(await harness.admin("POST", "/projects", **case)) == (400, "invalid_request")
