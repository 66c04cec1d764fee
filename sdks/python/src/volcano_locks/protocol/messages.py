"""Parses responses of the service, strictly: a proxy's page with status 200 is an error, never a lease."""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from math import ceil
from typing import Any, NamedTuple

from volcano_locks.errors import LOCK_HELD, LockHeldError, ServerError, VolcanoError, error_for
from volcano_locks.protocol.arguments import (
    FENCING_TOKEN_MAX,
    SHOWN_CHARACTERS_MAX,
    checked_fencing_token,
    parse_date,
)
from volcano_locks.protocol.lease import Lease, LockState
from volcano_locks.protocol.renewal_plan import SeenQuota

RETRY_AFTER_SECONDS_MAX = 3600
NAMING_THE_URL = (401, 404)
"""The statuses of an API URL, or a service key, that is of another service (SDK-9)."""

_HOLDER = re.compile(r"[!-~]{1,128}")
_SECONDS = re.compile(r"[0-9]+(\.[0-9]+)?")


class Response(NamedTuple):
    """One complete HTTP response. Header names are lower-case; values of a repeated name are joined by a comma.

    `url` is what was asked, for the messages of NAMING_THE_URL; empty if it does not matter.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    url: str = ""


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


def error_from_response(response: Response, *, request_id: str, key: str | None = None) -> VolcanoError:
    """Convert a response that is not the expected success to the error to raise. `key` is that of the request."""
    try:
        body = json.loads(response.body)
    except (ValueError, RecursionError):
        body = None
    fields = body if isinstance(body, dict) else {}
    code, message = fields.get("code"), fields.get("error")
    if response.status == 409 and code == LOCK_HELD and key is not None:
        return _lock_held(fields, key, request_id)
    shown = _printable(message) if isinstance(message, str) and message else f"HTTP {response.status} without a reason"
    return error_for(
        response.status,
        code if isinstance(code, str) else None,
        f"{shown} ({response.url})" if response.url and response.status in NAMING_THE_URL else shown,
        retry_after=_retry_after(response.headers.get("retry-after")),
        request_id=request_id,
    )


def _lock_held(fields: Mapping[str, Any], key: str, request_id: str) -> LockHeldError:
    """The refusal of an acquire. A missing or malformed field of the lease is unknown (SDK-9)."""
    holder, expires_at, fencing_token = fields.get("holder"), None, None
    if not isinstance(holder, str) or _HOLDER.fullmatch(holder) is None:
        holder = None
    with suppress(KeyError, TypeError, ValueError):
        expires_at = parse_date(fields["expires_at"])
    with suppress(ValueError):
        fencing_token = checked_fencing_token(fields.get("fencing_token"))
    until = "" if expires_at is None else f" until {expires_at.isoformat(timespec='seconds')} unless it is renewed"
    return LockHeldError(
        f"the lock {key!r} is held by {holder or 'another owner'}{until}: try again later, or pass wait",
        key=key,
        holder=holder,
        expires_at=expires_at,
        fencing_token=fencing_token,
        status=409,
        code=LOCK_HELD,
        request_id=request_id,
    )


def first_value(value: str) -> str:
    """The first value of a header that may have come more than once (case 83)."""
    return value.partition(",")[0].strip()


def media_type(headers: Mapping[str, str]) -> str:
    """The response's media type in lower case, without parameters; empty if it has none (SDK-9)."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def seen_quota(headers: Mapping[str, str]) -> SeenQuota | None:
    """The quota that a response shows; None if it shows none."""
    limit, remaining = (headers.get(f"x-ratelimit-{name}", "") for name in ("limit", "remaining"))
    return SeenQuota(int(limit), int(remaining)) if limit.isdecimal() and remaining.isdecimal() else None


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
