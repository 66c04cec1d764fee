"""What a failure means for the person at the shell: a sentence with the next step, and an exit code (CLI-4)."""

from collections.abc import Iterator
from contextlib import contextmanager

from volcano_locks import errors

from . import exit_codes
from .connection import ADMIN_TOKEN_VARIABLE, API_URL_VARIABLE, Connection
from .connection_errors import no_answer


@contextmanager
def explained(connection: Connection) -> Iterator[None]:
    """Inside, the client's errors end the command with a Stop that explains them."""
    try:
        yield
    except errors.VolcanoError as error:
        raise explain(error, connection) from None
    except (TypeError, ValueError) as error:
        raise exit_codes.Stop(str(error), exit_codes.USAGE) from None


def explain(error: errors.VolcanoError, connection: Connection) -> exit_codes.Stop:
    """The Stop for `error`."""
    for kind, exit_code in _EXIT_CODES:
        if isinstance(error, kind):
            return exit_codes.Stop(_sentence(error, connection), exit_code)
    return exit_codes.Stop(_sentence(error, connection), exit_codes.UNAVAILABLE)


_EXIT_CODES = (
    (errors.LockHeldError, exit_codes.NOT_ACQUIRED),
    (errors.LockOwnershipLostError, exit_codes.OWNERSHIP_LOST),
    (errors.AuthenticationError, exit_codes.CREDENTIALS),
    (errors.ValidationError, exit_codes.USAGE),
    (errors.NotFoundError, exit_codes.USAGE),
    (errors.ConflictError, exit_codes.USAGE),
)


def _sentence(error: errors.VolcanoError, connection: Connection) -> str:
    sentence = str(error)
    match error:
        case errors.PermissionDeniedError() if error.code == "admin_token_required":
            sentence = f"{error}; the admin token belongs in {ADMIN_TOKEN_VARIABLE}"
        case errors.PermissionDeniedError():
            sentence = f"{connection.secret_origin} may not do this: {error}"
        case errors.AuthenticationError():
            sentence = f"{connection.api_url} does not accept {connection.secret_origin}: {error}\n{connection.remedy}"
        case errors.TransportError():
            sentence = no_answer(error, connection.api_url)
        case errors.RateLimitedError() if error.code == "lock_rate_limited":
            sentence = (
                f"{error}\n"
                "An operator raises the quota with `volcano-locks project set PROJECT --requests-per-minute NUMBER`."
            )
        case errors.NotFoundError() if error.code is None:
            sentence = (
                f"{connection.api_url} knows no such address: {error}\n"
                f"Is that a lock service? {API_URL_VARIABLE} or --api-url names another one."
            )
        case errors.ServerError() if error.request_id:
            sentence = f"the server could not answer: {error} (request {error.request_id})"
    return sentence
