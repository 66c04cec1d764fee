"""Lock records as rows, for the two SQL stores."""

from typing import Final

from ..rules.lease import Free, LockRecord

DIGEST_BYTES: Final = 32
FREE_FROM: Final = "coalesce(freed_at_ms, expires_at_ms + 1000)"  # the expression of the index lock_by_free_from
_NO_LEASE: Final = (None,) * 7


def record_cells(record: LockRecord) -> tuple[str | int | bytes | None, ...]:
    """The cells of fencing_token, the seven columns of a lease, freed_at_ms and retired_digests."""
    if isinstance(record, Free):
        return (record.fencing_token, *_NO_LEASE, record.freed_at_ms, b"".join(record.retired_digests))
    return (
        record.fencing_token,
        record.owner_digest,
        record.expires_at_ms,
        record.deadline_ms,
        record.acquired_at_ms,
        record.renewed_at_ms,
        record.ttl_seconds,
        record.holder,
        None,
        None,
    )


def free_record(fencing_token: int, freed_at_ms: int, retired_digests: bytes) -> Free:
    """The record of a row without a lease."""
    cuts = range(0, len(retired_digests), DIGEST_BYTES)
    return Free(fencing_token, freed_at_ms, tuple(retired_digests[cut : cut + DIGEST_BYTES] for cut in cuts))
