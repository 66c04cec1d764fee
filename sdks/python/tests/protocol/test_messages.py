"""Parsing responses, strictly (SDK-7)."""

import json
import pickle
from datetime import UTC, datetime

import pytest

from volcano_locks import Lease, LockHeldError, LockState, ServerError
from volcano_locks.protocol.messages import (
    Response,
    error_from_response,
    first_value,
    media_type,
    parse_lease,
    parse_state,
)

TOKEN = "11111111-2222-4333-8444-555555555555"
RID = "aaaaaaaa-2222-4333-8444-555555555555"


def parse_grant(body: object, status: int = 201) -> Lease:
    response = Response(status, {"content-type": "application/json"}, json.dumps(body).encode())
    return parse_lease(response, key="k", token=TOKEN, ttl_seconds=30, deadline=30.0, request_id=RID)


def test_a_grant_is_parsed_as_a_lease() -> None:
    lease = parse_grant({"expires_at": "2026-07-20T14:00:10.123Z", "fencing_token": 2**53 - 1})
    assert lease.expires_at == datetime(2026, 7, 20, 14, 0, 10, 123000, tzinfo=UTC)
    assert (lease.fencing_token, lease.deadline, lease.key) == (2**53 - 1, 30.0, "k")


@pytest.mark.parametrize("token", [2**53, 2**63, 0, -1, 1.0, True, "7", None])
def test_a_fencing_token_another_language_would_round_is_refused(token: object) -> None:
    """case 34 and SDK-7: above 2^53 - 1, or not an integer."""
    with pytest.raises(ServerError, match="fencing_token is not an integer from 1 to 9007199254740991"):
        parse_grant({"expires_at": "2026-07-20T14:00:10Z", "fencing_token": token})


@pytest.mark.parametrize(
    "body", [b"", b"<html>Welcome</html>", b"[]", b"null", b"{}", b'{"fencing_token": 7}', b"[" * 60_000, b"\xff"]
)
def test_a_success_with_another_body_is_an_error(body: bytes) -> None:
    """A proxy's page with status 201 grants nothing."""
    with pytest.raises(ServerError, match="HTTP 201 is not a response of a lock service") as failed:
        parse_lease(Response(201, {}, body), key="k", token=TOKEN, ttl_seconds=30, deadline=0, request_id=RID)
    assert (failed.value.status, failed.value.request_id) == (201, RID)


def test_a_state_is_held_or_free() -> None:
    assert parse_state(Response(200, {}, b'{"held": false}'), request_id=RID) == LockState(False)
    held = b'{"held": true, "expires_at": "2026-07-20T14:00:10Z", "fencing_token": 7}'
    assert parse_state(Response(200, {}, held), request_id=RID).fencing_token == 7
    for body in (b'{"held": 0}', b"{}", b'{"held": true}', b'{"held": "false"}'):
        with pytest.raises(ServerError):
            parse_state(Response(200, {}, body), request_id=RID)


def refusal(**fields: object) -> LockHeldError:
    body = {"error": "another owner holds this lock", "code": "lock_held", **fields}
    error = error_from_response(Response(409, {}, json.dumps(body).encode()), request_id=RID, key="nightly")
    assert isinstance(error, LockHeldError)
    return error


def test_a_refused_acquire_names_the_lease_that_holds_the_lock() -> None:
    """SDK-9, HTTP-28: in fields and in the message."""
    error = refusal(holder="db-1/4121", expires_at="2026-07-20T14:00:10.123Z", fencing_token=7)
    assert (error.key, error.holder, error.fencing_token) == ("nightly", "db-1/4121", 7)
    assert error.expires_at == datetime(2026, 7, 20, 14, 0, 10, 123000, tzinfo=UTC)
    assert (error.status, error.code, error.request_id, error.retry_after) == (409, "lock_held", RID, None)
    assert "'nightly' is held by db-1/4121 until 2026-07-20T14:00:10+00:00" in str(error)
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), vars(copy)) == (str(error), vars(error))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"holder": None, "expires_at": None, "fencing_token": None},
        {"holder": 7, "expires_at": "tomorrow", "fencing_token": 2**53},
        {"holder": "two words", "expires_at": 1, "fencing_token": "7"},
        {"holder": "\x1b[2J", "expires_at": [], "fencing_token": True},
    ],
)
def test_what_a_refusal_does_not_say_is_none(fields: dict[str, object]) -> None:
    """SDK-9: a server of 0.1.0 sends none of the fields, and contention is never a broken response."""
    error = refusal(**fields)
    assert (error.key, error.holder, error.expires_at, error.fencing_token) == ("nightly", None, None, None)
    assert "'nightly' is held by another owner: " in str(error)


@pytest.mark.parametrize(("value", "first"), [(RID, RID), (f"{RID}, other", RID), (f"{RID},{RID}", RID), ("", "")])
def test_a_doubled_header_counts_by_its_first_value(value: str, first: str) -> None:
    """case 83."""
    assert first_value(value) == first


@pytest.mark.parametrize("value", ["text/event-stream", "Text/Event-Stream; charset=utf-8", "TEXT/EVENT-STREAM ;x"])
def test_media_types_are_compared_without_case_and_parameters(value: str) -> None:
    """SDK-9."""
    assert media_type({"content-type": value}) == "text/event-stream"
    assert media_type({}) == ""
