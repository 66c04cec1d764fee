"""Which status belongs to which code, and how a failure looks on the wire: nobody else knows.

`STATUS_BY_CODE` is the one table in the code; spec/errors.yaml is the same for people, and a test compares them.
A failure's body is `{"error": sentence, "code": code}`; what a program needs besides stands in headers.
"""

from typing import Final

import msgspec

from ..rules.errors import LockError

STATUS_BY_CODE: Final[dict[str, int]] = {
    "invalid_lock_key": 400,
    "invalid_lock_token": 400,
    "invalid_request_id": 400,
    "invalid_ttl": 400,
    "invalid_wait": 400,
    "invalid_holder": 400,
    "invalid_request": 400,
    "invalid_credentials": 401,
    "service_key_required": 403,
    "missing_permission": 403,
    "admin_token_required": 403,
    "not_found": 404,
    "method_not_allowed": 405,
    "lock_held": 409,
    "lock_ownership_lost": 409,
    "name_taken": 409,
    "request_too_large": 413,
    "uri_too_long": 414,
    "lock_rate_limited": 429,
    "too_many_waiters": 429,
    "headers_too_large": 431,
    "internal": 500,
    "lock_service_unavailable": 503,
}

Headers = list[tuple[bytes, bytes]]

JSON_TYPE: Final = (b"content-type", b"application/json")
_CHALLENGE: Final = (b"www-authenticate", b'Bearer realm="volcano-locks"')
_encode: Final = msgspec.json.Encoder().encode

UNAVAILABLE_MESSAGE: Final = (
    "the lock store cannot answer now, so what became of this request is not known: send it again with the same "
    "owner token"
)
DRAINING_MESSAGE: Final = "this server is stopping: send the same request again, to another server or in a moment"
INTERNAL_MESSAGE: Final = "this server has a bug: report the request id, and read the lock to learn where it stands"


def problem_body(code: str, message: str) -> bytes:
    """The JSON body of a failure."""
    return _encode({"error": message, "code": code})


def problem_headers(code: str, retry_after_seconds: int | None) -> Headers:
    """The headers that belong to a failure: how to present a credential, when to come back."""
    headers: Headers = []
    if code == "invalid_credentials":
        headers.append(_CHALLENGE)
    if retry_after_seconds is not None:
        headers.append((b"retry-after", b"%d" % retry_after_seconds))
    return headers


class MethodNotAllowedError(LockError):
    """The address exists and takes only the methods in `allowed`, which the answer's `Allow` lists."""

    def __init__(self, allowed: str, message: str | None = None) -> None:
        super().__init__("method_not_allowed", message or f"this address takes {allowed}")
        self.allowed: Final = allowed
