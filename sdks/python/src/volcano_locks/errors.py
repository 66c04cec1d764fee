"""What can go wrong, as types a caller can catch (SDK-9).

Every error carries `status` (HTTP, None when there was no answer), `code` (the server's machine code),
`retry_after` (whole seconds, None when not told) and `request_id` (as the caller spelled it). No message, attribute
or repr of these holds an owner token or a service key (SDK-8). Mistakes in arguments are `TypeError` and
`ValueError`, raised before anything is sent.
"""

LOCK_HELD = "lock_held"
LOCK_OWNERSHIP_LOST = "lock_ownership_lost"
CLOSED = "this client is closed"


class VolcanoError(Exception):
    """Base of everything this client raises about an answer, or the lack of one."""

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
    """401: the service key is missing, unknown, revoked or expired. A 403 is its subclass `PermissionDeniedError`."""


class PermissionDeniedError(AuthenticationError):
    """403: the service key is valid and lacks the permission for this request."""


class ValidationError(VolcanoError):
    """400 or 413: the server refused the request's form."""


class NotFoundError(VolcanoError):
    """404: there is nothing at this address; is the API URL right?"""


class ConflictError(VolcanoError):
    """409: an answer about who holds the lock. Never retried."""


class LockHeldError(ConflictError):
    """Somebody else holds the lock, or held it less than a second ago."""


class LockOwnershipLostError(ConflictError):
    """The lease is not this holder's any more: told by the server, or its local deadline passed."""


class RateLimitedError(VolcanoError):
    """429: the project's quota for this minute is spent; `retry_after` says for how long."""


class ServerError(VolcanoError):
    """The answer was a 5xx, or was no answer of a lock service at all (a proxy's page, a broken body)."""


class UnavailableError(ServerError):
    """503: the server cannot reach its store and will not guess."""


class TransportError(VolcanoError):
    """No answer came in time. `request_sent` is False only when the request certainly never left."""

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
    """The error a refused request is raised as: the conflict's code decides first, then the status."""
    kind = _BY_CONFLICT.get(code or "", ConflictError) if status == 409 else _BY_STATUS.get(status)
    if kind is None:
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
