"""Messages between nodes about locks, one line of JSON each (`Signals` carries them).

A message is a reason to recheck and to notify subscribers; it never decides about a lease. It holds no owner token and
no digest. The channel is not trusted (EVENT-8): a message that cannot be parsed, or has a field outside its limits, is
ignored. It may come from another release, or be forged.

The tags and the order of the fields are the format. Do not change them: nodes of other releases read them.
"""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from ..ports.lock_store import RecordKey
from ..rules.errors import LockError
from ..rules.values import (
    FENCING_TOKEN_MAX,
    KEY_LENGTH_MAX,
    REASON_LENGTH_MAX,
    TTL_SECONDS_MAX,
    LockKey,
    is_reason,
    parse_holder,
)
from .event import Kind, LockEvent

ID_LENGTH_MAX: Final = 64
WHY_LENGTH_MAX: Final = 32
WAITERS_MAX: Final = 10_000
AT_MS_MAX: Final = 253_402_300_799_999 - TTL_SECONDS_MAX * 1_000  # every expiry has a four-digit year
AHEAD_MS_MAX: Final = 24 * 3600 * 1_000  # an event dated further in this node's future is ignored

_Id = Annotated[str, Meta(pattern=rf"\A[A-Za-z0-9_-]{{1,{ID_LENGTH_MAX}}}\Z")]
_Key = Annotated[str, Meta(min_length=1, max_length=KEY_LENGTH_MAX)]
_Instant = Annotated[int, Meta(ge=0, le=AT_MS_MAX)]


class Interest(msgspec.Struct, array_like=True, frozen=True, tag="hear"):
    """What this node wants to receive from now on: `events`, and which locks were `freed`. Valid until its next
    interest, or for INTEREST_VALID_MS. If `asks`, the peers send their interest too.
    """

    node: _Id
    events: bool
    freed: bool
    asks: bool


class InterestAccepted(msgspec.Struct, array_like=True, frozen=True, tag="telling"):
    """From now on this node sends events, freed locks or both to the node `to`. It sent none before. With neither, it
    is a sign of life, in reply to a repeated interest.
    """

    node: _Id
    to: _Id
    events: bool
    freed: bool


class QueueLength(msgspec.Struct, array_like=True, frozen=True, tag="line"):
    """How many requests wait for a lock on this node."""

    node: _Id
    project_id: _Id
    key: _Key
    waiters: Annotated[int, Meta(ge=0, le=WAITERS_MAX)]


class LockFreed(msgspec.Struct, array_like=True, frozen=True, tag="freed"):
    """This node left a lock free."""

    node: _Id
    project_id: _Id
    key: _Key


class EventMessage(msgspec.Struct, array_like=True, frozen=True, tag="event"):
    """An event of this node, for the subscribers of its peers. Nodes of 0.1.0 ignore fields past `expires_at_ms`."""

    node: _Id
    kind: Kind
    project_id: _Id
    key: _Key
    fencing_token: Annotated[int, Meta(ge=1, le=FENCING_TOKEN_MAX)] | None
    holder: str | None
    at_ms: _Instant
    why: Annotated[str, Meta(pattern=rf"\A[a-z_]{{1,{WHY_LENGTH_MAX}}}\Z")]
    expires_at_ms: Annotated[int, Meta(ge=0)] | None
    reason: Annotated[str, Meta(max_length=REASON_LENGTH_MAX)] | None = None


Message = Interest | InterestAccepted | QueueLength | LockFreed | EventMessage

encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(Message).decode


def parse(message: bytes) -> Message | None:
    """The message, None if it is of no known kind."""
    try:
        return _decode(message)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def message_of(node: str, event: LockEvent) -> EventMessage:
    lock = event.lock
    return EventMessage(
        node, event.kind, lock.project_id, str(lock.key), event.fencing_token, event.holder, event.at_ms, event.why,
        event.expires_at_ms, event.reason,
    )  # fmt: skip


def event_of(message: EventMessage, now_ms: int) -> LockEvent | None:
    """The event, None if its fields do not fit together or it is dated too far ahead of `now_ms`."""
    lock = lock_of(message)
    if lock is None or not _has_fields_of_its_kind(message) or message.at_ms > now_ms + AHEAD_MS_MAX:
        return None
    return LockEvent(
        message.kind, lock, message.fencing_token, message.holder, message.at_ms, message.why, message.expires_at_ms,
        message.reason,
    )  # fmt: skip


def lock_of(message: QueueLength | LockFreed | EventMessage) -> RecordKey | None:
    try:
        return RecordKey(message.project_id, LockKey.parse(message.key))
    except LockError:
        return None


def _has_fields_of_its_kind(message: EventMessage) -> bool:
    """Whether the event has a fencing token, an expiry, a holder and a reason as events of its kind have."""
    at_ms, expires_at_ms = message.at_ms, message.expires_at_ms
    try:
        if message.holder is not None:
            parse_holder(message.holder)
    except LockError:
        return False
    if message.reason is not None and not (message.kind == "force_released" and is_reason(message.reason)):
        return False
    if message.kind in ("waiting", "gave_up"):
        return message.fencing_token is None and expires_at_ms is None
    if message.kind in ("acquired", "renewed"):
        is_lease = expires_at_ms is not None and at_ms <= expires_at_ms <= at_ms + TTL_SECONDS_MAX * 1_000
        return message.fencing_token is not None and is_lease
    return message.fencing_token is not None and expires_at_ms is None
