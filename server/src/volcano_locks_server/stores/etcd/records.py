"""Lock records as the JSON that is kept of them: the glossary's words, digests in hex, times in milliseconds."""

from typing import Final

import msgspec

from ...rules.lease import Free, Held, LockRecord


class _Held(msgspec.Struct, tag_field="state", tag="held", omit_defaults=True):
    fencing_token: int
    owner_digest: str
    expires_at_ms: int
    deadline_ms: int
    acquired_at_ms: int
    renewed_at_ms: int
    ttl_seconds: int
    holder: str | None = None


class _Free(msgspec.Struct, tag_field="state", tag="free", omit_defaults=True):
    fencing_token: int
    freed_at_ms: int
    retired_digests: tuple[str, ...] = ()


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(_Held | _Free).decode


def written(record: LockRecord) -> bytes:
    """The record as it is kept."""
    if isinstance(record, Free):
        retired = tuple(digest.hex() for digest in record.retired_digests)
        return _encode(_Free(record.fencing_token, record.freed_at_ms, retired))
    return _encode(
        _Held(
            record.fencing_token,
            record.owner_digest.hex(),
            record.expires_at_ms,
            record.deadline_ms,
            record.acquired_at_ms,
            record.renewed_at_ms,
            record.ttl_seconds,
            record.holder,
        )
    )


def read(value: bytes) -> LockRecord:
    """The record that is kept as `value`. Raises msgspec.DecodeError where somebody else wrote there."""
    kept = _decode(value)
    if isinstance(kept, _Free):
        return Free(kept.fencing_token, kept.freed_at_ms, tuple(map(bytes.fromhex, kept.retired_digests)))
    return Held(
        bytes.fromhex(kept.owner_digest),
        kept.fencing_token,
        kept.expires_at_ms,
        kept.deadline_ms,
        kept.acquired_at_ms,
        kept.renewed_at_ms,
        kept.ttl_seconds,
        kept.holder,
    )


def written_at_ms(record: LockRecord) -> int:
    """The latest instant of a node's clock that the record tells."""
    return record.freed_at_ms if isinstance(record, Free) else max(record.acquired_at_ms, record.renewed_at_ms)
