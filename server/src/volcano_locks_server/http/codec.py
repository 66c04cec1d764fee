"""Translates between the wire (JSON, paths, header fields) and the domain's values.

Parsing is strict: a body with a misspelt field is an error, because the client would otherwise get the default. The
bodies of the lock routes are built from templates, because they are on the hot path.
"""

import json
import re
import uuid
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final, NoReturn
from urllib.parse import unquote_to_bytes

import msgspec

from ..rules.errors import Code, LockError
from ..rules.record_check import INSTANT_MS_MAX
from ..rules.values import LockKey, parse_holder, parse_ttl_seconds, parse_wait_ms, shown

BODY_BYTES_MAX: Final = 16_384
TARGET_BYTES_MAX: Final = 4_096  # of an address with its query: more than the longest valid one in absolute form
QUERY_BYTES_MAX: Final = 2_048
PARAMETERS_MAX: Final = 16
PARSED_VALUES_KEPT: Final = 4_096  # keys and holder labels: a worker sends the same ones with each renewal

AUTHORIZATION: Final = b"authorization"
CONTENT_LENGTH: Final = b"content-length"
COOKIE: Final = b"cookie"
CSRF: Final = b"x-volcano-csrf"
FORWARDED_PROTO: Final = b"x-forwarded-proto"
HOST: Final = b"host"
LAST_EVENT_ID: Final = b"last-event-id"
LOCK_HOLDER: Final = b"x-volcano-lock-holder"
LOCK_TOKEN: Final = b"x-volcano-lock-token"
ORIGIN: Final = b"origin"
REASON: Final = b"x-volcano-reason"
REQUEST_ID: Final = b"x-volcano-request-id"
SEC_FETCH_SITE: Final = b"sec-fetch-site"
USER_AGENT: Final = b"user-agent"
X_FORWARDED_FOR: Final = b"x-forwarded-for"
FIELDS_READ: Final = frozenset(
    {
        AUTHORIZATION,
        CONTENT_LENGTH,
        COOKIE,
        CSRF,
        FORWARDED_PROTO,
        HOST,
        LAST_EVENT_ID,
        LOCK_HOLDER,
        LOCK_TOKEN,
        ORIGIN,
        REASON,
        REQUEST_ID,
        SEC_FETCH_SITE,
        USER_AGENT,
        X_FORWARDED_FOR,
    }
)
SENT_REPEATEDLY: Final = b"(sent more than once)"
FIELDS_IN_SCOPE: Final = "volcano.fields"  # where the HTTP/1.1 connection leaves what `single_fields` returned
CLIENT_IS_GONE: Final = "volcano.client_is_gone"  # whether nothing can be sent to the client, before `receive` shows it

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Field = tuple[bytes, bytes]


class ClientGoneError(Exception):
    """The client disconnected before its request was complete, so there is no response."""


# --- instants ---------------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def instant(ms: int) -> str:
    """Milliseconds since 1970 as `2026-07-20T14:00:10.123Z`."""
    return f"{_second(ms // 1_000)}.{ms % 1_000:03d}Z"


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_INSTANT: Final = re.compile(r"\d{4}-\d{2}-\d{2}[Tt]\d{2}:\d{2}:\d{2}(\.\d{1,9})?([Zz]|[+-]\d{2}:\d{2})", re.ASCII)


def parse_instant_ms(value: object, field: str) -> int:
    """An RFC 3339 date as milliseconds since 1970, or LockError `invalid_request`."""
    if isinstance(value, str) and _INSTANT.fullmatch(value) is not None:
        try:
            ms = (datetime.fromisoformat(value.upper()) - _EPOCH) // timedelta(milliseconds=1)
        except ValueError:
            ms = INSTANT_MS_MAX + 1
        if ms <= INSTANT_MS_MAX:
            return ms
    raise LockError(
        "invalid_request",
        f"{field} must be a date with time and zone, such as 2027-01-31T00:00:00Z; got {shown(value)}",
    )


# --- requests ---------------------------------------------------------------------------------------------


@lru_cache(maxsize=PARSED_VALUES_KEPT)
def lock_key(raw: bytes) -> LockKey:
    """The key in a path, percent-decoded once, or LockError `invalid_lock_key` (HTTP-7)."""
    if b"%" in raw:
        raw = unquote_to_bytes(raw)
    return LockKey.parse(raw.decode("utf-8", "backslashreplace"))


@lru_cache(maxsize=PARSED_VALUES_KEPT)
def holder_label(raw: bytes) -> str:
    """The value of X-Volcano-Lock-Holder, or LockError `invalid_holder` (HTTP-10)."""
    return parse_holder(raw.decode("latin-1"))


def header_fields(scope: Scope) -> dict[bytes, bytes]:
    """The header fields that this server reads, by lower-case name."""
    fields: dict[bytes, bytes] | None = scope.get(FIELDS_IN_SCOPE)
    if fields is None:
        fields = single_fields(field for field in scope["headers"] if field[0] in FIELDS_READ)
    return fields


def single_fields(sent: Iterable[Field]) -> dict[bytes, bytes]:
    """The fields by name. One that was sent more than once becomes SENT_REPEATEDLY, which every parser refuses."""
    fields: dict[bytes, bytes] = {}
    for name, value in sent:
        fields[name] = SENT_REPEATEDLY if name in fields else value
    return fields


async def read_body(receive: Receive) -> bytes:
    """The whole body. LockError `request_too_large` past BODY_BYTES_MAX, without reading on (HTTP-21)."""
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        part: bytes = message.get("body", b"")
        body += part
        if len(body) > BODY_BYTES_MAX:
            raise body_too_large(f"more than {BODY_BYTES_MAX}")
        if not message.get("more_body", False):
            return body


def body_too_large(received: str) -> LockError:
    return LockError("request_too_large", f"the body must be at most {BODY_BYTES_MAX} bytes; got {received}")


async def client_disconnect(receive: Receive) -> None:
    """Return when the client disconnects. Call after the body was read, and cancel when done."""
    while (await receive())["type"] != "http.disconnect":
        pass


class _RenewBody(msgspec.Struct, forbid_unknown_fields=True):
    ttl_seconds: object = msgspec.UNSET


class _AcquireBody(_RenewBody, forbid_unknown_fields=True):
    wait_seconds: object = msgspec.UNSET


_decode_renew: Final = msgspec.json.Decoder(_RenewBody).decode
_decode_acquire: Final = msgspec.json.Decoder(_AcquireBody).decode


def parse_renew_body(body: bytes) -> int:
    """The TTL in seconds. Raises LockError `invalid_ttl`, `invalid_request` (HTTP-11, HTTP-12)."""
    try:
        value = _decode_renew(body).ttl_seconds
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _bad_lease_body(body, error) from None
    return _ttl(value, body, names=1)


def parse_acquire_body(body: bytes) -> tuple[int, int]:
    """TTL in seconds and wait in milliseconds. Raises LockError as `parse_renew_body`, and `invalid_wait` (WAIT-1)."""
    try:
        lease = _decode_acquire(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _bad_lease_body(body, error) from None
    if lease.wait_seconds is msgspec.UNSET:
        return _ttl(lease.ttl_seconds, body, names=1), 0
    wait_ms = parse_wait_ms(lease.wait_seconds)
    return _ttl(lease.ttl_seconds, body, names=2), wait_ms


def _ttl(value: object, body: bytes, *, names: int) -> int:
    if value is msgspec.UNSET:
        raise LockError("invalid_ttl", 'ttl_seconds is missing: send a body such as {"ttl_seconds": 30}')
    parsed = parse_ttl_seconds(value)
    if body.count(b'"') != 2 * names:  # a valid body quotes only its field names
        raise LockError("invalid_request", "the body has a field more than once: send each field once")
    return parsed


def _bad_lease_body(body: bytes, error: Exception) -> LockError:
    if not body.strip():
        return LockError("invalid_request", 'the body is empty: send one such as {"ttl_seconds": 30}')
    fields: tuple[tuple[Code, str], ...] = ("invalid_ttl", "ttl_seconds"), ("invalid_wait", "wait_seconds")
    for code, field in fields:
        if isinstance(error, msgspec.ValidationError) and f"$.{field}" in str(error):
            return LockError(code, f"{field} must be a JSON number of seconds; got one that is too large to read")
    why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
    return LockError(
        "invalid_request", f'the body must be JSON such as {{"ttl_seconds": 30}} in UTF-8: {parser_message(why)}'
    )


def parser_message(why: str) -> str:
    """A parser's error message, shortened. It may quote the body, never a header."""
    return ascii(why)[1:-1][:120]


def json_object(body: bytes, fields: Iterable[str], *, empty_is_object: bool = False) -> dict[str, object]:
    """The body as an object with no fields besides `fields`, or LockError `invalid_request` (HTTP-12)."""
    if empty_is_object and not body:
        return {}
    try:
        value = json.loads(body.decode("utf-8"), object_pairs_hook=_unique_fields, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise LockError("invalid_request", f"the body must be a JSON object in UTF-8: {parser_message(why)}") from None
    if not isinstance(value, dict):
        raise LockError("invalid_request", f"the body must be a JSON object; got {type(value).__name__}")
    known = tuple(fields)
    unknown = [name for name in value if name not in known]
    if unknown:
        allowed = f"only {', '.join(known)}" if known else "no fields"
        raise LockError("invalid_request", f"the body may have {allowed}; got {shown(unknown[0])}")
    return value


def _unique_fields(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("it has a field more than once")
    return fields


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


# --- responses --------------------------------------------------------------------------------------------

FREE_BODY: Final = b'{"held":false}'


def lease_body(expires_at_ms: int, fencing_token: int) -> bytes:
    return b'{"expires_at":"%b","fencing_token":%d}' % (instant(expires_at_ms).encode(), fencing_token)


def held_body(expires_at_ms: int, fencing_token: int) -> bytes:
    return b'{"held":true,"expires_at":"%b","fencing_token":%d}' % (instant(expires_at_ms).encode(), fencing_token)


def new_request_id() -> bytes:
    return str(uuid.uuid4()).encode()
