"""Responses, and the only place that makes their bytes (HTTP-1, HTTP-3, QUOTA-3).

The first part turns outcomes and errors into a `LockResponse`; `send_response` sends it through ASGI. The second part
makes the bytes of HTTP/1.1: `response_bytes` of a lease request, `head_bytes` of every other response.
"""

import time
from collections.abc import Iterable
from email.utils import formatdate
from http import HTTPStatus
from typing import Final, NamedTuple

import msgspec
from starlette.responses import Response

from ..rules.errors import LockError
from ..rules.lease import Granted, Outcome, Refused, Released, State
from ..rules.quota import Admission
from .codec import FREE_BODY, REQUEST_ID, Field, Send, held_body, instant, lease_body, new_request_id
from .lock_operations import LockOperation
from .problems import JSON_TYPE, STATUS_BY_CODE, Headers, error_headers, problem_body


class LockResponse(NamedTuple):
    """A response before it is sent. `outcome` is its label in the metrics, `headers` has only those of an error."""

    status: int
    body: bytes
    outcome: str
    headers: Headers


def outcome_response(operation: LockOperation, outcome: Outcome) -> LockResponse:
    """The response to a command that was carried out or refused by its lease."""
    if isinstance(outcome, Granted):
        body = lease_body(outcome.expires_at_ms, outcome.fencing_token)
        return LockResponse(operation.granted, body, outcome.how, [])
    if isinstance(outcome, Released):
        return LockResponse(204, b"", "released" if outcome.ended is not None else "was_free", [])
    if isinstance(outcome, Refused):
        return LockResponse(STATUS_BY_CODE[outcome.code], _refusal_body(outcome), outcome.code, [])
    return _state_response(outcome)


def _refusal_body(refused: Refused) -> bytes:
    """The body of a 409. That of `lock_held` names the current lease, with null for what is unknown (HTTP-28)."""
    code, message, lease = refused.code, refused.message, refused.lease
    if code != "lock_held":
        return problem_body(code, message)
    if lease is None:
        return problem_body(code, message, holder=None, expires_at=None, fencing_token=None)
    expires_at = instant(lease.expires_at_ms)
    return problem_body(code, message, holder=lease.holder, expires_at=expires_at, fencing_token=lease.fencing_token)


def _state_response(state: State) -> LockResponse:
    if state.lease is None:
        return LockResponse(200, FREE_BODY, "free", [])
    return LockResponse(200, held_body(state.lease.expires_at_ms, state.lease.fencing_token), "held", [])


def error_response(error: LockError) -> LockResponse:
    body = problem_body(error.code, error.message)
    return LockResponse(STATUS_BY_CODE[error.code], body, error.code, error_headers(error))


def json_response(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def request_headers(request_id: bytes, admission: Admission | None) -> Headers:
    """The header fields of every response: the request id, and the quota if the request counted."""
    headers: Headers = [(REQUEST_ID, request_id)]
    if admission is not None:
        headers.append((b"x-ratelimit-limit", b"%d" % admission.limit))
        headers.append((b"x-ratelimit-remaining", b"%d" % admission.remaining))
        headers.append((b"x-ratelimit-reset", b"%d" % admission.reset_at_seconds))
    return headers


async def send_response(send: Send, response: LockResponse, request_id: bytes, admission: Admission | None) -> None:
    headers = response.headers
    if response.body:
        headers.append(JSON_TYPE)
        headers.append((b"content-length", b"%d" % len(response.body)))
    headers += request_headers(request_id, admission)
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": response.body})


# --- bytes ------------------------------------------------------------------------------------------------

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_STATUS_LINES: Final = {one.value: f"HTTP/1.1 {one.value} {one.phrase}\r\n".encode() for one in HTTPStatus}
_date = (0, b"")  # a second, and the field of that second


_RESPONSE: Final = (
    b"%b%b%b%bx-volcano-request-id: %b\r\n"
    b"x-ratelimit-limit: %d\r\nx-ratelimit-remaining: %d\r\nx-ratelimit-reset: %d\r\n%b\r\n%b"
)


def response_bytes(response: LockResponse, request_id: bytes, admission: Admission, *, keep_alive: bool) -> bytes:
    """A complete response to a counted request."""
    _verdict, limit, remaining, reset_at_seconds, _retry = admission
    status, body, _outcome, fields = response
    return _RESPONSE % (
        _STATUS_LINES[status],
        _date_field(),
        b"".join([b"%b: %b\r\n" % field for field in fields]) if fields else b"",
        b"content-type: application/json\r\ncontent-length: %d\r\n" % len(body) if body else b"",
        request_id,
        limit,
        remaining,
        reset_at_seconds,
        b"" if keep_alive else b"connection: close\r\n",
        body,
    )


def head_bytes(status: int, fields: Iterable[Field], *, keep_alive: bool) -> bytes:
    """The head of a response. No field is searched for line breaks, because none holds text that a client chose."""
    lines = [_STATUS_LINES[status], _date_field()]
    lines += [b"%b: %b\r\n" % field for field in fields]
    lines.append(b"\r\n" if keep_alive else b"connection: close\r\n\r\n")
    return b"".join(lines)


def closing_response(error: LockError) -> bytes:
    """A complete response that announces the end of the connection."""
    status, body, _outcome, fields = error_response(error)
    fields += [JSON_TYPE, (b"content-length", b"%d" % len(body)), (REQUEST_ID, new_request_id())]
    return head_bytes(status, fields, keep_alive=False) + body


def _date_field() -> bytes:
    """The field `Date`, made once a second."""
    global _date  # noqa: PLW0603 - a cache of one entry
    now = int(time.time())
    second, field = _date
    if second != now:
        field = b"date: %b\r\n" % formatdate(now, usegmt=True).encode()
        _date = (now, field)
    return field
