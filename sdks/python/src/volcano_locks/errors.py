"""The errors that the client raises (SDK-9).

Every error has `status` (HTTP, None without a response), `code` (the server's machine code), `retry_after` (whole
seconds, None if absent) and `request_id` (in the caller's spelling). No message, attribute or repr contains an owner
token or a service key (SDK-8). Bad arguments raise `TypeError` or `ValueError` before anything is sent.
"""

from datetime import datetime

LOCK_HELD = "lock_held"
LOCK_OWNERSHIP_LOST = "lock_ownership_lost"
RECORD_DAMAGED = "lock_record_damaged"
CLOSED = "this client is closed"


class VolcanoError(Exception):
    """Base class of all errors about a response, or the lack of one."""

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        code: str | None = None,
        retry_after: int | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.retry_after = retry_after
        self.request_id = request_id


class AuthenticationError(VolcanoError):
    """401: the service key is missing, unknown, revoked or expired. 403 raises the subclass `PermissionDeniedError`."""


class PermissionDeniedError(AuthenticationError):
    """403: the service key is valid but lacks the permission for this request."""


class ValidationError(VolcanoError):
    """400 or 413: the server rejected the request's form."""


class NotFoundError(VolcanoError):
    """404: the server has no such address; check the API URL."""


class ConflictError(VolcanoError):
    """409: a decision about who holds the lock. Never retried."""


class LockHeldError(ConflictError):
    """Another holder has the lock, or its lease expired less than a second ago.

    `holder`, `expires_at` and `fencing_token` are those of the lease that holds the lock `key`; each is None if the
    server did not send it. `expires_at` is the server's time, for people.
    """

    def __init__(
        self,
        message: str,
        *,
        key: str | None = None,
        holder: str | None = None,
        expires_at: datetime | None = None,
        fencing_token: int | None = None,
        status: int | None = None,
        code: str | None = None,
        retry_after: int | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message, status=status, code=code, retry_after=retry_after, request_id=request_id)
        self.key = key
        self.holder = holder
        self.expires_at = expires_at
        self.fencing_token = fencing_token


class LockOwnershipLostError(ConflictError):
    """The lease is lost: the server reported it, or its local deadline passed."""


class RateLimitedError(VolcanoError):
    """429: the project's quota or its share of a server is used up (see `code`); retry after `retry_after` seconds."""


class ServerError(VolcanoError):
    """The response was a 5xx, or did not come from a lock service (a proxy's page, a broken body)."""


class UnavailableError(ServerError):
    """503: the server cannot reach its store. A damaged record (`lock_record_damaged`) is a `ServerError`."""


class TransportError(VolcanoError):
    """No response arrived in time. `request_sent` is False only if the request was certainly never sent."""

    def __init__(self, message: str, *, request_sent: bool = True, request_id: str | None = None) -> None:
        super().__init__(message, request_id=request_id)
        self.request_sent = request_sent


def error_for(
    status: int,
    code: str | None,
    message: str,
    *,
    retry_after: int | None = None,
    request_id: str | None = None,
) -> VolcanoError:
    """Create the error for a failed request: by its code for a 409 and a damaged record, by its status otherwise."""
    kind = _BY_CONFLICT.get(code or "", ConflictError) if status == 409 else _BY_STATUS.get(status)
    if kind is None or code == RECORD_DAMAGED:
        kind = VolcanoError if 400 <= status < 500 else ServerError
    return kind(message, status=status, code=code, retry_after=retry_after, request_id=request_id)


_BY_CONFLICT: dict[str, type[VolcanoError]] = {
    LOCK_HELD: LockHeldError,
    LOCK_OWNERSHIP_LOST: LockOwnershipLostError,
}
_BY_STATUS: dict[int, type[VolcanoError]] = {
    400: ValidationError,
    401: AuthenticationError,
    403: PermissionDeniedError,
    404: NotFoundError,
    413: ValidationError,
    429: RateLimitedError,
    503: UnavailableError,
}
