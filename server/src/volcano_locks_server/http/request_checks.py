"""The order in which every request is checked (HTTP-13). The first fault found is the response.

    size of head and address   431, 414  http1
    address, method            404, 405  lock_operation; _Router in app
    query size, declared body  414, 413  check_before_credential
    the server is stopping     503       check_before_credential; the health routes go on
    credential                 401, 403  auth
    quota                      429       lock_routes; the request counts from here on (QUOTA-2)
    permission                 403       lock_routes
    request id, parameters     400       check_after_credential
    all other input            400, 413  the endpoint

Until the credential is accepted, only work of constant size is done: nothing is parsed (HTTP-27).
"""

from ..rules.errors import LockError
from ..rules.values import parse_request_id, shown
from .codec import BODY_BYTES_MAX, CONTENT_LENGTH, PARAMETERS_MAX, QUERY_BYTES_MAX, body_too_large, new_request_id
from .problems import DRAINING_MESSAGE


def check_before_credential(query: bytes, fields: dict[bytes, bytes], *, draining: bool) -> None:
    """Raise LockError `uri_too_long`, `request_too_large` or `lock_service_unavailable` (HTTP-21, HTTP-23, HTTP-27)."""
    if len(query) > QUERY_BYTES_MAX:
        raise LockError("uri_too_long", f"the query string must be at most {QUERY_BYTES_MAX} bytes; got {len(query)}")
    declared = fields.get(CONTENT_LENGTH)
    if declared is not None:
        digits = declared.lstrip(b"0")
        if digits and (not digits.isdigit() or len(digits) > 9 or int(digits) > BODY_BYTES_MAX):
            raise body_too_large(shown(declared.decode("latin-1")))
    if draining:
        raise LockError("lock_service_unavailable", DRAINING_MESSAGE, retry_after_seconds=1)


def check_after_credential(query: bytes, request_id_fault: LockError | None) -> None:
    """Raise LockError `invalid_request_id` or, for too many parameters, `invalid_request` (HTTP-9, HTTP-27)."""
    if request_id_fault is not None:
        raise request_id_fault
    count = query.count(b"&") + 1
    if count > PARAMETERS_MAX:
        raise LockError(
            "invalid_request", f"the query string may have at most {PARAMETERS_MAX} parameters; got {count}"
        )


def request_id_of(sent: bytes | None) -> tuple[bytes, LockError | None]:
    """Return the response's request id and the error of the sent id. An invalid or missing id is replaced (HTTP-9)."""
    if sent is None:
        return new_request_id(), None
    try:
        return parse_request_id(sent), None
    except LockError as error:
        return new_request_id(), error
