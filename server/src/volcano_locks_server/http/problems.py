"""The form of error responses: the status of each code, the body and the header fields (HTTP-17, HTTP-18).

`STATUS_BY_CODE` is the only such table in the code; a test compares it with spec/errors.yaml. The body is
`{"error": sentence, "code": code}`, and that of `lock_held` has the current lease too (HTTP-28). Everything else that a
program needs is in header fields.
"""

from typing import Final

import msgspec

from ..rules.errors import STOPPING, LockError, StoreUnavailableError
from ..telemetry import Metrics

STATUS_BY_CODE: Final[dict[str, int]] = {
    "invalid_lock_key": 400,
    "invalid_lock_token": 400,
    "invalid_request_id": 400,
    "invalid_ttl": 400,
    "invalid_wait": 400,
    "invalid_holder": 400,
    "invalid_reason": 400,
    "invalid_request": 400,
    "invalid_credentials": 401,
    "service_key_required": 403,
    "missing_permission": 403,
    "admin_token_required": 403,
    "cross_site_refused": 403,
    "not_found": 404,
    "method_not_allowed": 405,
    "lock_held": 409,
    "lock_ownership_lost": 409,
    "lock_changed": 409,
    "name_taken": 409,
    "request_too_large": 413,
    "uri_too_long": 414,
    "host_not_allowed": 421,
    "lock_rate_limited": 429,
    "too_many_waiters": 429,
    "too_many_streams": 429,
    "too_many_requests": 429,
    "headers_too_large": 431,
    "internal": 500,
    "lock_service_unavailable": 503,
    "lock_record_damaged": 503,
}

Headers = list[tuple[bytes, bytes]]

JSON_TYPE: Final = (b"content-type", b"application/json")
_CHALLENGE: Final = (b"www-authenticate", b'Bearer realm="volcano-locks"')
_encode: Final = msgspec.json.Encoder().encode

UNAVAILABLE_MESSAGE: Final = (
    "the lock store cannot answer now, so the outcome of this request is unknown: send it again with the same "
    "owner token"
)
DRAINING_MESSAGE: Final = "this server is stopping: send the same request to another server, or again in a moment"
INTERNAL_MESSAGE: Final = (
    "this request failed because of a bug in the server: report its request id, and read the lock to see its state"
)


def error_for_client(error: LockError, metrics: Metrics) -> LockError:
    """Count the error and return the one to send. A store's error is replaced by one without the store's text."""
    if error.code == "lock_rate_limited":
        metrics.quota_refusals += 1
    if not isinstance(error, StoreUnavailableError):
        return error
    message = DRAINING_MESSAGE
    if error.cause_code != STOPPING[0]:
        message = UNAVAILABLE_MESSAGE
        metrics.store_error(error.cause_code)
    return LockError(error.code, message, retry_after_seconds=error.retry_after_seconds)


def problem_body(code: str, message: str, **details: str | int | None) -> bytes:
    """The JSON body of an error response."""
    return _encode({"error": message, "code": code, **details})


class MethodNotAllowedError(LockError):
    """The address does not allow the request's method; `allowed` goes into the header field `Allow`."""

    def __init__(self, allowed: str, message: str | None = None) -> None:
        super().__init__("method_not_allowed", message or f"this address allows only {allowed}")
        self.allowed: Final = allowed


def error_headers(error: LockError) -> Headers:
    """The header fields of an error response: how to present a credential, when to retry, which methods are allowed."""
    headers: Headers = []
    if error.code == "invalid_credentials":
        headers.append(_CHALLENGE)
    if error.retry_after_seconds is not None:
        headers.append((b"retry-after", b"%d" % error.retry_after_seconds))
    if isinstance(error, MethodNotAllowedError):
        headers.append((b"allow", error.allowed.encode()))
    return headers
