"""Lock records as JSON: names of the glossary, digests in hex, times in milliseconds."""

from typing import Final

import msgspec

from ...rules.hold import HoldEntry, HoldFacts
from ...rules.lease import Free, Held, LockRecord, QueueState


class _Held(msgspec.Struct, tag_field="state", tag="held", omit_defaults=True):
    fencing_token: int
    owner_digest: str
    expires_at_ms: int
    deadline_ms: int
    acquired_at_ms: int
    renewed_at_ms: int
    ttl_seconds: int
    holder: str | None = None
    queue_state: QueueState | None = None
    hold_facts: tuple[int, HoldFacts] | None = None


class _Free(msgspec.Struct, tag_field="state", tag="free", omit_defaults=True):
    fencing_token: int
    freed_at_ms: int
    retired_digests: tuple[str, ...] = ()
    queue_state: QueueState | None = None
    last_hold: HoldEntry | None = None


_to_json: Final = msgspec.json.Encoder().encode
_from_json: Final = msgspec.json.Decoder(_Held | _Free).decode


def encode(record: LockRecord) -> bytes:
    """The JSON of the record."""
    if isinstance(record, Free):
        retired = tuple(digest.hex() for digest in record.retired_digests)
        return _to_json(_Free(record.fencing_token, record.freed_at_ms, retired, record.queue_state, record.last_hold))
    return _to_json(
        _Held(
            record.fencing_token,
            record.owner_digest.hex(),
            record.expires_at_ms,
            record.deadline_ms,
            record.acquired_at_ms,
            record.renewed_at_ms,
            record.ttl_seconds,
            record.holder,
            record.queue_state,
            None if record.facts is None else (record.fencing_token, record.facts),
        )
    )


def decode(value: bytes) -> LockRecord:
    """The record in `value`. Raises msgspec.DecodeError if another program wrote it."""
    stored = _from_json(value)
    if isinstance(stored, _Free):
        retired = tuple(map(bytes.fromhex, stored.retired_digests))
        return Free(stored.fencing_token, stored.freed_at_ms, retired, stored.queue_state, last_hold=stored.last_hold)
    return Held(
        bytes.fromhex(stored.owner_digest),
        stored.fencing_token,
        stored.expires_at_ms,
        stored.deadline_ms,
        stored.acquired_at_ms,
        stored.renewed_at_ms,
        stored.ttl_seconds,
        stored.holder,
        stored.queue_state,
        facts=facts[1] if (facts := stored.hold_facts) and facts[0] == stored.fencing_token else None,
    )


def written_at_ms(record: LockRecord) -> int:
    """The latest instant of a node's clock in the record."""
    return record.freed_at_ms if isinstance(record, Free) else max(record.acquired_at_ms, record.renewed_at_ms)
