"""Parses responses of the service, strictly: a proxy's page with status 200 is an error, never a lease."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from math import ceil
from typing import Any

from volcano_locks.errors import ServerError, VolcanoError, error_for
from volcano_locks.protocol.arguments import (
    FENCING_TOKEN_MAX,
    SHOWN_CHARACTERS_MAX,
    checked_fencing_token,
    parse_date,
)
from volcano_locks.protocol.lease import Lease, LockState

RETRY_AFTER_SECONDS_MAX = 3600

_SECONDS = re.compile(r"[0-9]+(\.[0-9]+)?")


@dataclass(frozen=True, slots=True)
class Response:
    """One complete HTTP response. Header names are lower-case; values of a repeated name are joined by a comma."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def parse_lease(
    response: Response, *, key: str, token: str, ttl_seconds: int, deadline: float, request_id: str
) -> Lease:
    """Parse the lease that an acquire or a renewal was granted; raise `ServerError` if the body is malformed."""
    expires_at, fencing_token = _parse_term(parse_body(response, request_id), response, request_id)
    return Lease(key, token, ttl_seconds, expires_at, fencing_token, deadline)


def parse_state(response: Response, *, request_id: str) -> LockState:
    """Parse the result of a read; raise `ServerError` if the body is malformed."""
    body = parse_body(response, request_id)
    held = body.get("held")
    if held is False:
        return LockState(held=False)
    if held is not True:
        raise malformed_response(response, "held is neither true nor false", request_id)
    return LockState(True, *_parse_term(body, response, request_id))


def error_from_response(response: Response, *, request_id: str) -> VolcanoError:
    """Convert a response that is not the expected success to the error to raise."""
    try:
        body = json.loads(response.body)
    except (ValueError, RecursionError):
        body = None
    fields = body if isinstance(body, dict) else {}
    code, message = fields.get("code"), fields.get("error")
    return error_for(
        response.status,
        code if isinstance(code, str) else None,
        _printable(message) if isinstance(message, str) and message else f"HTTP {response.status} without a reason",
        retry_after=_retry_after(response.headers.get("retry-after")),
        request_id=request_id,
    )


def malformed_response(response: Response, why: str, request_id: str) -> ServerError:
    """The error for a success status with an unexpected body: the sender is no lock service."""
    content_type = response.headers.get("content-type", "no content type")
    message = f"HTTP {response.status} is not a response of a lock service: {why} ({_printable(content_type)})"
    return ServerError(message, status=response.status, request_id=request_id)


def parse_body(response: Response, request_id: str) -> dict[str, Any]:
    """Parse the body as a JSON object; raise `ServerError` if it is none."""
    try:
        body = json.loads(response.body)
    except (ValueError, RecursionError):
        raise malformed_response(response, "its body is not JSON", request_id) from None
    if not isinstance(body, dict):
        raise malformed_response(response, "its body is not an object", request_id)
    return body


def _parse_term(body: dict[str, Any], response: Response, request_id: str) -> tuple[datetime, int]:
    try:
        fencing_token = checked_fencing_token(body.get("fencing_token"))
    except ValueError:
        why = f"fencing_token is not an integer from 1 to {FENCING_TOKEN_MAX}"
        raise malformed_response(response, why, request_id) from None
    try:
        return parse_date(body["expires_at"]), fencing_token
    except (KeyError, TypeError, ValueError):
        raise malformed_response(response, "expires_at is not a date", request_id) from None


def _retry_after(text: str | None) -> int | None:
    """Whole seconds, rounded up; None for the date form, which the service never sends."""
    if text is None or _SECONDS.fullmatch(text) is None:
        return None
    return ceil(min(float(text), RETRY_AFTER_SECONDS_MAX))


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text[:SHOWN_CHARACTERS_MAX])
