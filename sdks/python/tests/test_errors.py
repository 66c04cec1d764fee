"""Which error a response becomes (SDK-9)."""

import copy
import json
import pickle

import pytest

import volcano_locks
from volcano_locks import errors
from volcano_locks.protocol.messages import Response, error_from_response

RID = "aaaaaaaa-2222-4333-8444-555555555555"


def error_of(status: int, body: bytes, headers: dict[str, str] | None = None) -> errors.VolcanoError:
    return error_from_response(Response(status, headers or {}, body), request_id=RID)


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, "invalid_ttl", errors.ValidationError),
        (401, "invalid_credentials", errors.AuthenticationError),
        (403, "missing_permission", errors.PermissionDeniedError),
        (404, "not_found", errors.NotFoundError),
        (405, "method_not_allowed", errors.VolcanoError),
        (409, "lock_held", errors.LockHeldError),
        (409, "lock_ownership_lost", errors.LockOwnershipLostError),
        (409, "something_new", errors.ConflictError),
        (413, "request_too_large", errors.ValidationError),
        (429, "lock_rate_limited", errors.RateLimitedError),
        (500, "internal", errors.ServerError),
        (502, None, errors.ServerError),
        (503, "lock_service_unavailable", errors.UnavailableError),
        (503, "lock_record_damaged", errors.ServerError),
        (302, None, errors.ServerError),
    ],
)
def test_every_error_response_has_its_type_and_attributes(
    status: int, code: str | None, kind: type[errors.VolcanoError]
) -> None:
    """SDK-9: status, code, retry_after in whole seconds and the request id."""
    error = error_of(status, json.dumps({"error": "why", "code": code}).encode(), {"retry-after": "7"})
    assert type(error) is kind
    assert (str(error), error.status, error.code) == ("why", status, code)
    assert (error.retry_after, type(error.retry_after), error.request_id) == (7, int, RID)


def test_the_hierarchy_is_that_of_the_contract() -> None:
    """SDK-9: catching a class catches its subclasses."""
    assert issubclass(errors.LockHeldError, errors.ConflictError)
    assert issubclass(errors.LockOwnershipLostError, errors.ConflictError)
    assert issubclass(errors.UnavailableError, errors.ServerError)
    assert issubclass(errors.PermissionDeniedError, errors.AuthenticationError)
    assert all(
        issubclass(getattr(volcano_locks, name), errors.VolcanoError)
        for name in volcano_locks.__all__
        if name.endswith("Error")
    )


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("0", 0), ("007", 7), ("1.5", 2), ("1.0", 1), ("0.001", 1), ("3599.5", 3600), ("9" * 400, 3600), ("0" * 20, 0)],
)
def test_a_retry_after_is_a_whole_number_of_seconds(header: str, seconds: int) -> None:
    """SDK-9: a fraction is rounded up."""
    retry_after = error_of(503, b"", {"retry-after": header}).retry_after
    assert (retry_after, type(retry_after)) == (seconds, int)


@pytest.mark.parametrize(
    "retry_after", ["", "-1", "1.", ".5", "1e3", "inf", "soon", "²", "1 2", "Wed, 21 Oct 2026 07:28:00 GMT"]
)
def test_a_retry_after_that_is_no_number_is_ignored(retry_after: str) -> None:
    assert error_of(503, b"", {"retry-after": retry_after}).retry_after is None


def test_the_error_for_a_proxys_page_has_no_markup() -> None:
    assert str(error_of(502, b"<html>Bad gateway</html>")) == "HTTP 502 without a reason"
    assert str(error_of(500, b'{"error": "a\\u001b[31mb"}')) == "a?[31mb"
    assert len(str(error_of(500, json.dumps({"error": "x" * 10_000}).encode()))) < 400


def test_errors_can_be_pickled_and_copied() -> None:
    error = pickle.loads(pickle.dumps(error_of(429, b'{"error": "why", "code": "c"}', {"retry-after": "3"})))
    assert (type(error), error.code, error.retry_after) == (errors.RateLimitedError, "c", 3)
    unsent = copy.copy(errors.TransportError("gone", request_sent=False))
    assert unsent.request_sent is False
