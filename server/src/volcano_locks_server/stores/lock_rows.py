"""Lock records as rows, for the two SQL stores."""

from typing import Final, NamedTuple, Self

import msgspec

from ..rules.clock_history import ClockHistory
from ..rules.lease import Free, LockRecord, QueueState
from ..rules.record_check import DIGEST_BYTES
from ..rules.values import FENCING_TOKEN_MAX
from .history_cells import hold_cell, last_hold_of

FREE_FROM: Final = "coalesce(freed_at_ms, expires_at_ms + 1000)"  # the expression of the index lock_by_free_from
# What a purge relies on: it must not free a lock by the instants of a damaged record (LEASE-18).
INTACT: Final = (
    f"fencing_token BETWEEN 0 AND {FENCING_TOKEN_MAX} AND CASE WHEN freed_at_ms IS NULL THEN "
    f"length(owner_digest) = {DIGEST_BYTES} AND acquired_at_ms >= 0 AND renewed_at_ms >= acquired_at_ms "
    "AND expires_at_ms >= 0 AND deadline_ms >= expires_at_ms AND ttl_seconds > 0 "
    f"ELSE freed_at_ms >= 0 AND length(retired_digests) % {DIGEST_BYTES} = 0 END"
)
# How far the tokens of the rows lead the instants at which they were granted or released (LEASE-19).
TOKEN_LEAD: Final = "coalesce(max(fencing_token - coalesce(freed_at_ms, acquired_at_ms)), 0)"  # noqa: S105 - SQL
_NO_LEASE: Final = (None,) * 7
_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(QueueState).decode


class HeldBounds(NamedTuple):
    """The values of `held_where` at an instant, in this order."""

    over_ms: int
    now_ms: int
    jumped_at_ms: int = 0
    jumped_by_ms: int = 0

    @classmethod
    def at(cls, now_ms: int, history: ClockHistory) -> Self:
        if not history.is_holding(now_ms):
            return cls(now_ms, now_ms)
        return cls(min(now_ms, history.proven_ms), now_ms, history.jumped_at_ms, history.jumped_by_ms)


def held_where(over_ms: str, now_ms: str, jumped_at_ms: str, jumped_by_ms: str) -> str:
    """The condition of a row that is held (LEASE-12), given the parameters for HeldBounds; it uses the index.

    Without a hold all rows after `over_ms` are held. With one, it is the rule of `ClockHistory.present` (LEASE-17).
    """
    held_back = f"freed_at_ms IS NULL AND renewed_at_ms < {jumped_at_ms} AND {FREE_FROM} > {now_ms} - {jumped_by_ms}"
    return f"{FREE_FROM} > {over_ms} AND ({FREE_FROM} > {now_ms} OR ({held_back}))"


def record_cells(record: LockRecord) -> tuple[str | int | bytes | None, ...]:
    """The cells of fencing_token, the seven columns of a lease, freed_at_ms, retired_digests, queue_state and
    hold_facts.
    """
    queue_state = None if record.queue_state is None else _encode(record.queue_state).decode()
    if isinstance(record, Free):
        return (
            record.fencing_token,
            *_NO_LEASE,
            record.freed_at_ms,
            b"".join(record.retired_digests),
            queue_state,
            hold_cell(record),
        )
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
        queue_state,
        hold_cell(record),
    )


def free_record(
    fencing_token: int, freed_at_ms: int, retired_digests: bytes, queue_state: str | None, last_hold: str | bytes | None
) -> Free:
    """The record of a row without a lease."""
    cuts = range(0, len(retired_digests), DIGEST_BYTES)
    retired = tuple(retired_digests[cut : cut + DIGEST_BYTES] for cut in cuts)
    state, entry = decode_queue_state(queue_state), last_hold_of(last_hold, fencing_token)
    return Free(fencing_token, freed_at_ms, retired, state, last_hold=entry)


def decode_queue_state(text: str | bytes | None) -> QueueState | None:
    """The queue state in that column. No lease depends on it, so text of another format is an unknown state."""
    if text is None:
        return None
    try:
        return _decode(text)
    except (msgspec.MsgspecError, UnicodeError):
        return None
