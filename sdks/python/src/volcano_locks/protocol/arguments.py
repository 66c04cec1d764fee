"""Checks arguments before anything is sent: keys, TTLs, waits, UUIDs; and parses dates and fencing tokens.

A fencing token above 2^53 - 1 is refused, because another language would round it and lose its order (SDK-7).
"""

import re
import uuid
from datetime import UTC, datetime

KEY_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
TTL_SECONDS_MIN = 5
TTL_SECONDS_MAX = 7_776_000
RENEW_EVERY_SECONDS_MIN = 1
FENCING_TOKEN_MAX = 2**53 - 1
REASON_CHARACTERS_MAX = 200
SHOWN_CHARACTERS_MAX = 300

Uuid = str | uuid.UUID

_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})  # control, format, surrogate, line, paragraph
_DATE = re.compile(r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(?:([Zz])|([+-]\d\d):?(\d\d))", re.ASCII)


def checked_key(key: object) -> str:
    """Return `key` if it may name a lock; raise `TypeError` or `ValueError` otherwise."""
    if not isinstance(key, str):
        raise TypeError(f"key must be a str, got {type(key).__name__}")
    if KEY_PATTERN.fullmatch(key) is None:
        raise ValueError(
            "key must be 1 to 128 of A-Z a-z 0-9 . _ : - and begin with a letter or digit, "
            f"got {key[:SHOWN_CHARACTERS_MAX]!r}"
        )
    return key


def checked_ttl(ttl: object) -> int:
    """Return `ttl` if it is a valid whole number of seconds; raise `TypeError` or `ValueError` otherwise."""
    if not isinstance(ttl, int) or isinstance(ttl, bool):
        raise TypeError(f"ttl must be an int of seconds, got {type(ttl).__name__}")
    if not TTL_SECONDS_MIN <= ttl <= TTL_SECONDS_MAX:
        raise ValueError(f"ttl must be from {TTL_SECONDS_MIN} to {TTL_SECONDS_MAX} seconds, got {ttl}")
    return ttl


def checked_seconds(name: str, seconds: object) -> float:
    """Return `seconds` if it is a number from 0 to infinity, and 0 for None; raise otherwise."""
    if seconds is None:
        return 0.0
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise TypeError(f"{name} must be a number of seconds, got {type(seconds).__name__}")
    if not seconds >= 0:
        raise ValueError(f"{name} must be at least 0 seconds (math.inf: without a limit), got {seconds}")
    return float(seconds)


def checked_hold(hold_at_least: object) -> float:
    """Return `hold_at_least` if a lease can last that long, and 0 for None; raise otherwise."""
    seconds = checked_seconds("hold_at_least", hold_at_least)
    if seconds > TTL_SECONDS_MAX:
        raise ValueError(f"hold_at_least must be at most {TTL_SECONDS_MAX} seconds, got {hold_at_least}")
    return seconds


def checked_renew_every(renew_every: object, ttl_seconds: int) -> float | None:
    """Return `renew_every` if it is from 1 second to a third of the TTL, and None for None; raise otherwise (SDK-3)."""
    if renew_every is None:
        return None
    seconds = checked_seconds("renew_every", renew_every)
    if not RENEW_EVERY_SECONDS_MIN <= seconds <= ttl_seconds / 3:
        raise ValueError(
            f"renew_every must be from {RENEW_EVERY_SECONDS_MIN} second to a third of the ttl "
            f"({ttl_seconds / 3:.1f} seconds), got {renew_every}"
        )
    return seconds


def checked_uuid(name: str, value: object) -> str:
    """Return `value` in the caller's spelling if it is a UUID; otherwise raise without showing it (SDK-8)."""
    if isinstance(value, uuid.UUID):
        return str(value)
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a UUID as str, got {type(value).__name__}")
    if _UUID.fullmatch(value) is None:
        raise ValueError(f"{name} must be a UUID such as str(uuid.uuid4()) returns, got a str of length {len(value)}")
    return value


def new_uuid() -> str:
    """Generate an owner token or a request id."""
    return str(uuid.uuid4())


def checked_fencing_token(value: object) -> int:
    """Return `value` if it is a valid fencing token; raise `ValueError` otherwise."""
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= FENCING_TOKEN_MAX:
        raise ValueError(f"fencing_token must be an integer from 1 to {FENCING_TOKEN_MAX}")
    return value


def is_invisible(character: str) -> bool:
    """Whether it is a control or format character, a line separator or a surrogate: none is shown as itself."""
    if character.isprintable():
        return False
    from unicodedata import category  # noqa: PLC0415 (seldom needed)

    return category(character) in _INVISIBLE


def checked_reason(reason: object) -> str | None:
    """Return the reason of a force release, None for None and an empty one; raise otherwise (SDK-27)."""
    if reason is None:
        return None
    if not isinstance(reason, str):
        raise TypeError(f"reason must be a str, got {type(reason).__name__}")
    if len(reason) > REASON_CHARACTERS_MAX or any(map(is_invisible, reason)):
        raise ValueError(
            f"reason must be at most {REASON_CHARACTERS_MAX} characters without control and invisible format "
            f"characters, got {reason[:SHOWN_CHARACTERS_MAX]!a}"
        )
    return reason or None


def parse_date(text: str) -> datetime:
    """Parse an RFC 3339 date with `Z` or an offset and 0 to 9 fractional digits; drop those below microseconds."""
    match = _DATE.fullmatch(text)
    if match is None:
        raise ValueError(f"not a date with a UTC offset: {text[:SHOWN_CHARACTERS_MAX]!r}")
    day, clock, fraction, zulu, hours, minutes = match.groups()
    offset = "+00:00" if zulu else f"{hours}:{minutes}"
    micros = (fraction or "").ljust(6, "0")[:6]
    try:
        return datetime.fromisoformat(f"{day}T{clock}.{micros}{offset}").astimezone(UTC)
    except OverflowError:
        raise ValueError(f"date out of range: {text[:SHOWN_CHARACTERS_MAX]!r}") from None
