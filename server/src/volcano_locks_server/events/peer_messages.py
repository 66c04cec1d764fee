"""What nodes tell each other about locks, as one line of JSON each (`Signals` carries them).

A message is a reason to look and to tell watchers, never a truth a lease is judged by. It holds no token and no digest
of an owner. What cannot be read, from an older release, a newer one or a stranger, is passed over.
"""

from typing import Final

import msgspec

from ..ports.lock_store import RecordKey
from ..rules.errors import LockError
from ..rules.values import LockKey
from .event import Happening, Kind


class Hear(msgspec.Struct, array_like=True, frozen=True, tag="hear"):
    """What this node wants to hear from now on, until it says otherwise or is silent for HEARD_FOR_MS.

    `watches`: all events. `waits`: which locks were freed. `asks`: the others are to say what they want to hear.
    """

    node: str
    watches: bool
    waits: bool
    asks: bool


class Telling(msgspec.Struct, array_like=True, frozen=True, tag="telling"):
    """From now on node `to` is told of all events, of what is freed, or both. What was before, it was not told."""

    node: str
    to: str
    events: bool
    freed: bool


class Line(msgspec.Struct, array_like=True, frozen=True, tag="line"):
    """How many wait for a lock on this node."""

    node: str
    project_id: str
    key: str
    waiters: int


class Freed(msgspec.Struct, array_like=True, frozen=True, tag="freed"):
    """A lock that this node left free."""

    node: str
    project_id: str
    key: str


class Event(msgspec.Struct, array_like=True, frozen=True, tag="event"):
    """An event of this node, for the watchers of others."""

    node: str
    kind: Kind
    project_id: str
    key: str
    fencing_token: int | None
    holder: str | None
    at_ms: int
    why: str
    expires_at_ms: int | None


Message = Hear | Telling | Line | Freed | Event

encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(Message).decode


def read(message: bytes) -> Message | None:
    """The message, None where it is none of ours."""
    try:
        return _decode(message)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def event_of(node: str, told: Happening) -> Event:
    lock = told.lock
    return Event(
        node, told.kind, lock.project_id, str(lock.key), told.fencing_token, told.holder, told.at_ms, told.why,
        told.expires_at_ms,
    )  # fmt: skip


def happening_of(event: Event) -> Happening | None:
    lock = lock_of(event)
    if lock is None:
        return None
    return Happening(event.kind, lock, event.fencing_token, event.holder, event.at_ms, event.why, event.expires_at_ms)


def lock_of(message: Line | Freed | Event) -> RecordKey | None:
    try:
        return RecordKey(message.project_id, LockKey.parse(message.key))
    except LockError:
        return None
