"""Checks a decoded record before a rule relies on it (LEASE-18).

Engines check types and constraints when they write, but not what a disk, a restored dump or another program made of a
record later. A record that passes here can be shown, compared and extended without an exception.
"""

from collections.abc import Iterable
from typing import Final

from .clock_history import ClockHistory
from .lease import Free, Held, LockRecord, QueueState
from .values import FENCING_TOKEN_MAX

INSTANT_MS_MAX: Final = 253_402_300_799_999  # 9999-12-31T23:59:59.999Z, the last with a four-digit year
DIGEST_BYTES: Final = 32
_MAY_BE_NEGATIVE: Final = ("jumped_at_ms", "last_hold_ms")


def is_intact(record: LockRecord) -> bool:
    """Whether `damage_of` finds nothing, for fields of the right types or None: one expression, for the hot path."""
    state = record.queue_state
    if state is not None and not 0 <= state.withdrawn_at_ms <= INSTANT_MS_MAX:
        return False
    try:
        if isinstance(record, Free):
            return (
                0 <= record.fencing_token <= FENCING_TOKEN_MAX
                and 0 <= record.freed_at_ms <= INSTANT_MS_MAX
                and (not record.retired_digests or all(len(one) == DIGEST_BYTES for one in record.retired_digests))
            )
        return (
            0 <= record.fencing_token <= FENCING_TOKEN_MAX
            and 0 <= record.acquired_at_ms <= INSTANT_MS_MAX
            and 0 <= record.renewed_at_ms <= INSTANT_MS_MAX  # may be earlier: another node's clock, within its bounds
            and 0 <= record.expires_at_ms <= record.deadline_ms <= INSTANT_MS_MAX
            and record.ttl_seconds > 0
            and len(record.owner_digest) == DIGEST_BYTES
        )
    except TypeError:
        return False


def damage_of(record: LockRecord) -> str | None:
    """What is wrong with the record, None if nothing is. Its fields may have any type."""
    if isinstance(record, Free):
        return (
            _token_damage(record.fencing_token)
            or _instant_damage(freed_at_ms=record.freed_at_ms)
            or _digest_damage("retired_digests", record.retired_digests)
            or _queue_state_damage(record.queue_state)
        )
    return (
        _token_damage(record.fencing_token)
        or _digest_damage("owner_digest", (record.owner_digest,))
        or _lease_damage(record)
        or _queue_state_damage(record.queue_state)
    )


def damage_of_history(history: ClockHistory) -> str | None:
    """What is wrong with the record of a store's clock, None if nothing is. A reset may have made instants negative."""
    for name in history.__struct_fields__:
        value, low = getattr(history, name), -INSTANT_MS_MAX if name in _MAY_BE_NEGATIVE else 0
        if type(value) is not int or not low <= value <= INSTANT_MS_MAX:
            return f"{name} is out of range"
    return None


def _lease_damage(held: Held) -> str | None:
    instants = _instant_damage(
        acquired_at_ms=held.acquired_at_ms,
        renewed_at_ms=held.renewed_at_ms,
        expires_at_ms=held.expires_at_ms,
        deadline_ms=held.deadline_ms,
    )
    if instants is not None:
        return instants
    if held.expires_at_ms > held.deadline_ms:
        return "its instants are not in order"
    if type(held.ttl_seconds) is not int or held.ttl_seconds <= 0:
        return "ttl_seconds is not a positive number"
    if held.holder is not None and type(held.holder) is not str:
        return "holder is not text"
    return None


def _queue_state_damage(state: QueueState | None) -> str | None:
    return None if state is None else _instant_damage(withdrawn_at_ms=state.withdrawn_at_ms)


def _token_damage(token: int) -> str | None:
    if type(token) is int and 0 <= token <= FENCING_TOKEN_MAX:
        return None
    return "fencing_token is out of range"


def _instant_damage(**instants: int) -> str | None:
    for name, at_ms in instants.items():
        if type(at_ms) is not int or not 0 <= at_ms <= INSTANT_MS_MAX:
            return f"{name} is not an instant"
    return None


def _digest_damage(name: str, digests: Iterable[bytes]) -> str | None:
    for digest in digests:
        if type(digest) is not bytes or len(digest) != DIGEST_BYTES:
            return f"{name} is not made of SHA-256 digests"
    return None
