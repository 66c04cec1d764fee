"""Checks of the HTTP API: responses, refusals, quota headers and request ids."""

import re
import uuid
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from volcano_locks.protocol.effects import lease_path, lock_path

from .check import Checks, ScratchLock, new_token
from .http_client import BrokenPromise, Inconclusive, TimedResponse

CHECKS: Final = Checks()
QUOTA_FIELDS: Final = ("x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset")

_NUMBER: Final = re.compile(r"[0-9]{1,15}")


class _BadRequest(NamedTuple):
    """A request with one error, and the error code for it."""

    what: str
    code: str
    path: str
    token: str | None
    body: object
    headers: Mapping[str, str | None] = {}


@CHECKS.add("a read returns the state", "public", "LEASE-12", "HTTP-3")
async def a_read_returns_the_state(lock: ScratchLock) -> str:
    """A free lock reads as exactly {"held": false}; a held one with the expiry and fencing token of its lease."""
    free = (await lock.http.read(lock.key)).expect(200, to="a read of an unused lock")
    if free.json != {"held": False}:
        raise BrokenPromise('a free lock does not read as exactly {"held": false}')
    lease = await lock.hold()
    state = await lock.state()
    if (state.held, state.expires_at, state.fencing_token) != (True, lease.expires_at, lease.fencing_token):
        raise BrokenPromise("a held lock does not read as held with the expiry and fencing token of its lease")
    (await lock.http.release(lock.key, lease.token)).expect(204, to="a release by the owner")
    freed = await lock.http.read(lock.key)
    if freed.json != {"held": False}:
        raise BrokenPromise('a released lock does not read as exactly {"held": false}')
    return '{"held": false} when free, the lease when held'


@CHECKS.add("a key is decoded once", "public", "HTTP-7")
async def a_key_is_decoded_once(lock: ScratchLock) -> str:
    """`a%3Ab` in a path is the lock `a:b`."""
    lease = await lock.hold()
    read = (await lock.http.read(lock.key.replace(":", "%3A"))).expect(200, to="a read of the key with %3A for :")
    if read.json is None or read.json.get("fencing_token") != lease.fencing_token:
        raise BrokenPromise("the key with %3A for : is another lock")
    return "%3A in a path is :"


@CHECKS.add("quota headers", "public", "QUOTA-3")
async def quota_headers(lock: ScratchLock) -> str:
    """Each response has the limit, what remains and when the minute ends; each request counts."""
    first, second = await lock.http.read(lock.key), await lock.http.acquire(lock.key, new_token(), lock.ttl_seconds)
    limit, remaining, reset = _quota(first)
    later_limit, later_remaining, later_reset = _quota(second)
    if limit == 0:
        return "no quota (limit 0)"
    if limit != later_limit:
        raise Inconclusive("the limit changed between two responses")
    if later_reset == reset and not later_remaining < remaining <= limit:
        raise BrokenPromise(f"of {limit}, {remaining} remained and then {later_remaining}")
    if later_reset < reset:
        raise BrokenPromise("the end of the minute went back")
    return f"{limit} a minute, {later_remaining} remain"


@CHECKS.add("wrong input is refused", "public", "HTTP-7", "HTTP-8", "HTTP-9", "HTTP-11")
async def wrong_input_is_refused(lock: ScratchLock) -> str:
    """Invalid keys, owner tokens, request ids and TTLs get 400 and grant nothing."""
    for request in _malformed_requests(lock):
        (await _send(lock, request)).expect(400, to=request.what)
    await lock.expect_free("requests that were refused")
    return "bad keys, tokens, request ids and TTLs: 400"


@CHECKS.add("no credential, no response", "public", "HTTP-14")
async def a_credential_is_required(lock: ScratchLock) -> str:
    """A request without a service key, or with an unknown one, gets 401 and changes nothing."""
    for what, credential in (("no credential", None), ("an unknown key", f"Bearer sk-{uuid.uuid4().hex}")):
        headers = {"Authorization": credential}
        (await lock.http.send("GET", lock_path(lock.key), headers=headers)).expect(401, to=f"a read with {what}")
        body = {"ttl_seconds": lock.ttl_seconds}
        acquire = await lock.http.send("POST", lease_path(lock.key), token=new_token(), body=body, headers=headers)
        acquire.expect(401, to=f"an acquire with {what}")
    await lock.expect_free("acquires that were refused")
    return "none or unknown: 401"


@CHECKS.add("refusals have codes", "ours", "HTTP-17", "HTTP-18")
async def refusals_have_codes(lock: ScratchLock) -> str:
    """A refusal is {"error": sentence, "code": code}; the code names the error."""
    requests = _malformed_requests(lock)
    for request in requests:
        response = (await _send(lock, request)).expect(400, request.code, to=request.what)
        body = response.json
        if not isinstance(body, dict) or not isinstance(body.get("error"), str) or not body["error"]:
            raise BrokenPromise(f"{request.what}: the refusal has no sentence in `error`")
    return ", ".join(sorted({request.code for request in requests}))


@CHECKS.add("input is strict", "ours", "HTTP-11", "HTTP-12")
async def input_is_strict(lock: ScratchLock) -> str:
    """A TTL of 30.0, an unknown field and a body that is not an object are refused."""
    token, ttl = new_token(), lock.ttl_seconds
    path = lease_path(lock.key)
    requests = [
        _BadRequest("a TTL with a fraction", "invalid_ttl", path, token, f'{{"ttl_seconds": {ttl}.0}}'.encode()),
        _BadRequest("no TTL", "invalid_ttl", path, token, {}),
        _BadRequest("an unknown field", "invalid_request", path, token, {"ttl_seconds": ttl, "wait": True}),
        _BadRequest("broken JSON", "invalid_request", path, token, b'{"ttl_seconds": '),
    ]
    for request in requests:
        (await _send(lock, request)).expect(400, request.code, to=request.what)
    await lock.expect_free("requests that were refused")
    return "30.0, unknown fields, broken JSON: 400"


@CHECKS.add("an anon key is refused", "ours", "HTTP-14", "HTTP-15")
async def an_anon_key_is_refused(lock: ScratchLock) -> str:
    """An anon key gets 403 service_key_required; a missing credential gets a code too."""
    anon = {"Authorization": f"Bearer ak-{uuid.uuid4().hex}"}
    response = await lock.http.send("GET", lock_path(lock.key), headers=anon)
    response.expect(403, "service_key_required", to="a read with an anon key")
    none = await lock.http.send("GET", lock_path(lock.key), headers={"Authorization": None})
    none.expect(401, "invalid_credentials", to="a read without a credential")
    return "an anon key: 403 service_key_required"


@CHECKS.add("request ids are echoed or generated", "ours", "HTTP-9")
async def request_ids(lock: ScratchLock) -> str:
    """A response has the request's id in lower case, or a new one if none was sent; so do refusals."""
    own = str(uuid.uuid4())
    requests = [(own.upper(), lock_path(lock.key)), (own, lock_path("-")), (None, lock_path(lock.key))]
    for sent, path in requests:
        response = await lock.http.send("GET", path, headers={"X-Volcano-Request-Id": sent})
        echoed = response.headers.get("x-volcano-request-id", "")
        if sent is not None and echoed != own:
            raise BrokenPromise(f"a request id is not echoed ({response})")
        if sent is None and (response.status != 200 or not _is_uuid(echoed)):
            raise BrokenPromise(f"a request without an id is not given one ({response})")
    return "echoed, and generated if none was sent"


@CHECKS.add("holder labels", "ours", "HTTP-10")
async def holder_labels(lock: ScratchLock) -> str:
    """A holder label is accepted, or refused if it cannot be shown in one line."""
    body = {"ttl_seconds": lock.ttl_seconds}
    for label, status, code in (("h" * 129, 400, "invalid_holder"), ("a b", 400, "invalid_holder"), ("a/1", 201, None)):
        headers = {"X-Volcano-Lock-Holder": label}
        response = await lock.http.send("POST", lease_path(lock.key), token=new_token(), body=body, headers=headers)
        response.expect(status, code, to=f"an acquire with a label of {len(label)} characters")
    return "visible ASCII up to 128: accepted; else invalid_holder"


@CHECKS.add("addresses and methods", "ours", "HTTP-6")
async def addresses_and_methods(lock: ScratchLock) -> str:
    """An unknown address is 404; a known one with another method is 405 with `Allow`."""
    unknown = await lock.http.send("GET", f"{lock_path(lock.key)}/leases")
    unknown.expect(404, "not_found", to="an unknown address")
    wrong = await lock.http.send("PUT", lease_path(lock.key))
    wrong.expect(405, "method_not_allowed", to="a PUT of a lease")
    allowed = {one.strip() for one in wrong.headers.get("allow", "").split(",")}
    if not {"POST", "PATCH", "DELETE"} <= allowed:
        raise BrokenPromise("405 does not list the methods in Allow")
    return "404 not_found, 405 with Allow"


@CHECKS.add("the owner token is in no response", "ours", "LEASE-15", "HTTP-8", "HTTP-19")
async def owner_token_not_in_responses(lock: ScratchLock) -> str:
    """No response repeats the owner token: no grant, refusal, read, or error about a malformed token."""
    malformed = f"{new_token()}-{uuid.uuid4().hex}"
    lease = await lock.hold()
    body = {"ttl_seconds": lock.ttl_seconds}
    responses = [
        await lock.http.acquire(lock.key, lease.token, lock.ttl_seconds),
        await lock.http.read(lock.key),
        await lock.http.send("POST", lease_path(lock.key), token=malformed, body=body),
        await lock.http.send("PATCH", lease_path(lock.key), token=lease.token, body={}),
    ]
    for response in responses:
        content = response.body.decode("latin-1") + repr(sorted(response.headers.items()))
        if any(secret in content.lower() for secret in (lease.token, malformed)):
            raise BrokenPromise(f"a response repeats the owner token ({response})")
    return "not in grants, reads or refusals"


def _malformed_requests(lock: ScratchLock) -> list[_BadRequest]:
    """Requests that every service with this API refuses, each with one error."""
    path, token, good = lease_path(lock.key), new_token(), {"ttl_seconds": lock.ttl_seconds}
    ttls: Iterable[tuple[str, object]] = (("4", 4), ("7776001", 7_776_001), ("text", "30"), ("true", True))
    no_uuid = {"X-Volcano-Request-Id": "1"}
    return [
        _BadRequest("a key that begins with a dash", "invalid_lock_key", lease_path(f"-{lock.key}"), token, good),
        _BadRequest("a key of 129 characters", "invalid_lock_key", lease_path("k" * 129), token, good),
        _BadRequest("no owner token", "invalid_lock_token", path, None, good),
        _BadRequest("an owner token that is not a UUID", "invalid_lock_token", path, "1", good),
        _BadRequest("a request id that is not a UUID", "invalid_request_id", path, token, good, no_uuid),
        *(_BadRequest(f"a TTL of {what}", "invalid_ttl", path, token, {"ttl_seconds": ttl}) for what, ttl in ttls),
    ]


async def _send(lock: ScratchLock, request: _BadRequest) -> TimedResponse:
    return await lock.http.send("POST", request.path, token=request.token, body=request.body, headers=request.headers)


def _quota(response: TimedResponse) -> tuple[int, int, int]:
    values = [response.headers.get(name, "") for name in QUOTA_FIELDS]
    missing = [name for name, value in zip(QUOTA_FIELDS, values, strict=True) if not _NUMBER.fullmatch(value)]
    if missing:
        raise BrokenPromise(f"{', '.join(missing)}: missing or not a number ({response})")
    limit, remaining, reset = map(int, values)
    return limit, remaining, reset


def _is_uuid(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False
