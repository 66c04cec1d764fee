"""Which input values are valid, and messages that name the field, the limit and the value."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from volcano_locks_server.rules.errors import LockError
from volcano_locks_server.rules.values import (
    PERMISSION_LENGTH_MAX,
    PERMISSIONS_MAX,
    LockKey,
    parse_holder,
    parse_name,
    parse_owner_token,
    parse_permissions,
    parse_request_id,
    parse_ttl_seconds,
    parse_whole_number,
    shown,
)

UUID = "3FA85F64-5717-4562-b3fc-2c963f66afa6"


@pytest.mark.parametrize("text", ["a", "Z9", "0", "a.b_c:d-e", "x" * 128])
def test_valid_keys(text: str) -> None:
    assert LockKey.parse(text) == text


@pytest.mark.parametrize("text", ["", ".a", "-a", "_a", "a b", "a/b", "ä", "a\n", "x" * 129, "٣", "a\x00"])
def test_invalid_keys(text: str) -> None:
    with pytest.raises(LockError, match="lock key must be 1 to 128") as caught:
        LockKey.parse(text)
    assert caught.value.code == "invalid_lock_key"


@pytest.mark.parametrize("value", [5, 30, 7_776_000])
def test_valid_ttls(value: int) -> None:
    assert parse_ttl_seconds(value) == value


@pytest.mark.parametrize("value", [4, 7_776_001, 0, -5, True, 30.0, "30", None, [30], {}, 10**30])
def test_invalid_ttls(value: Any) -> None:
    with pytest.raises(LockError, match=r"ttl_seconds must be a whole JSON number from 5 to 7776000") as caught:
        parse_ttl_seconds(value)
    assert caught.value.code == "invalid_ttl"


def test_a_token_becomes_a_digest_and_case_does_not_matter() -> None:
    """LEASE-15, HTTP-8."""
    digest = parse_owner_token(UUID.encode())
    assert digest == parse_owner_token(UUID.lower().encode())
    assert len(digest) == 32


@pytest.mark.parametrize("text", [None, "", "x", UUID + "0", UUID.replace("-", ""), "{" + UUID + "}", UUID + "\n"])
def test_an_invalid_token_is_not_repeated_in_the_message(text: str | None) -> None:
    """LEASE-15: even a mistyped token is a secret."""
    with pytest.raises(LockError, match="X-Volcano-Lock-Token") as caught:
        parse_owner_token(None if text is None else text.encode())
    assert caught.value.code == "invalid_lock_token"
    assert not text or text == "x" or text not in caught.value.message


def test_request_ids() -> None:
    assert parse_request_id(UUID.encode()) == UUID.lower().encode()
    with pytest.raises(LockError, match="X-Volcano-Request-Id") as caught:
        parse_request_id(b"17")
    assert caught.value.code == "invalid_request_id"


@pytest.mark.parametrize("text", ["", "a b", "a\tb", "ä", "x" * 129, "\x7f"])
def test_invalid_holders(text: str) -> None:
    with pytest.raises(LockError, match="1 to 128 visible ASCII") as caught:
        parse_holder(text)
    assert caught.value.code == "invalid_holder"


def test_valid_holders() -> None:
    assert parse_holder("web-1.example/4121") == "web-1.example/4121"
    assert parse_holder("~" * 128) == "~" * 128


@pytest.mark.parametrize("value", ["", "a b", "a.b", "x" * 256, 5, None, "é"])
def test_invalid_names(value: Any) -> None:
    with pytest.raises(LockError, match="name must be 1 to 255 characters"):
        parse_name(value)


def test_permissions() -> None:
    assert parse_permissions(None) == parse_permissions([]) == ("*",)
    assert parse_permissions(["locks.manage", "*", "*"]) == ("*", "locks.manage")
    assert parse_permissions(["locks.read"]) == ("locks.read",)
    for wrong in ("*", [1], {"*": 1}, ["locks.fly"], ["*"] * (PERMISSIONS_MAX + 1)):
        with pytest.raises(LockError, match="permissions") as caught:
            parse_permissions(wrong)
        assert caught.value.code == "invalid_request"


def test_permissions_of_other_services_are_stored() -> None:
    """ADMIN-6: every permission of their form, up to the limits."""
    theirs = ["functions.invoke", "db.*", "a", "a-b_c.0", "lock.manage", "locks", "a.b.c", "x" * PERMISSION_LENGTH_MAX]
    assert parse_permissions([*theirs, "locks.read"]) == tuple(sorted([*theirs, "locks.read"]))
    most = [f"functions.{number}" for number in range(PERMISSIONS_MAX)]
    assert len(parse_permissions(most)) == PERMISSIONS_MAX


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "\t", "locks.", "locks.*", "locks.break", "locks.read.all", "Functions.invoke", "functions invoke",
        "functions.", ".invoke", "a..b", "0a", "_a", "**", "*.a", "é", "a\n", "a,b", "x" * (PERMISSION_LENGTH_MAX + 1),
    ],
)  # fmt: skip
def test_an_invalid_permission_is_refused(text: str) -> None:
    """ADMIN-6: a key with a misspelt permission would grant nothing."""
    with pytest.raises(LockError, match="permissions") as caught:
        parse_permissions(["functions.invoke", text])
    assert caught.value.code == "invalid_request"


def test_whole_numbers() -> None:
    assert parse_whole_number(0, "requests_per_minute", 0, 9) == 0
    for wrong in (-1, 10, True, 1.0, "1", None):
        with pytest.raises(LockError, match="requests_per_minute must be a whole number from 0 to 9"):
            parse_whole_number(wrong, "requests_per_minute", 0, 9)


@given(st.one_of(st.text(), st.integers(), st.lists(st.text())))
def test_received_values_are_shown_short_and_printable(value: object) -> None:
    text = shown(value)
    assert len(text) <= 40 + len("… (1000000 characters)")
    assert text.replace("…", "").isascii()
    assert text.isprintable()
