"""What can go wrong, by name.

One exception type carries every failure a caller is told about: a machine code, a sentence for a person,
and how long to wait where waiting helps. The code is the contract (spec/errors.yaml lists them all); which
HTTP status belongs to it is known only to `http/problems.py`.

A message never holds a token, a key's secret, a store's own words or a stack trace.
"""

from typing import Final, Literal, get_args

Code = Literal[
    "invalid_lock_key",
    "invalid_lock_token",
    "invalid_request_id",
    "invalid_ttl",
    "invalid_wait",
    "invalid_holder",
    "invalid_request",
    "invalid_credentials",
    "service_key_required",
    "missing_permission",
    "admin_token_required",
    "not_found",
    "method_not_allowed",
    "uri_too_long",
    "request_too_large",
    "headers_too_large",
    "name_taken",
    "lock_held",
    "lock_ownership_lost",
    "lock_rate_limited",
    "too_many_waiters",
    "lock_service_unavailable",
    "internal",
]

CODES: Final[frozenset[str]] = frozenset(get_args(Code))


class LockError(Exception):
    """A failure the caller is told about.

    `code` is one of `CODES`, `message` a sentence that says what to do next, `retry_after_seconds` a whole
    number of seconds where trying again later helps, else None.
    """

    def __init__(self, code: Code, message: str, *, retry_after_seconds: int | None = None) -> None:
        super().__init__(message)
        self.code: Final = code
        self.message: Final = message
        self.retry_after_seconds: Final = retry_after_seconds


class StoreUnavailableError(LockError):
    """The store cannot answer now (LEASE-16). Nothing half done is left behind.

    `cause_code` names the trouble for logs, metrics and `/readyz` (`disk_full`, `store_busy` …); the caller of
    a lock route only hears `lock_service_unavailable`.
    """

    def __init__(self, cause_code: str, message: str) -> None:
        super().__init__("lock_service_unavailable", message, retry_after_seconds=1)
        self.cause_code: Final = cause_code
