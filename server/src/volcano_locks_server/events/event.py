"""What happened to a lock, for those who watch it: from a command and what came of it, by a pure rule.

`happened` is called for one command of a committed batch, with the lock's record before and after it. What it tells
is a name in `kind` and a reason in `why` (EVENT-2); a refusal or a read tells nothing. That a lease and its grace are
over is told here only when a later command finds it so; `expiries` tells it in time. A `Happening` holds no digest
and no token of an owner (LEASE-15), so that it may be shown to whoever may read locks.
"""

from dataclasses import dataclass
from typing import Final, Literal

from ..ports.lock_store import RecordKey
from ..rules.lease import GRACE_MS, Command, ForceRelease, Granted, Held, LockRecord, Outcome, Released, blocks_others

Kind = Literal["acquired", "renewed", "released", "expired", "force_released", "waiting", "gave_up"]
NOT_RENEWED: Final = "not_renewed"


@dataclass(frozen=True, slots=True)
class Happening:
    """One event of a lock (EVENT-2). `fencing_token` is None where no lease is meant, `expires_at_ms` where none runs
    on; `holder` is the label of whoever it is about, if they gave one.
    """

    kind: Kind
    lock: RecordKey
    fencing_token: int | None
    holder: str | None
    at_ms: int
    why: str
    expires_at_ms: int | None = None


def happened(
    lock: RecordKey,
    command: Command,
    before: LockRecord | None,
    after: LockRecord | None,
    outcome: Outcome,
    *,
    now_ms: int,
    why: str | None = None,
) -> tuple[Happening, ...]:
    """The events of one command served at `now_ms`, in their order; mostly one or none.

    `why` replaces the usual reason of a grant or a release where the server itself had another one: a grant to
    somebody who waited, a grant given back.
    """
    if isinstance(outcome, Granted) and isinstance(after, Held):
        return _granted(lock, after, outcome, now_ms, why)
    if not isinstance(outcome, Released) or not isinstance(before, Held):
        return ()
    if not blocks_others(before, now_ms):
        return (expired(lock, before.fencing_token, before.holder, before.expires_at_ms),)  # this freed nothing
    if isinstance(command, ForceRelease):
        return (Happening("force_released", lock, before.fencing_token, before.holder, now_ms, why or "forced"),)
    return (Happening("released", lock, before.fencing_token, before.holder, now_ms, why or "released"),)


def expired(lock: RecordKey, fencing_token: int, holder: str | None, expires_at_ms: int) -> Happening:
    """That a lease and its grace are over, at the instant when they were."""
    return Happening("expired", lock, fencing_token, holder, expires_at_ms + GRACE_MS, NOT_RENEWED)


def _granted(lock: RecordKey, lease: Held, outcome: Granted, now_ms: int, why: str | None) -> tuple[Happening, ...]:
    kind: Kind = "renewed" if outcome.how in ("renewed", "repeated") else "acquired"
    usual = "free" if outcome.how == "acquired" else outcome.how
    told = Happening(kind, lock, lease.fencing_token, lease.holder, now_ms, why or usual, lease.expires_at_ms)
    lapsed = outcome.lapsed
    if lapsed is None:
        return (told,)
    return expired(lock, lapsed.fencing_token, lapsed.holder, lapsed.expires_at_ms), told
