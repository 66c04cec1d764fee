"""The errors that a client can get.

One exception type carries them all: a code for programs, a sentence for people, and when to retry if that helps. The
codes are the contract (spec/errors.yaml); `http/problems.py` maps them to HTTP statuses.

A message never holds a token, a key's secret, a store's own error text or a stack trace.
"""

from typing import Final, Literal, get_args

Code = Literal[
    "invalid_lock_key",
    "invalid_lock_token",
    "invalid_request_id",
    "invalid_ttl",
    "invalid_wait",
    "invalid_holder",
    "invalid_reason",
    "invalid_request",
    "invalid_credentials",
    "service_key_required",
    "missing_permission",
    "admin_token_required",
    "cross_site_refused",
    "host_not_allowed",
    "not_found",
    "method_not_allowed",
    "uri_too_long",
    "request_too_large",
    "headers_too_large",
    "name_taken",
    "lock_held",
    "lock_ownership_lost",
    "lock_changed",
    "lock_rate_limited",
    "too_many_waiters",
    "too_many_streams",
    "too_many_requests",
    "lock_service_unavailable",
    "lock_record_damaged",
    "internal",
]

CODES: Final[frozenset[str]] = frozenset(get_args(Code))


class LockError(Exception):
    """An error that the client gets.

    `code` is one of `CODES`. `message` is a sentence that says what to do next. `retry_after_seconds` is a whole number
    of seconds if a retry helps, else None.
    """

    def __init__(self, code: Code, message: str, *, retry_after_seconds: int | None = None) -> None:
        super().__init__(message)
        self.code: Final = code
        self.message: Final = message
        self.retry_after_seconds: Final = retry_after_seconds


class StoreUnavailableError(LockError):
    """The store cannot answer now (LEASE-16). It has done all of the request or nothing of it.

    `cause_code` names the cause for logs, metrics and `/readyz` (`disk_full`, `store_busy` …). Clients only get
    `lock_service_unavailable`.
    """

    def __init__(self, cause_code: str, message: str) -> None:
        super().__init__("lock_service_unavailable", message, retry_after_seconds=1)
        self.cause_code: Final = cause_code


class DamagedRecordError(LockError):
    """A stored record cannot be decoded (LEASE-18).

    `record` names it, `reason` says what is wrong, and `stored` what is there, without digests: for logs and operators.
    """

    def __init__(self, record: str, reason: str, stored: str = "") -> None:
        super().__init__("lock_record_damaged", DAMAGED_MESSAGE)
        self.record: Final = record
        self.reason: Final = reason
        self.stored: Final = stored


DAMAGED_MESSAGE: Final = (
    "the stored record that this request needs is damaged, so nothing is done with it: an operator has to look at it "
    "with volcano-locks doctor and repair it; sending the request again does not help"
)

STOPPING: Final = ("stopping", "the service is stopping: retry at another node or in a moment")
"""The cause code and message of the `StoreUnavailableError` that a stopping server raises."""
