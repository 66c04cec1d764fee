"""Parsing responses, strictly (SDK-7)."""

import json
from datetime import UTC, datetime

import pytest

from volcano_locks import Lease, LockState, ServerError
from volcano_locks.protocol.messages import Response, parse_lease, parse_state

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
