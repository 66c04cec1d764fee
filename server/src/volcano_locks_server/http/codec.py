"""JSON, paths and headers on one side, the domain's words on the other.

Strict by choice: a body says exactly what is asked and nothing else, so that a misspelt field is an error and
not a default. Answers of the lock routes are built from templates: they are the hot path.
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

from ..rules.errors import LockError
from ..rules.values import LockKey, parse_ttl_seconds, parse_wait_ms, shown

BODY_BYTES_MAX: Final = 16_384
QUERY_BYTES_MAX: Final = 2_048
PARAMETERS_MAX: Final = 16

AUTHORIZATION: Final = b"authorization"
CONTENT_LENGTH: Final = b"content-length"
LAST_EVENT_ID: Final = b"last-event-id"
LOCK_HOLDER: Final = b"x-volcano-lock-holder"
LOCK_TOKEN: Final = b"x-volcano-lock-token"
REQUEST_ID: Final = b"x-volcano-request-id"
HEADERS_READ: Final = frozenset({AUTHORIZATION, CONTENT_LENGTH, LAST_EVENT_ID, LOCK_HOLDER, LOCK_TOKEN, REQUEST_ID})
SENT_REPEATEDLY: Final = b"(sent more than once)"

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class ClientGoneError(Exception):
    """The client hung up before its request was whole: there is nobody to answer."""


# --- instants ---------------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def instant(ms: int) -> str:
    """Milliseconds since 1970 as `2026-07-20T14:00:10.123Z`."""
    return f"{_second(ms // 1_000)}.{ms % 1_000:03d}Z"


INSTANT_MS_MAX: Final = 253_402_300_799_999  # 9999-12-31T23:59:59.999Z, the last that has four digits of year
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
        f"{field} must be a date with a time and zone such as 2027-01-31T00:00:00Z; got {shown(value)}",
    )


# --- what comes in ----------------------------------------------------------------------------------------


def lock_key(raw: bytes) -> LockKey:
    """The key in a path, percent-decoded once, or LockError `invalid_lock_key` (HTTP-7)."""
    if b"%" in raw:
        raw = unquote_to_bytes(raw)
    return LockKey.parse(raw.decode("utf-8", "backslashreplace"))


def headers_of(scope: Scope) -> dict[bytes, bytes]:
    """The headers that this service reads. One that was sent several times is SENT_REPEATEDLY, which none may be."""
    found: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        if name in HEADERS_READ:
            found[name] = SENT_REPEATEDLY if name in found else value
    return found


def refuse_long_query(query: bytes) -> None:
    """LockError `uri_too_long` for more than QUERY_BYTES_MAX. The query is measured and not parsed (HTTP-27)."""
    if len(query) > QUERY_BYTES_MAX:
        raise LockError("uri_too_long", f"the query string must be at most {QUERY_BYTES_MAX} bytes; got {len(query)}")


def refuse_many_parameters(query: bytes) -> None:
    """LockError `invalid_request` for more than PARAMETERS_MAX; for requests whose credential is accepted (HTTP-27)."""
    count = query.count(b"&") + 1
    if count > PARAMETERS_MAX:
        raise LockError(
            "invalid_request", f"the query string may have at most {PARAMETERS_MAX} parameters; got {count}"
        )


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
            _too_large(f"more than {BODY_BYTES_MAX}")
        if not message.get("more_body", False):
            return body


def refuse_long_body(declared_length: bytes | None) -> None:
    """LockError `request_too_large` if the request announces more than BODY_BYTES_MAX, read or not."""
    if declared_length is None:
        return
    digits = declared_length.lstrip(b"0")
    if digits and (not digits.isdigit() or len(digits) > 9 or int(digits) > BODY_BYTES_MAX):
        _too_large(shown(declared_length.decode("latin-1")))


def _too_large(came: str) -> NoReturn:
    raise LockError("request_too_large", f"the body must be at most {BODY_BYTES_MAX} bytes; got {came}")


async def hang_up(receive: Receive) -> None:
    """Return when the client hangs up. For requests whose body is read; ended by cancelling."""
    while (await receive())["type"] != "http.disconnect":
        pass


class _Lease(msgspec.Struct, forbid_unknown_fields=True):
    ttl_seconds: object = msgspec.UNSET


class _WaitingLease(_Lease, forbid_unknown_fields=True):
    wait_seconds: object = msgspec.UNSET


_decode_lease: Final = msgspec.json.Decoder(_Lease).decode
_decode_waiting_lease: Final = msgspec.json.Decoder(_WaitingLease).decode


def ttl_seconds(body: bytes) -> int:
    """The TTL of a renewal's body, or LockError `invalid_ttl` or `invalid_request` (HTTP-11, HTTP-12)."""
    try:
        value = _decode_lease(body).ttl_seconds
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _bad_lease_body(body, error) from None
    return _ttl(value, body, names=1)


def ttl_and_wait(body: bytes) -> tuple[int, int]:
    """TTL in seconds and wait in milliseconds of an acquire's body; LockError as `ttl_seconds`, `invalid_wait` too
    (WAIT-1).
    """
    try:
        lease = _decode_waiting_lease(body)
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
    if body.count(b'"') != 2 * names:  # a good body quotes its names and nothing else
        raise LockError("invalid_request", "each field may stand in the body once; one came several times")
    return parsed


def _bad_lease_body(body: bytes, error: Exception) -> LockError:
    if not body.strip():
        return LockError("invalid_request", 'the body is empty: send one such as {"ttl_seconds": 30}')
    if isinstance(error, msgspec.ValidationError) and "$.ttl_seconds" in str(error):
        return LockError("invalid_ttl", "ttl_seconds must be a whole JSON number of seconds; got one beyond all limits")
    if isinstance(error, msgspec.ValidationError) and "$.wait_seconds" in str(error):
        return LockError("invalid_wait", "wait_seconds must be a JSON number of seconds; got one beyond all limits")
    why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
    return LockError(
        "invalid_request", f'the body must be JSON such as {{"ttl_seconds": 30}} in UTF-8: {shown_why(why)}'
    )


def shown_why(why: str) -> str:
    """A parser's complaint, cut to a length a person reads; it may quote the body, never a header."""
    return ascii(why)[1:-1][:120]


def json_object(body: bytes, fields: Iterable[str], *, empty_is_object: bool = False) -> dict[str, object]:
    """The body as an object that has no other fields than `fields`, or LockError `invalid_request` (HTTP-12)."""
    if empty_is_object and not body:
        return {}
    try:
        value = json.loads(body.decode("utf-8"), object_pairs_hook=_unrepeated, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise LockError("invalid_request", f"the body must be a JSON object in UTF-8: {shown_why(why)}") from None
    if not isinstance(value, dict):
        raise LockError("invalid_request", f"the body must be a JSON object; got {type(value).__name__}")
    known = tuple(fields)
    unknown = [name for name in value if name not in known]
    if unknown:
        listed = ", ".join(known) or "nothing"
        raise LockError("invalid_request", f"the body may hold {listed}; got {shown(unknown[0])}")
    return value


def _unrepeated(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a field stands in it twice")
    return fields


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


# --- what goes out ----------------------------------------------------------------------------------------

FREE_BODY: Final = b'{"held":false}'


def lease_body(expires_at_ms: int, fencing_token: int) -> bytes:
    return b'{"expires_at":"%b","fencing_token":%d}' % (instant(expires_at_ms).encode(), fencing_token)


def held_body(expires_at_ms: int, fencing_token: int) -> bytes:
    return b'{"held":true,"expires_at":"%b","fencing_token":%d}' % (instant(expires_at_ms).encode(), fencing_token)


def new_request_id() -> bytes:
    return str(uuid.uuid4()).encode()
