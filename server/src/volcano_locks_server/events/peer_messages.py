"""Messages between nodes about locks, one line of JSON each (`Signals` carries them).

A message is a reason to recheck and to notify subscribers; it never decides about a lease. It holds no owner token and
no digest. A message that cannot be parsed is ignored: it may come from another release, or be forged.

The tags and the order of the fields are the format. Do not change them: nodes of other releases read them.
"""

from typing import Final

import msgspec

from ..ports.lock_store import RecordKey
from ..rules.errors import LockError
from ..rules.values import LockKey
from .event import Kind, LockEvent


class Interest(msgspec.Struct, array_like=True, frozen=True, tag="hear"):
    """What this node wants to receive from now on: `events`, and which locks were `freed`. Valid until its next
    interest, or for INTEREST_VALID_MS. If `asks`, the peers send their interest too.
    """

    node: str
    events: bool
    freed: bool
    asks: bool


class InterestAccepted(msgspec.Struct, array_like=True, frozen=True, tag="telling"):
    """From now on this node sends events, freed locks or both to the node `to`. It sent none before."""

    node: str
    to: str
    events: bool
    freed: bool


class QueueLength(msgspec.Struct, array_like=True, frozen=True, tag="line"):
    """How many requests wait for a lock on this node."""

    node: str
    project_id: str
    key: str
    waiters: int


class LockFreed(msgspec.Struct, array_like=True, frozen=True, tag="freed"):
    """This node left a lock free."""

    node: str
    project_id: str
    key: str


class EventMessage(msgspec.Struct, array_like=True, frozen=True, tag="event"):
    """An event of this node, for the subscribers of its peers."""

    node: str
    kind: Kind
    project_id: str
    key: str
    fencing_token: int | None
    holder: str | None
    at_ms: int
    why: str
    expires_at_ms: int | None


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
        event.expires_at_ms,
    )  # fmt: skip


def event_of(message: EventMessage) -> LockEvent | None:
    lock = lock_of(message)
    if lock is None:
        return None
    return LockEvent(
        message.kind, lock, message.fencing_token, message.holder, message.at_ms, message.why, message.expires_at_ms
    )


def lock_of(message: QueueLength | LockFreed | EventMessage) -> RecordKey | None:
    try:
        return RecordKey(message.project_id, LockKey.parse(message.key))
    except LockError:
        return None
