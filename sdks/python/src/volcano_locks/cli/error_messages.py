"""Turns an error of the client into a message with the next step, and an exit code (CLI-4)."""

from collections.abc import Iterator
from contextlib import contextmanager

from volcano_locks import errors

from . import exit_codes
from .connection import ADMIN_TOKEN_VARIABLE, API_URL_VARIABLE, Connection
from .connection_errors import no_response_message


@contextmanager
def exit_on_client_error(connection: Connection) -> Iterator[None]:
    """Inside the block, an error of the client ends the command with a message that explains it."""
    try:
        yield
    except errors.VolcanoError as error:
        raise exit_for(error, connection) from None
    except (TypeError, ValueError) as error:
        raise exit_codes.Exit(str(error), exit_codes.USAGE) from None


def exit_for(error: errors.VolcanoError, connection: Connection) -> exit_codes.Exit:
    """The Exit for `error`."""
    fitting = (exit_code for kind, exit_code in _EXIT_CODES if isinstance(error, kind))
    return exit_codes.Exit(_message(error, connection), next(fitting, exit_codes.UNAVAILABLE))


_EXIT_CODES = (
    (errors.LockHeldError, exit_codes.NOT_ACQUIRED),
    (errors.LockOwnershipLostError, exit_codes.OWNERSHIP_LOST),
    (errors.AuthenticationError, exit_codes.CREDENTIALS),
    (errors.ValidationError, exit_codes.USAGE),
    (errors.NotFoundError, exit_codes.USAGE),
    (errors.ConflictError, exit_codes.USAGE),
)


def _message(error: errors.VolcanoError, connection: Connection) -> str:
    text = str(error)
    match error:
        case errors.PermissionDeniedError() if error.code == "admin_token_required":
            text = f"{error}; set {ADMIN_TOKEN_VARIABLE} or pass --admin-token-file PATH"
        case errors.PermissionDeniedError():
            text = f"{connection.secret_origin} lacks the permission: {error}"
        case errors.AuthenticationError():
            text = f"{connection.api_url} does not accept {connection.secret_origin}:\n{error}\n{connection.remedy}"
        case errors.TransportError():
            text = no_response_message(error, connection.api_url)
        case errors.RateLimitedError() if error.code == "lock_rate_limited":
            text = (
                f"{error}\n"
                "An operator raises the quota with `volcano-locks project set PROJECT --requests-per-minute NUMBER`."
            )
        case errors.NotFoundError():
            text = (
                f"not found at {connection.api_url}: {error}\n"
                f"Is that the lock service? Set its address in {API_URL_VARIABLE} or --api-url."
            )
        case errors.ServerError() if error.request_id:
            text = f"the server failed: {error}; try again, or report request id {error.request_id}"
    return text
