"""Parses the values that clients send, and names their limits.

Values are parsed once, where they enter; inside the service a `LockKey` is always valid, and of an owner token there is
only the digest (LEASE-15). A parser raises `LockError` with a message that names the field, the limit and the value
received.
"""

import re
from contextlib import suppress
from hashlib import sha256
from math import ceil
from typing import Final, Self
from unicodedata import category
from urllib.parse import unquote_to_bytes

from .errors import LockError

KEY_LENGTH_MAX: Final = 128
TTL_SECONDS_MIN: Final = 5
TTL_SECONDS_MAX: Final = 7_776_000
WAIT_SECONDS_MAX: Final = 60
HOLDER_LENGTH_MAX: Final = 128
REASON_LENGTH_MAX: Final = 200
FENCING_TOKEN_MAX: Final = 2**53 - 1
NAME_LENGTH_MAX: Final = 255
REQUESTS_PER_MINUTE_DEFAULT: Final = 600
REQUESTS_PER_MINUTE_MAX: Final = 1_000_000_000
KEEP_OLD_SECONDS_MAX: Final = 7 * 24 * 3600
PAGE_LIMIT_DEFAULT: Final = 50
PAGE_LIMIT_MAX: Final = 100
LIST_LIMIT_DEFAULT: Final = 100
LIST_LIMIT_MAX: Final = 500
SHOWN_LENGTH_MAX: Final = 40

PERMISSIONS: Final = frozenset({"*", "locks.manage", "locks.read"})  # permissions with an effect in this service
PERMISSIONS_MAX: Final = 50
PERMISSION_LENGTH_MAX: Final = 64
_OWN_PREFIX: Final = "locks."

_KEY: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}", re.ASCII)
_UUID: Final = re.compile(rb"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}")
_HOLDER: Final = re.compile(r"[\x21-\x7e]{1,128}", re.ASCII)
_FENCING_TOKEN: Final = re.compile(rb"[1-9][0-9]{0,15}")
_REASON_SENT: Final = re.compile(rb"(?:[\x21-\x24\x26-\x7e]|%[0-9A-Fa-f]{2})*")
_REASON_BYTES_MAX: Final = REASON_LENGTH_MAX * 4 * 3  # four bytes of UTF-8, each as %XX
_INVISIBLE: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})  # control, format, surrogate, line, paragraph
_PERMISSION: Final = re.compile(r"\*|[a-z][a-z0-9_-]*(\.[a-z0-9_*-]+)*", re.ASCII)
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,255}", re.ASCII)


def shown(value: object) -> str:
    """`value` for a message: quoted, printable, at most SHOWN_LENGTH_MAX characters.

    The rest of a long string is not processed.
    """
    text = ascii(value[: SHOWN_LENGTH_MAX + 1] if isinstance(value, str) else value)
    if len(text) <= SHOWN_LENGTH_MAX:
        return text
    return f"{text[:SHOWN_LENGTH_MAX]}… ({len(value if isinstance(value, str) else text)} characters)"


class LockKey(str):
    """The name of a lock within a project (spec: HTTP keys)."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """The key, or LockError `invalid_lock_key`."""
        if _KEY.fullmatch(text) is None:
            raise LockError(
                "invalid_lock_key",
                f"lock key must be 1 to {KEY_LENGTH_MAX} characters of A-Z a-z 0-9 . _ : - and start with a "
                f"letter or digit; got {shown(text)}",
            )
        return cls(text)


def parse_key_prefix(text: str) -> str:
    """A prefix of keys, which may be empty, or LockError `invalid_request`."""
    if text and _KEY.fullmatch(text) is None:
        raise LockError(
            "invalid_request",
            f"prefix must be up to {KEY_LENGTH_MAX} characters of A-Z a-z 0-9 . _ : - and start with a letter or "
            f"digit; got {shown(text)}",
        )
    return text


def parse_owner_token(text: bytes | None) -> bytes:
    """The SHA-256 digest of an owner token; the token itself goes no further (LEASE-15).

    Raises LockError `invalid_lock_token`, whose message does not repeat the value. Case does not matter.
    """
    if text is None:
        raise LockError(
            "invalid_lock_token", "header X-Volcano-Lock-Token is missing: send a random UUID as the owner token"
        )
    if _UUID.fullmatch(text) is None:
        raise LockError(
            "invalid_lock_token",
            "header X-Volcano-Lock-Token must be one UUID such as xxxxxxxx-xxxx-4xxx-yxxx-xxxxxxxxxxxx; "
            f"got {len(text)} characters that are not a UUID",
        )
    return sha256(text.lower()).digest()


def parse_request_id(text: bytes) -> bytes:
    """The request id in lower case, or LockError `invalid_request_id`."""
    if _UUID.fullmatch(text) is None:
        raise LockError(
            "invalid_request_id",
            f"header X-Volcano-Request-Id must be a UUID or be left out; got {shown(text.decode('latin-1'))}",
        )
    return text.lower()


def parse_ttl_seconds(value: object) -> int:
    """Whole seconds within the limits, or LockError `invalid_ttl`. `True`, `30.0` and `"30"` are refused."""
    if type(value) is not int or not TTL_SECONDS_MIN <= value <= TTL_SECONDS_MAX:
        raise LockError(
            "invalid_ttl",
            f"ttl_seconds must be a whole JSON number from {TTL_SECONDS_MIN} to {TTL_SECONDS_MAX} (90 days); "
            f"got {shown(value)}",
        )
    return value


def parse_wait_ms(value: object) -> int:
    """A wait in seconds as milliseconds, rounded up, or LockError `invalid_wait`. 0 is no wait.

    `True`, `"5"` and NaN are refused.
    """
    if type(value) not in (int, float) or not 0 <= value <= WAIT_SECONDS_MAX:  # type: ignore[operator]
        raise LockError(
            "invalid_wait", f"wait_seconds must be a JSON number from 0 to {WAIT_SECONDS_MAX}; got {shown(value)}"
        )
    return ceil(value * 1_000)  # type: ignore[operator]


def parse_holder(text: str) -> str:
    """The holder label, or LockError `invalid_holder`."""
    if _HOLDER.fullmatch(text) is None:
        raise LockError(
            "invalid_holder",
            f"header X-Volcano-Lock-Holder must be 1 to {HOLDER_LENGTH_MAX} visible ASCII characters without "
            f"blanks; got {shown(text)}",
        )
    return text


def is_reason(text: str) -> bool:
    """Whether a reason has 1 to REASON_LENGTH_MAX characters, without control and format characters (HTTP-34)."""
    return 1 <= len(text) <= REASON_LENGTH_MAX and _INVISIBLE.isdisjoint(map(category, text))


def parse_reason(sent: bytes) -> str | None:
    """The reason of a force release, decoded; None if it is empty. Raises LockError `invalid_reason` (HTTP-34)."""
    if not sent:
        return None
    if len(sent) <= _REASON_BYTES_MAX and _REASON_SENT.fullmatch(sent) is not None:
        with suppress(UnicodeDecodeError):
            text = unquote_to_bytes(sent).decode()
            if is_reason(text):
                return text
    raise LockError(
        "invalid_reason",
        f"header X-Volcano-Reason must be at most {REASON_LENGTH_MAX} characters in UTF-8 without control and "
        f"invisible format characters, percent-encoded: a blank is %20; got {shown(sent.decode('latin-1'))}",
    )


def parse_fencing_token(sent: bytes) -> int:
    """The fencing token in an address, or LockError `invalid_request`."""
    if _FENCING_TOKEN.fullmatch(sent) is None or int(sent) > FENCING_TOKEN_MAX:
        raise LockError(
            "invalid_request",
            f"the fencing token in the address must be a whole number from 1 to {FENCING_TOKEN_MAX}; "
            f"got {shown(sent.decode('latin-1'))}",
        )
    return int(sent)


def parse_name(value: object, field: str = "name") -> str:
    """A project's or key's name, or LockError `invalid_request`."""
    if not isinstance(value, str) or _NAME.fullmatch(value) is None:
        raise LockError(
            "invalid_request",
            f"{field} must be 1 to {NAME_LENGTH_MAX} characters of A-Z a-z 0-9 _ -; got {shown(value)}",
        )
    return value


def parse_permission(text: str) -> str:
    """A permission of this service, or one that has the form of another service's; else LockError `invalid_request`."""
    if text in PERMISSIONS:
        return text
    if text.startswith(_OWN_PREFIX):
        own = ", ".join(sorted(PERMISSIONS))
        raise LockError("invalid_request", f"the permissions of this service are {own}; got {shown(text)}")
    if len(text) > PERMISSION_LENGTH_MAX or _PERMISSION.fullmatch(text) is None:
        raise LockError(
            "invalid_request",
            "permissions must be * or words of a-z 0-9 _ - joined by dots, such as functions.invoke, each of at most "
            f"{PERMISSION_LENGTH_MAX} characters; got {shown(text)}",
        )
    return text


def parse_permissions(value: object) -> tuple[str, ...]:
    """The permissions of a service key, sorted and without duplicates. None or an empty list means all (`*`).

    Permissions of other services are stored and grant nothing here. Raises LockError `invalid_request`.
    """
    if value is None or value == []:
        return ("*",)
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise LockError("invalid_request", f"permissions must be a list of strings; got {shown(value)}")
    if len(value) > PERMISSIONS_MAX:
        raise LockError("invalid_request", f"permissions must have at most {PERMISSIONS_MAX} entries; got {len(value)}")
    return tuple(sorted({parse_permission(one) for one in value}))


def parse_whole_number(value: object, field: str, low: int, high: int) -> int:
    """A whole JSON number from `low` to `high`, or LockError `invalid_request`."""
    if type(value) is not int or not low <= value <= high:
        raise LockError("invalid_request", f"{field} must be a whole number from {low} to {high}; got {shown(value)}")
    return value


def parse_limit(text: str | None, default: int, high: int) -> int:
    """The `limit` of a list, or LockError `invalid_request`."""
    if text is None:
        return default
    is_short_number = text.isascii() and text.isdigit() and len(text) <= len(str(high))
    return parse_whole_number(int(text) if is_short_number else text, "limit", 1, high)
