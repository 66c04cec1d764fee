"""What travels: arguments checked before anything is sent, answers parsed before anything is believed.

An answer that is not exactly what the wire promises is a failure, never a grant: a proxy's page with status
200 is no lease. Dates may end in `Z` or an offset and have 0 to 9 fractional digits; a fencing token above
2^53 - 1 is refused, since another language would round it and lose its order (SDK-7).
"""

import json
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from math import ceil
from typing import Any, Final, Self

from volcano_locks.errors import ServerError, VolcanoError, error_for

KEY_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
TTL_SECONDS_MIN = 5
TTL_SECONDS_MAX = 7_776_000
FENCING_TOKEN_MAX = 2**53 - 1
RETRY_AFTER_SECONDS_MAX = 3600
SHOWN_CHARACTERS_MAX = 300

Uuid = str | uuid.UUID

_SECONDS = re.compile(r"[0-9]+(\.[0-9]+)?")
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_DATE = re.compile(r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(?:([Zz])|([+-]\d\d):?(\d\d))", re.ASCII)


@dataclass(frozen=True, slots=True)
class Answer:
    """One HTTP answer, read to its end. `headers` has lower-case names."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Lease:
    """One acquisition of a lock: an immutable value. Two leases with the same content are equal.

    `token` is the owner token, as the caller spelled it; comparison ignores its case. It is a secret: only `to_record`
    and pickling include it. This is why a lease is not a dataclass, which loggers and serializers convert with every
    field. `expires_at` is the server's time, for people. `deadline` is the instant on this client's clock after which
    the lease must not be relied on; None if the lease was loaded from a record.
    """

    __slots__ = ("deadline", "expires_at", "fencing_token", "key", "token", "ttl_seconds")

    def __init__(  # noqa: PLR0917 - what every lease has, in the order of its record
        self,
        key: str,
        token: str,
        ttl_seconds: int,
        expires_at: datetime,
        fencing_token: int,
        deadline: float | None = None,
    ) -> None:
        self.key: Final = key
        self.token: Final = token
        self.ttl_seconds: Final = ttl_seconds
        self.expires_at: Final = expires_at
        self.fencing_token: Final = fencing_token
        self.deadline: Final = deadline

    def __setattr__(self, name: str, value: object) -> None:
        if hasattr(self, name):
            raise AttributeError(f"a Lease cannot be changed (got a value for {name}): renew returns a new one")
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a Lease cannot be changed (asked to delete {name}): renew returns a new one")

    def __eq__(self, other: object) -> bool:
        return self._content() == other._content() if isinstance(other, Lease) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._content())

    def __repr__(self) -> str:
        shown = ("key", "ttl_seconds", "expires_at", "fencing_token")
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

    def __reduce__(self) -> tuple[type[Self], tuple[object, ...]]:
        fields = (self.key, self.token, self.ttl_seconds, self.expires_at, self.fencing_token, self.deadline)
        return type(self), fields

    def _content(self) -> tuple[object, ...]:
        return self.key, self.token.lower(), self.ttl_seconds, self.expires_at, self.fencing_token

    def to_record(self) -> dict[str, str | int]:
        """Everything needed to renew or release it elsewhere, the secret token included: store it as one."""
        return {
            "key": self.key,
            "token": self.token,
            "ttl_seconds": self.ttl_seconds,
            "expires_at": self.expires_at.isoformat(),
            "fencing_token": self.fencing_token,
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """The lease `to_record` described. `ValueError` or `TypeError` names the field that is wrong."""
        missing = {"key", "token", "ttl_seconds", "expires_at", "fencing_token"} - set(record)
        if missing:
            raise ValueError(f"lease record lacks {', '.join(sorted(missing))}")
        if not isinstance(record["expires_at"], str):
            raise TypeError("lease record: expires_at must be a date as text")
        if not _is_safe_integer(record["fencing_token"]):
            raise ValueError(f"lease record: fencing_token must be an integer from 1 to {FENCING_TOKEN_MAX}")
        return cls(
            key=checked_key(record["key"]),
            token=checked_uuid("token", record["token"]),
            ttl_seconds=checked_ttl(record["ttl_seconds"]),
            expires_at=parse_date(record["expires_at"]),
            fencing_token=record["fencing_token"],
        )


@dataclass(frozen=True, slots=True)
class LockState:
    """What a read says. `held` False means that an acquire would succeed now; the rest is then None."""

    held: bool
    expires_at: datetime | None = None
    fencing_token: int | None = None


def checked_key(key: object) -> str:
    """`key` if it may name a lock, else `TypeError` or `ValueError`."""
    if not isinstance(key, str):
        raise TypeError(f"key must be a str, got {type(key).__name__}")
    if KEY_PATTERN.fullmatch(key) is None:
        raise ValueError(
            "key must be 1 to 128 of A-Z a-z 0-9 . _ : - and begin with a letter or digit, "
            f"got {key[:SHOWN_CHARACTERS_MAX]!r}"
        )
    return key


def checked_ttl(ttl: object) -> int:
    """`ttl` if it is a whole number of seconds a lease may last, else `TypeError` or `ValueError`."""
    if not isinstance(ttl, int) or isinstance(ttl, bool):
        raise TypeError(f"ttl must be an int of seconds, got {type(ttl).__name__}")
    if not TTL_SECONDS_MIN <= ttl <= TTL_SECONDS_MAX:
        raise ValueError(f"ttl must be from {TTL_SECONDS_MIN} to {TTL_SECONDS_MAX} seconds, got {ttl}")
    return ttl


def checked_seconds(name: str, seconds: object) -> float:
    """`seconds` if it is a number from 0 to infinity, None being 0, else `TypeError` or `ValueError`."""
    if seconds is None:
        return 0.0
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise TypeError(f"{name} must be a number of seconds, got {type(seconds).__name__}")
    if not seconds >= 0:
        raise ValueError(f"{name} must be at least 0 seconds (math.inf: for ever), got {seconds}")
    return float(seconds)


def checked_hold(hold_at_least: object) -> float:
    """`hold_at_least` if a lease can last so long, None being 0, else `TypeError` or `ValueError`."""
    seconds = checked_seconds("hold_at_least", hold_at_least)
    if seconds > TTL_SECONDS_MAX:
        raise ValueError(f"hold_at_least must be at most {TTL_SECONDS_MAX} seconds, got {hold_at_least}")
    return seconds


def checked_uuid(name: str, value: object) -> str:
    """`value` as it was spelled if it is a UUID, else `TypeError` or `ValueError`, which do not show it (SDK-8)."""
    if isinstance(value, uuid.UUID):
        return str(value)
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a UUID as str, got {type(value).__name__}")
    if _UUID.fullmatch(value) is None:
        raise ValueError(f"{name} must be a UUID such as str(uuid.uuid4()) returns, got a str of length {len(value)}")
    return value


def new_uuid() -> str:
    """A fresh owner token or request id."""
    return str(uuid.uuid4())


def parse_date(text: str) -> datetime:
    """An RFC 3339 instant in UTC, digits below microseconds dropped; `ValueError` for anything else."""
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


def lease_from(answer: Answer, *, key: str, token: str, ttl_seconds: int, deadline: float, request_id: str) -> Lease:
    """The lease an acquire's or renew's success granted; `ServerError` when the body does not say one."""
    body = body_of(answer, request_id)
    expires_at, fencing_token = _term_of(body, answer, request_id)
    return Lease(key, token, ttl_seconds, expires_at, fencing_token, deadline)


def state_from(answer: Answer, *, request_id: str) -> LockState:
    """What a read answered; `ServerError` when the body does not say."""
    body = body_of(answer, request_id)
    held = body.get("held")
    if held is False:
        return LockState(held=False)
    if held is not True:
        raise malformed(answer, "held is neither true nor false", request_id)
    return LockState(True, *_term_of(body, answer, request_id))


def refusal_from(answer: Answer, *, request_id: str) -> VolcanoError:
    """The error any answer other than the expected success is raised as."""
    try:
        body = json.loads(answer.body)
    except (ValueError, RecursionError):
        body = None
    told = body if isinstance(body, dict) else {}
    code, message = told.get("code"), told.get("error")
    return error_for(
        answer.status,
        code if isinstance(code, str) else None,
        _shown(message) if isinstance(message, str) and message else f"HTTP {answer.status} without a reason",
        retry_after=_retry_after(answer.headers.get("retry-after")),
        request_id=request_id,
    )


def malformed(answer: Answer, why: str, request_id: str) -> ServerError:
    """A success status whose body does not say what it must: no lock service answered."""
    kind = answer.headers.get("content-type", "no content type")
    message = f"HTTP {answer.status} is not an answer of a lock service: {why} ({_shown(kind)})"
    return ServerError(message, status=answer.status, request_id=request_id)


def body_of(answer: Answer, request_id: str) -> dict[str, Any]:
    """The object that an answer's body says, else `ServerError`."""
    try:
        body = json.loads(answer.body)
    except (ValueError, RecursionError):
        raise malformed(answer, "its body is not JSON", request_id) from None
    if not isinstance(body, dict):
        raise malformed(answer, "its body is not an object", request_id)
    return body


def _term_of(body: dict[str, Any], answer: Answer, request_id: str) -> tuple[datetime, int]:
    if not _is_safe_integer(body.get("fencing_token")):
        why = f"fencing_token is not an integer from 1 to {FENCING_TOKEN_MAX}"
        raise malformed(answer, why, request_id)
    try:
        return parse_date(body["expires_at"]), body["fencing_token"]
    except (KeyError, TypeError, ValueError):
        raise malformed(answer, "expires_at is not a date", request_id) from None


def fencing_token_of(value: object) -> int:
    """`value` if it is an integer that a fencing token may be, else `ValueError`."""
    if not _is_safe_integer(value):
        raise ValueError(f"not an integer from 1 to {FENCING_TOKEN_MAX}")
    assert isinstance(value, int)
    return value


def _is_safe_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= FENCING_TOKEN_MAX


def _retry_after(text: str | None) -> int | None:
    """Whole seconds, a fraction rounded up; None for the date form, which the service never sends."""
    if text is None or _SECONDS.fullmatch(text) is None:
        return None
    return ceil(min(float(text), RETRY_AFTER_SECONDS_MAX))


def _shown(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text[:SHOWN_CHARACTERS_MAX])
