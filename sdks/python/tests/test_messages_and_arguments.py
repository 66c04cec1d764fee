"""What is refused before it is sent, and what is believed of an answer (SDK-7, SDK-8, SDK-22)."""

import copy
import dataclasses
import json
import pickle
import uuid
from datetime import UTC, datetime
from typing import Any

import pytest

from volcano_locks import Leadership, Lease, LockState, LockView, ServerError
from volcano_locks.protocol.messages import (
    Answer,
    checked_key,
    checked_ttl,
    checked_uuid,
    lease_from,
    parse_date,
    state_from,
)

TOKEN = "11111111-2222-4333-8444-555555555555"
RID = "aaaaaaaa-2222-4333-8444-555555555555"


def a_lease(**changes: Any) -> Lease:
    fields = {"key": "k", "token": TOKEN, "ttl_seconds": 30, "fencing_token": 7}
    return Lease(**{**fields, "expires_at": datetime(2026, 7, 20, tzinfo=UTC), **changes})


def granted(body: object, status: int = 201) -> Lease:
    answer = Answer(status, {"content-type": "application/json"}, json.dumps(body).encode())
    return lease_from(answer, key="k", token=TOKEN, ttl_seconds=30, deadline=30.0, request_id=RID)


@pytest.mark.parametrize("key", ["a", "A.b_c:d-e", "0" * 128])
def test_keys_that_name_a_lock(key: str) -> None:
    assert checked_key(key) == key


@pytest.mark.parametrize("key", ["", ".a", "a/b", "a b", "a" * 129, "ä", "a\n", "a%3Ab"])
def test_other_keys_are_refused_with_what_came(key: str) -> None:
    with pytest.raises(ValueError, match="key must be 1 to 128") as refused:
        checked_key(key)
    assert repr(key)[1:20] in str(refused.value)


@pytest.mark.parametrize("ttl", [4, 0, -1, 7_776_001])
def test_a_ttl_out_of_range_is_a_value_error(ttl: int) -> None:
    with pytest.raises(ValueError, match=f"from 5 to 7776000 seconds, got {ttl}"):
        checked_ttl(ttl)


@pytest.mark.parametrize("ttl", [30.0, True, "30", None])
def test_a_ttl_of_another_type_is_a_type_error(ttl: object) -> None:
    with pytest.raises(TypeError, match=f"ttl must be an int of seconds, got {type(ttl).__name__}"):
        checked_ttl(ttl)


def test_a_bad_token_is_refused_without_showing_it() -> None:
    """SDK-8: a mistyped secret is still a secret."""
    with pytest.raises(ValueError, match="token must be a UUID") as refused:
        checked_uuid("token", TOKEN[:-1] + "x")
    assert TOKEN[:8] not in str(refused.value)
    with pytest.raises(TypeError, match="token must be a UUID as str, got bytes"):
        checked_uuid("token", TOKEN.encode())
    assert checked_uuid("token", uuid.UUID(TOKEN)) == TOKEN


def test_an_id_is_kept_as_the_caller_spelled_it() -> None:
    """SDK-1."""
    assert checked_uuid("token", RID.upper()) == RID.upper()


@pytest.mark.parametrize("fraction", ["", ".1", ".12", ".123", ".123456", ".123456789"])
@pytest.mark.parametrize("zone", ["Z", "z", "+00:00", "+0200", "-07:30"])
def test_dates_parse_with_any_offset_and_0_to_9_fractional_digits(fraction: str, zone: str) -> None:
    """case 35 and SDK-7: digits below microseconds are dropped, never an error."""
    parsed = parse_date(f"2026-07-20T14:00:10{fraction}{zone}")
    hours = {"+0200": 12, "-07:30": 21}.get(zone, 14)
    minutes = 30 if zone == "-07:30" else 0
    micros = int(fraction[1:7].ljust(6, "0")) if fraction else 0
    assert parsed == datetime(2026, 7, 20, hours, minutes, 10, micros, tzinfo=UTC)


@pytest.mark.parametrize(
    "text", ["", "2026-07-20", "2026-07-20T14:00:10", "2026-13-20T14:00:10Z", "soon", "0001-01-01T00:00:00+14:00"]
)
def test_what_is_no_instant_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_date(text)


def test_a_grant_becomes_a_lease() -> None:
    lease = granted({"expires_at": "2026-07-20T14:00:10.123Z", "fencing_token": 2**53 - 1})
    assert lease.expires_at == datetime(2026, 7, 20, 14, 0, 10, 123000, tzinfo=UTC)
    assert (lease.fencing_token, lease.deadline, lease.key) == (2**53 - 1, 30.0, "k")


@pytest.mark.parametrize("token", [2**53, 2**63, 0, -1, 1.0, True, "7", None])
def test_a_fencing_token_another_language_would_round_is_refused(token: object) -> None:
    """case 34 and SDK-7: above 2^53 - 1, or no integer at all."""
    with pytest.raises(ServerError, match="fencing_token is not an integer from 1 to 9007199254740991"):
        granted({"expires_at": "2026-07-20T14:00:10Z", "fencing_token": token})


@pytest.mark.parametrize(
    "body", [b"", b"<html>Welcome</html>", b"[]", b"null", b"{}", b'{"fencing_token": 7}', b"[" * 60_000, b"\xff"]
)
def test_a_success_without_its_body_is_no_grant(body: bytes) -> None:
    """A proxy's page with status 201 fails closed."""
    with pytest.raises(ServerError, match="HTTP 201 is not an answer of a lock service") as failed:
        lease_from(Answer(201, {}, body), key="k", token=TOKEN, ttl_seconds=30, deadline=0, request_id=RID)
    assert (failed.value.status, failed.value.request_id) == (201, RID)


def test_a_read_says_held_or_not_and_nothing_else() -> None:
    assert state_from(Answer(200, {}, b'{"held": false}'), request_id=RID) == LockState(False)
    held = b'{"held": true, "expires_at": "2026-07-20T14:00:10Z", "fencing_token": 7}'
    assert state_from(Answer(200, {}, held), request_id=RID).fencing_token == 7
    for body in (b'{"held": 0}', b"{}", b'{"held": true}', b'{"held": "false"}'):
        with pytest.raises(ServerError):
            state_from(Answer(200, {}, body), request_id=RID)


def test_the_owner_token_is_kept_out_of_repr_and_stored_only_on_purpose() -> None:
    """SDK-8: `repr` and `str` hide it; `to_record` is the door for storing it."""
    lease = a_lease()
    assert TOKEN not in repr(lease) + str(lease) + f"{lease}"
    record = json.loads(json.dumps(lease.to_record()))
    assert record["token"] == TOKEN
    assert Lease.from_record(record) == lease
    assert pickle.loads(pickle.dumps(lease)) == lease


def test_leases_with_the_same_content_are_equal_whatever_the_case_of_the_token() -> None:
    """SDK-22, SDK-1: the local deadline is no content."""
    lease = a_lease(token=RID)
    for same in (a_lease(token=RID.upper()), a_lease(token=RID, deadline=7.0), copy.deepcopy(lease)):
        assert same == lease
        assert hash(same) == hash(lease)
    later = datetime(2026, 7, 21, tzinfo=UTC)
    changes: list[dict[str, Any]] = [
        {"key": "l"}, {"token": TOKEN}, {"ttl_seconds": 31}, {"expires_at": later}, {"fencing_token": 8}
    ]  # fmt: skip
    for change in changes:
        assert a_lease(**{"token": RID, **change}) != lease
    assert lease != lease.to_record()


@pytest.mark.parametrize(
    ("value", "field"),
    [
        (a_lease(), "token"),
        (a_lease(), "deadline"),
        (LockState(False), "held"),
        (LockView("k", False, None, None, None, None, None, None, 0), "held"),
        (Leadership(False), "held"),
    ],
)
def test_what_a_client_returns_cannot_be_changed(value: object, field: str) -> None:
    """SDK-22."""
    before = copy.copy(value)
    with pytest.raises(AttributeError):
        setattr(value, field, 1)
    with pytest.raises(AttributeError):
        delattr(value, field)
    with pytest.raises((AttributeError, TypeError)):
        setattr(value, "another", 1)  # noqa: B010 - the name is not one of the class
    assert value == before


def test_converting_a_lease_shows_no_token() -> None:
    """SDK-22, SDK-8: loggers and serializers convert a dataclass with every field, so a lease is none."""
    lease = a_lease()
    assert not dataclasses.is_dataclass(lease)
    assert not hasattr(lease, "__dict__")
    with pytest.raises(TypeError):
        json.dumps(lease)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"key": "/"}, "key"),
        ({"token": "x"}, "token"),
        ({"ttl_seconds": 1}, "ttl"),
        ({"expires_at": "soon"}, "date"),
        ({"expires_at": 7}, "expires_at"),
        ({"fencing_token": 2**53}, "fencing_token"),
    ],
)
def test_a_damaged_record_is_refused_by_name(change: dict[str, Any], named: str) -> None:
    with pytest.raises((ValueError, TypeError), match=named):
        Lease.from_record({**a_lease().to_record(), **change})
    with pytest.raises(ValueError, match="lacks token"):
        Lease.from_record({k: v for k, v in a_lease().to_record().items() if k != "token"})
