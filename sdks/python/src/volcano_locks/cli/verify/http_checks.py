"""How the service speaks: what it answers, refuses, counts and repeats."""

import re
import uuid
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from volcano_locks.protocol.effects import lease_path, lock_path

from .check import Room, new_token
from .http_client import Answer, Broken, Unjudged

QUOTA_FIELDS: Final = ("x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset")

_NUMBER: Final = re.compile(r"[0-9]{1,15}")


class _Bad(NamedTuple):
    """A request with one thing wrong, and the code that names it."""

    what: str
    code: str
    path: str
    token: str | None
    body: object
    headers: Mapping[str, str | None] = {}


async def what_a_read_says(room: Room) -> str:
    """A free lock reads as exactly {"held": false}; a held one with the expiry and fencing token of its lease."""
    free = (await room.wire.read(room.key)).expect(200, to="a read of a lock nobody has used")
    if free.json != {"held": False}:
        raise Broken('a free lock does not read as exactly {"held": false}')
    lease = await room.hold()
    state = await room.state()
    if (state.held, state.expires_at, state.fencing_token) != (True, lease.expires_at, lease.fencing_token):
        raise Broken("a held lock does not read as held with the expiry and fencing token of its lease")
    (await room.wire.release(room.key, lease.token)).expect(204, to="a release by the owner")
    freed = await room.wire.read(room.key)
    if freed.json != {"held": False}:
        raise Broken('a released lock does not read as exactly {"held": false}')
    return '{"held": false} when free, the lease when held'


async def a_key_is_decoded_once(room: Room) -> str:
    """`a%3Ab` in a path is the lock `a:b`."""
    lease = await room.hold()
    read = (await room.wire.read(room.key.replace(":", "%3A"))).expect(200, to="a read of the key with %3A for :")
    if read.json is None or read.json.get("fencing_token") != lease.fencing_token:
        raise Broken("the key with %3A for : is another lock")
    return "%3A in a path is :"


async def quota_headers(room: Room) -> str:
    """Each answer tells the limit, what remains and when the minute ends, and each request counts."""
    first, second = await room.wire.read(room.key), await room.wire.acquire(room.key, new_token(), room.ttl_seconds)
    limit, remaining, reset = _quota(first)
    later_limit, later_remaining, later_reset = _quota(second)
    if limit == 0:
        return "no quota (limit 0)"
    if limit != later_limit:
        raise Unjudged("the limit changed between two answers")
    if later_reset == reset and not later_remaining < remaining <= limit:
        raise Broken(f"of {limit}, {remaining} remained and then {later_remaining}")
    if later_reset < reset:
        raise Broken("the end of the minute went back")
    return f"{limit} a minute, {later_remaining} remain"


async def wrong_input_is_refused(room: Room) -> str:
    """Keys, owner tokens, request ids and TTLs outside their limits are 400 and grant nothing."""
    for bad in _malformed(room):
        (await _ask(room, bad)).expect(400, to=bad.what)
    await room.expect_free("requests that were refused")
    return "bad keys, tokens, request ids and TTLs: 400"


async def refusals_have_codes(room: Room) -> str:
    """A refusal is {"error": sentence, "code": code}, and the code names what is wrong."""
    bads = _malformed(room)
    for bad in bads:
        answer = (await _ask(room, bad)).expect(400, bad.code, to=bad.what)
        body = answer.json
        if not isinstance(body, dict) or not isinstance(body.get("error"), str) or not body["error"]:
            raise Broken(f"{bad.what}: the refusal has no sentence in `error`")
    return ", ".join(sorted({bad.code for bad in bads}))


async def input_is_strict(room: Room) -> str:
    """A TTL of 30.0, an unknown field and a body that is no object are refused, not guessed at."""
    token, ttl = new_token(), room.ttl_seconds
    path = lease_path(room.key)
    bads = [
        _Bad("a TTL with a fraction", "invalid_ttl", path, token, f'{{"ttl_seconds": {ttl}.0}}'.encode()),
        _Bad("no TTL", "invalid_ttl", path, token, {}),
        _Bad("an unknown field", "invalid_request", path, token, {"ttl_seconds": ttl, "wait": True}),
        _Bad("broken JSON", "invalid_request", path, token, b'{"ttl_seconds": '),
    ]
    for bad in bads:
        (await _ask(room, bad)).expect(400, bad.code, to=bad.what)
    await room.expect_free("requests that were refused")
    return "30.0, unknown fields, broken JSON: 400"


async def no_credential_no_answer(room: Room) -> str:
    """Without a service key, or with an unknown one, nothing is told and nothing is done."""
    for what, credential in (("no credential", None), ("an unknown key", f"Bearer sk-{uuid.uuid4().hex}")):
        headers = {"Authorization": credential}
        (await room.wire.send("GET", lock_path(room.key), headers=headers)).expect(401, to=f"a read with {what}")
        body = {"ttl_seconds": room.ttl_seconds}
        asked = await room.wire.send("POST", lease_path(room.key), token=new_token(), body=body, headers=headers)
        asked.expect(401, to=f"an acquire with {what}")
    await room.expect_free("acquires that were refused")
    return "none or unknown: 401"


async def another_kind_of_credential(room: Room) -> str:
    """An anon key is told that a service key is needed, and no credential at all has a code too."""
    anon = {"Authorization": f"Bearer ak-{uuid.uuid4().hex}"}
    answer = await room.wire.send("GET", lock_path(room.key), headers=anon)
    answer.expect(403, "service_key_required", to="a read with an anon key")
    none = await room.wire.send("GET", lock_path(room.key), headers={"Authorization": None})
    none.expect(401, "invalid_credentials", to="a read without a credential")
    return "an anon key: 403 service_key_required"


async def request_ids(room: Room) -> str:
    """An answer carries the request's id in lower case, or a new one where none was sent; refusals do, too."""
    own = str(uuid.uuid4())
    requests = [(own.upper(), lock_path(room.key)), (own, lock_path("-")), (None, lock_path(room.key))]
    for sent, path in requests:
        answer = await room.wire.send("GET", path, headers={"X-Volcano-Request-Id": sent})
        echoed = answer.headers.get("x-volcano-request-id", "")
        if sent is not None and echoed != own:
            raise Broken(f"a request id is not echoed ({answer})")
        if sent is None and (answer.status != 200 or not _is_uuid(echoed)):
            raise Broken(f"a request without an id is not given one ({answer})")
    return "echoed, and made where none was sent"


async def holder_labels(room: Room) -> str:
    """A holder's label for people is accepted, and refused where it could not be shown in one line."""
    body = {"ttl_seconds": room.ttl_seconds}
    for label, status, code in (("h" * 129, 400, "invalid_holder"), ("a b", 400, "invalid_holder"), ("a/1", 201, None)):
        headers = {"X-Volcano-Lock-Holder": label}
        answer = await room.wire.send("POST", lease_path(room.key), token=new_token(), body=body, headers=headers)
        answer.expect(status, code, to=f"an acquire with a label of {len(label)} characters")
    return "visible ASCII up to 128: taken; else invalid_holder"


async def addresses_and_methods(room: Room) -> str:
    """An unknown address is 404; a known one with another method is 405 with `Allow`."""
    unknown = await room.wire.send("GET", f"{lock_path(room.key)}/leases")
    unknown.expect(404, "not_found", to="an unknown address")
    wrong = await room.wire.send("PUT", lease_path(room.key))
    wrong.expect(405, "method_not_allowed", to="a PUT of a lease")
    allowed = {one.strip() for one in wrong.headers.get("allow", "").split(",")}
    if not {"POST", "PATCH", "DELETE"} <= allowed:
        raise Broken("405 does not list the methods in Allow")
    return "404 not_found, 405 with Allow"


async def no_secret_comes_back(room: Room) -> str:
    """No answer repeats the owner token: not a grant, a refusal, a read, nor what is said of a malformed one."""
    malformed = f"{new_token()}-{uuid.uuid4().hex}"
    lease = await room.hold()
    body = {"ttl_seconds": room.ttl_seconds}
    answers = [
        await room.wire.acquire(room.key, lease.token, room.ttl_seconds),
        await room.wire.read(room.key),
        await room.wire.send("POST", lease_path(room.key), token=malformed, body=body),
        await room.wire.send("PATCH", lease_path(room.key), token=lease.token, body={}),
    ]
    for answer in answers:
        told = answer.body.decode("latin-1") + repr(sorted(answer.headers.items()))
        if any(secret in told.lower() for secret in (lease.token, malformed)):
            raise Broken(f"an answer repeats the owner token ({answer})")
    return "not in grants, reads or refusals"


def _malformed(room: Room) -> list[_Bad]:
    """What any service with this API refuses, each wrong in one thing."""
    path, token, good = lease_path(room.key), new_token(), {"ttl_seconds": room.ttl_seconds}
    ttls: Iterable[tuple[str, object]] = (("4", 4), ("7776001", 7_776_001), ("text", "30"), ("true", True))
    no_uuid = {"X-Volcano-Request-Id": "1"}
    return [
        _Bad("a key that begins with a dash", "invalid_lock_key", lease_path(f"-{room.key}"), token, good),
        _Bad("a key of 129 characters", "invalid_lock_key", lease_path("k" * 129), token, good),
        _Bad("no owner token", "invalid_lock_token", path, None, good),
        _Bad("an owner token that is no UUID", "invalid_lock_token", path, "1", good),
        _Bad("a request id that is no UUID", "invalid_request_id", path, token, good, no_uuid),
        *(_Bad(f"a TTL of {what}", "invalid_ttl", path, token, {"ttl_seconds": ttl}) for what, ttl in ttls),
    ]


async def _ask(room: Room, bad: _Bad) -> Answer:
    return await room.wire.send("POST", bad.path, token=bad.token, body=bad.body, headers=bad.headers)


def _quota(answer: Answer) -> tuple[int, int, int]:
    values = [answer.headers.get(name, "") for name in QUOTA_FIELDS]
    missing = [name for name, value in zip(QUOTA_FIELDS, values, strict=True) if not _NUMBER.fullmatch(value)]
    if missing:
        raise Broken(f"{', '.join(missing)}: missing or no number ({answer})")
    limit, remaining, reset = map(int, values)
    return limit, remaining, reset


def _is_uuid(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False
