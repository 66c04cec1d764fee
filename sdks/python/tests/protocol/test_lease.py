"""`Lease` and the other values that a client returns: immutable, comparable, without the token in their text."""

import copy
import dataclasses
import json
import pickle
from datetime import UTC, datetime
from typing import Any

import pytest

from volcano_locks import Leadership, Lease, LockState, LockView

TOKEN = "11111111-2222-4333-8444-555555555555"


RID = "aaaaaaaa-2222-4333-8444-555555555555"


def new_lease(**changes: Any) -> Lease:
    fields = {"key": "k", "token": TOKEN, "ttl_seconds": 30, "fencing_token": 7}
    return Lease(**{**fields, "expires_at": datetime(2026, 7, 20, tzinfo=UTC), **changes})


def test_repr_hides_the_owner_token_and_to_record_includes_it() -> None:
    """SDK-8."""
    lease = new_lease()
    assert TOKEN not in repr(lease) + str(lease) + f"{lease}"
    record = json.loads(json.dumps(lease.to_record()))
    assert record["token"] == TOKEN
    assert Lease.from_record(record) == lease
    assert pickle.loads(pickle.dumps(lease)) == lease


def test_leases_with_the_same_content_are_equal_whatever_the_case_of_the_token() -> None:
    """SDK-22, SDK-1: the local deadline is not compared."""
    lease = new_lease(token=RID)
    for same in (new_lease(token=RID.upper()), new_lease(token=RID, deadline=7.0), copy.deepcopy(lease)):
        assert same == lease
        assert hash(same) == hash(lease)
    later = datetime(2026, 7, 21, tzinfo=UTC)
    changes: list[dict[str, Any]] = [
        {"key": "l"}, {"token": TOKEN}, {"ttl_seconds": 31}, {"expires_at": later}, {"fencing_token": 8}
    ]  # fmt: skip
    for change in changes:
        assert new_lease(**{"token": RID, **change}) != lease
    assert lease != lease.to_record()


@pytest.mark.parametrize(
    ("value", "field"),
    [
        (new_lease(), "token"),
        (new_lease(), "deadline"),
        (LockState(False), "held"),
        (LockView("k", False, None, None, None, None, None, None, 0), "held"),
        (Leadership(False), "held"),
    ],
)
def test_returned_values_are_immutable(value: object, field: str) -> None:
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
    """SDK-22, SDK-8: loggers and serializers convert a dataclass with every field, so a lease is no dataclass."""
    lease = new_lease()
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
def test_a_damaged_record_is_refused_with_the_name_of_its_field(change: dict[str, Any], named: str) -> None:
    with pytest.raises((ValueError, TypeError), match=named):
        Lease.from_record({**new_lease().to_record(), **change})
    with pytest.raises(ValueError, match="lacks token"):
        Lease.from_record({k: v for k, v in new_lease().to_record().items() if k != "token"})
