"""Lock events: a pure rule that derives them from one command of a batch and its outcome (EVENT-2).

`kind` is the name of an event, `why` its reason. Reads and refusals make no event. The end of a lease's grace is
derived here only if a later command finds it; `lease_expiry` publishes it in time. A `LockEvent` holds no owner token
and no digest of one (LEASE-15), so every reader of locks may see it.
"""

from dataclasses import dataclass
from typing import Final, Literal, get_args

from ..ports.lock_store import RecordKey
from ..rules.lease import GRACE_MS, Command, ForceRelease, Granted, Held, LockRecord, Outcome, Released, blocks_others

Kind = Literal["acquired", "renewed", "released", "expired", "force_released", "waiting", "gave_up"]
EVENT_NAMES: Final[tuple[str, ...]] = (*get_args(Kind), "reset")
NOT_RENEWED: Final = "not_renewed"


@dataclass(frozen=True, slots=True)
class LockEvent:
    """One event of a lock. `fencing_token` is None if the event concerns no lease, `expires_at_ms` if no lease
    continues; `holder` is the label that the client gave, and `reason` why an operator forced the release, if any.
    """

    kind: Kind
    lock: RecordKey
    fencing_token: int | None
    holder: str | None
    at_ms: int
    why: str
    expires_at_ms: int | None = None
    reason: str | None = None


def lock_events(
    lock: RecordKey,
    command: Command,
    before: LockRecord | None,
    after: LockRecord | None,
    outcome: Outcome,
    *,
    now_ms: int,
    why: str | None = None,
) -> tuple[LockEvent, ...]:
    """The events of one command, in order; mostly one or none.

    `why`, if given, replaces the usual reason: for a grant to a waiter and for a revoked grant.
    """
    if isinstance(outcome, Granted) and isinstance(after, Held):
        return _grant_events(lock, after, outcome, now_ms, why)
    if not isinstance(outcome, Released) or not isinstance(before, Held):
        return ()
    if not blocks_others(before, now_ms):
        return (expired_event(lock, before.fencing_token, before.holder, before.expires_at_ms),)  # freed nothing
    if isinstance(command, ForceRelease):
        token, holder, reason = before.fencing_token, before.holder, command.reason
        return (LockEvent("force_released", lock, token, holder, now_ms, why or "forced", reason=reason),)
    return (LockEvent("released", lock, before.fencing_token, before.holder, now_ms, why or "released"),)


def expired_event(lock: RecordKey, fencing_token: int, holder: str | None, expires_at_ms: int) -> LockEvent:
    """A lease and its grace ended; dated at that instant."""
    return LockEvent("expired", lock, fencing_token, holder, expires_at_ms + GRACE_MS, NOT_RENEWED)


def _grant_events(
    lock: RecordKey, lease: Held, outcome: Granted, now_ms: int, why: str | None
) -> tuple[LockEvent, ...]:
    kind: Kind = "renewed" if outcome.how in ("renewed", "repeated") else "acquired"
    usual = "free" if outcome.how == "acquired" else outcome.how
    event = LockEvent(kind, lock, lease.fencing_token, lease.holder, now_ms, why or usual, lease.expires_at_ms)
    lapsed = outcome.lapsed
    if lapsed is None:
        return (event,)
    return expired_event(lock, lapsed.fencing_token, lapsed.holder, lapsed.expires_at_ms), event
