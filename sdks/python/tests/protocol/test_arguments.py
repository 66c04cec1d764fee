"""Checks of keys, TTLs and UUIDs, and parsing of dates (SDK-1, SDK-7, SDK-8)."""

import uuid
from datetime import UTC, datetime

import pytest

from volcano_locks.protocol.arguments import checked_key, checked_ttl, checked_uuid, parse_date

TOKEN = "11111111-2222-4333-8444-555555555555"


RID = "aaaaaaaa-2222-4333-8444-555555555555"


@pytest.mark.parametrize("key", ["a", "A.b_c:d-e", "0" * 128])
def test_valid_keys_are_accepted(key: str) -> None:
    assert checked_key(key) == key


@pytest.mark.parametrize("key", ["", ".a", "a/b", "a b", "a" * 129, "ä", "a\n", "a%3Ab"])
def test_invalid_keys_are_refused_and_shown(key: str) -> None:
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
    """SDK-8: a mistyped token is still a secret."""
    with pytest.raises(ValueError, match="token must be a UUID") as refused:
        checked_uuid("token", TOKEN[:-1] + "x")
    assert TOKEN[:8] not in str(refused.value)
    with pytest.raises(TypeError, match="token must be a UUID as str, got bytes"):
        checked_uuid("token", TOKEN.encode())
    assert checked_uuid("token", uuid.UUID(TOKEN)) == TOKEN


def test_a_uuid_keeps_the_callers_spelling() -> None:
    """SDK-1."""
    assert checked_uuid("token", RID.upper()) == RID.upper()


@pytest.mark.parametrize("fraction", ["", ".1", ".12", ".123", ".123456", ".123456789"])
@pytest.mark.parametrize("zone", ["Z", "z", "+00:00", "+0200", "-07:30"])
def test_dates_parse_with_any_offset_and_0_to_9_fractional_digits(fraction: str, zone: str) -> None:
    """case 35 and SDK-7: digits below microseconds are dropped."""
    parsed = parse_date(f"2026-07-20T14:00:10{fraction}{zone}")
    hours = {"+0200": 12, "-07:30": 21}.get(zone, 14)
    minutes = 30 if zone == "-07:30" else 0
    micros = int(fraction[1:7].ljust(6, "0")) if fraction else 0
    assert parsed == datetime(2026, 7, 20, hours, minutes, 10, micros, tzinfo=UTC)


@pytest.mark.parametrize(
    "text", ["", "2026-07-20", "2026-07-20T14:00:10", "2026-13-20T14:00:10Z", "soon", "0001-01-01T00:00:00+14:00"]
)
def test_invalid_dates_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_date(text)
