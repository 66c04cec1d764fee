"""The rules of a lease.

The theory. A lock is a name. A *lease* is one holding of it, and it ends by itself, so that a dead holder needs no
clean-up. Because clocks differ and responses are delayed, two bands of time surround the expiry:

    acquire          renewals …            expires_at - 1 s   expires_at   expires_at + 1 s
       |------------------ alive -----------------|--- margin ---|--- grace ---|---- free to take over ---->
       owner may renew, repeat, release           | too late to extend         | any owner may acquire
                                                    no other owner may acquire yet

In the *margin* a lease cannot be extended, so that every response that extends it arrives while it is alive. In the
*grace* no other owner can take over, so that a holder whose clock is a little slow has stopped before the next one
starts. A *fencing token* rises with each new lease. Storage that remembers the highest token it has seen can refuse a
late write of a holder that was paused past its lease; no lease can prevent such a write by itself.

The contract. `decide(record, command, now_ms)` returns the record to store and the outcome for the client. It reads
no clock and does no I/O, so it is the same for every store. `record` is None for an unknown lock. Rule ids refer to
spec/lease.md. Durability and atomicity are up to the store.

Times are whole milliseconds since 1970 in UTC; owner tokens are SHA-256 digests (LEASE-15).
"""

from hmac import compare_digest
from typing import Final, Literal, NamedTuple, TypeGuard, assert_never

from msgspec import Struct
from msgspec.structs import replace

from .errors import DAMAGED_MESSAGE
from .hold import HoldEntry, HoldFacts, Requester

MARGIN_MS: Final = 1_000
GRACE_MS: Final = 1_000
DEADLINE_MS: Final = 90 * 24 * 3600 * 1_000
RETENTION_MS: Final = 24 * 3600 * 1_000
RETIRED_MAX: Final = 16
WITHDRAWN_KEPT_MS: Final = 120_000  # longer than any wait, kept position included
WITHDRAWN_BYTES: Final = 8


# --- records ----------------------------------------------------------------------------------------------


class QueueState(Struct, frozen=True, omit_defaults=True, gc=False):
    """What the nodes note in a record about the waiters of its lock, which each node queues for itself.

    `waited`: the current lease was granted to a waiter. `waiting_nodes`: nodes whose waiters were overtaken, in the
    order in which they take turns (WAIT-12). `withdrawn`: the last WITHDRAWN_BYTES of the digests of owner tokens that
    were released although they may still wait on some node, the latest first (WAIT-13). `withdrawn_at_ms`: the instant
    of the latest.
    """

    waited: bool = False
    waiting_nodes: tuple[str, ...] = ()
    withdrawn: tuple[bytes, ...] = ()
    withdrawn_at_ms: int = 0


EMPTY_QUEUE_STATE: Final = QueueState()


class Held(Struct, frozen=True, gc=False):
    """A lock that has a lease. Times of acquisition and renewal, TTL and holder label are for people.

    `not_before_ms` is not stored: others may not take the lease over before it, even past the grace (LEASE-17). `facts`
    are for the history, None if it was off or unknown to the node when the lease began (HISTORY-2).
    """

    owner_digest: bytes
    fencing_token: int
    expires_at_ms: int
    deadline_ms: int
    acquired_at_ms: int
    renewed_at_ms: int
    ttl_seconds: int
    holder: str | None = None
    queue_state: QueueState | None = None
    not_before_ms: int = 0
    facts: HoldFacts | None = None


class Free(Struct, frozen=True, gc=False):
    """A lock without a lease: its last fencing token, and the retired owner tokens (LEASE-11).

    `next_token_min` is not stored: the next fencing token is at least this (LEASE-19). `last_hold` is for the history,
    None if that was off (HISTORY-2).
    """

    fencing_token: int
    freed_at_ms: int
    retired_digests: tuple[bytes, ...] = ()
    queue_state: QueueState | None = None
    next_token_min: int = 0
    last_hold: HoldEntry | None = None


LockRecord = Held | Free


class Damaged(Struct, frozen=True, gc=False):
    """A record that the store holds but cannot decode (LEASE-18). Whether its lock is held is unknown.

    `reason` says what is wrong, and `stored` what is there, without digests; both are for logs and operators.
    """

    reason: str
    stored: str = ""


StoredRecord = LockRecord | Damaged


# --- commands ---------------------------------------------------------------------------------------------


class Acquire(Struct, frozen=True, gc=False):
    """`by` is who acquires, for the history; None if that is off."""

    owner_digest: bytes
    ttl_seconds: int
    holder: str | None = None
    by: Requester | None = None


class Renew(Struct, frozen=True, gc=False):
    owner_digest: bytes
    ttl_seconds: int
    holder: str | None = None


class Release(Struct, frozen=True, gc=False):
    owner_digest: bytes


class ForceRelease(Struct, frozen=True, gc=False):
    """Ends the lease of any owner; with a fencing token only that one (LEASE-20). `reason` and `by` are for people."""

    fencing_token: int | None = None
    reason: str | None = None
    by: Requester | None = None


class RevokeGrant(Struct, frozen=True, gc=False):
    """Revokes the grant of `granted_at_ms`, because its client disconnected before it got it (WAIT-5)."""

    owner_digest: bytes
    fencing_token: int
    granted_at_ms: int


class Read(Struct, frozen=True, gc=False):
    pass


Command = Acquire | Renew | Release | ForceRelease | RevokeGrant | Read


# --- outcomes ---------------------------------------------------------------------------------------------


class Granted(Struct, frozen=True, gc=False):
    """The client holds the lock. `how` and `lapsed` (the lease taken over, if any) are for logs and metrics."""

    expires_at_ms: int
    fencing_token: int
    how: Literal["acquired", "taken_over", "repeated", "renewed"]
    lapsed: Held | None = None


class Released(Struct, frozen=True, gc=False):
    """The client does not hold the lock. `ended` is the lease that the command ended, if any."""

    ended: Held | None


class State(Struct, frozen=True, gc=False):
    """The lease if it blocks other owners now; None if an acquire would succeed."""

    lease: Held | None


class Refused(Struct, frozen=True, gc=False):
    """The command changed no lease. `lease` is the one that holds the lock, if the code is `lock_held` and the lease is
    known (HTTP-28). `damage` is set if the code is `lock_record_damaged`, for logs.
    """

    code: Literal["lock_held", "lock_ownership_lost", "lock_changed", "lock_record_damaged"]
    message: str
    lease: Held | None = None
    damage: Damaged | None = None


Outcome = Granted | Released | State | Refused


class Decision(NamedTuple):
    """The record to store (the same object if nothing changes) and the outcome for the client."""

    record: LockRecord | None
    outcome: Outcome


HELD_MESSAGE: Final = "another owner holds this lock: try again after its lease has ended, or acquire with wait_seconds"
LAPSED: Final = Refused(
    "lock_ownership_lost",
    "this lease has ended or ends within a second, too late to extend it: stop the work, then acquire again "
    "with a new owner token",
)
NOT_OWNER: Final = Refused(
    "lock_ownership_lost", "this owner token does not hold this lock: stop the work that relied on it"
)
RETIRED: Final = Refused(
    "lock_ownership_lost",
    "this owner token was released or its lease was forced to end: acquire again with a new owner token",
)


def refused_damaged(damaged: Damaged) -> Refused:
    """The refusal of every command on a damaged record (LEASE-18)."""
    return Refused("lock_record_damaged", DAMAGED_MESSAGE, damage=damaged)


def lock_changed(record: LockRecord | None, expected: int, now_ms: int) -> Refused:
    """The refusal of a force release of another lease than the current one (LEASE-20)."""
    if record is not None and blocks_others(record, now_ms):
        found = f"is held under fencing token {record.fencing_token}"
    else:
        found = "is free, and another lease was its last"
    return Refused("lock_changed", f"fencing token {expected} was to be forced out, but the lock {found}: look again")


def held_by(lease: Held | None) -> Refused:
    """The refusal of an acquire because of this lease; None if the lease is unknown."""
    return Refused("lock_held", HELD_MESSAGE, lease)


# --- a lease at an instant --------------------------------------------------------------------------------


def extendable(held: Held, now_ms: int) -> bool:
    """Whether the owner may still extend the lease: not yet in its margin (LEASE-4, LEASE-8)."""
    return now_ms < held.expires_at_ms - MARGIN_MS


def free_from_ms(held: Held) -> int:
    """The instant from which on others may acquire: after the grace (LEASE-6) and after a hold (LEASE-17)."""
    return max(held.expires_at_ms + GRACE_MS, held.not_before_ms)


def blocks_others(record: LockRecord | None, now_ms: int) -> bool:
    """Whether an acquire by another owner is refused: the lease, its grace and a hold are not over (LEASE-12)."""
    return isinstance(record, Held) and now_ms < free_from_ms(record)


def owns(record: LockRecord | None, owner_digest: bytes, now_ms: int) -> bool:
    """Whether this owner still blocks others; only owners may use the quota's reserve (QUOTA-5)."""
    return (
        isinstance(record, Held) and compare_digest(record.owner_digest, owner_digest) and now_ms < free_from_ms(record)
    )


def is_retired(record: LockRecord, owner_digest: bytes, now_ms: int) -> bool:
    """Whether this token was released or forced out, so that it gets no lease again (LEASE-11)."""
    if isinstance(record, Free):
        if any(compare_digest(retired, owner_digest) for retired in record.retired_digests):
            return True
    elif compare_digest(record.owner_digest, owner_digest):
        return False
    state = record.queue_state
    if state is None or now_ms >= state.withdrawn_at_ms + WITHDRAWN_KEPT_MS:
        return False
    return any(compare_digest(withdrawn, owner_digest[-WITHDRAWN_BYTES:]) for withdrawn in state.withdrawn)


def purgeable(record: LockRecord, now_ms: int) -> bool:
    """Whether the record may be deleted: others could acquire the lock for RETENTION_MS (LEASE-13)."""
    free_since_ms = record.freed_at_ms if isinstance(record, Free) else free_from_ms(record)
    return now_ms >= free_since_ms + RETENTION_MS


def next_fencing_token(record: LockRecord | None, now_ms: int) -> int:
    """Above the lock's last token and at least the clock, so that a purged lock repeats no token (LEASE-3)."""
    if record is None:
        return now_ms
    return max(record.fencing_token + 1, now_ms, record.next_token_min if isinstance(record, Free) else 0)


def free_in_ms(record: LockRecord | None, now_ms: int) -> int:
    """Milliseconds until another owner may acquire, if nothing else happens; 0 if it may now."""
    return max(0, free_from_ms(record) - now_ms) if isinstance(record, Held) else 0


# --- the commands -----------------------------------------------------------------------------------------


def acquire(record: LockRecord | None, command: Acquire, now_ms: int) -> Decision:
    """LEASE-2 to LEASE-7 and LEASE-11."""
    if record is not None and is_retired(record, command.owner_digest, now_ms):
        return Decision(record, RETIRED)
    if isinstance(record, Held) and blocks_others(record, now_ms):
        if not compare_digest(record.owner_digest, command.owner_digest):
            return Decision(record, held_by(record))
        if not extendable(record, now_ms):
            return Decision(record, LAPSED)
        return _extended(record, command, now_ms, "repeated")
    deadline_ms = now_ms + DEADLINE_MS
    lapsed = record if isinstance(record, Held) else None
    lease = Held(
        owner_digest=command.owner_digest,
        fencing_token=next_fencing_token(record, now_ms),
        expires_at_ms=min(now_ms + command.ttl_seconds * 1_000, deadline_ms),
        deadline_ms=deadline_ms,
        acquired_at_ms=now_ms,
        renewed_at_ms=now_ms,
        ttl_seconds=command.ttl_seconds,
        holder=command.holder,
        queue_state=_inherited(record, now_ms),
        facts=None if command.by is None else HoldFacts(command.by, "free" if lapsed is None else "taken_over"),
    )
    how: Literal["acquired", "taken_over"] = "acquired" if lapsed is None else "taken_over"
    return Decision(lease, Granted(lease.expires_at_ms, lease.fencing_token, how, lapsed))


def renew(record: LockRecord | None, command: Renew, now_ms: int) -> Decision:
    """LEASE-8."""
    if not isinstance(record, Held) or not compare_digest(record.owner_digest, command.owner_digest):
        return Decision(record, NOT_OWNER)
    if not extendable(record, now_ms):
        return Decision(record, LAPSED)
    return _extended(record, command, now_ms, "renewed")


def release(record: LockRecord | None, command: Release, now_ms: int) -> Decision:
    """LEASE-9 and LEASE-11. Retires the token even if it holds no lease, so that an abandoned acquire that arrives
    after its own release, or that waits on another node, has no effect.
    """
    digest = command.owner_digest
    if record is None:
        return Decision(Free(0, now_ms, (digest,), _withdrawn(None, digest, now_ms)), Released(None))
    if isinstance(record, Held) and compare_digest(record.owner_digest, digest):
        may_wait = record.queue_state is not None and record.queue_state.waited
        state = _withdrawn(record, digest, now_ms) if may_wait else record.queue_state
        return Decision(Free(record.fencing_token, now_ms, (digest,), state), Released(record))
    if isinstance(record, Held) and blocks_others(record, now_ms):
        if is_retired(record, digest, now_ms):
            return Decision(record, NOT_OWNER)
        return Decision(replace(record, queue_state=_withdrawn(record, digest, now_ms)), NOT_OWNER)
    if is_retired(record, digest, now_ms):
        return Decision(record, Released(None))
    retired = (digest, *(record.retired_digests if isinstance(record, Free) else ()))[:RETIRED_MAX]
    next_token_min = record.next_token_min if isinstance(record, Free) else 0
    state = _withdrawn(record, digest, now_ms)
    return Decision(Free(record.fencing_token, now_ms, retired, state, next_token_min), Released(None))


def force_release(record: LockRecord | None, command: ForceRelease, now_ms: int) -> Decision:
    """LEASE-10, LEASE-11 and LEASE-20. A lease that ended as the last one counts as current: it is what was asked."""
    expected = command.fencing_token
    if expected is not None and (record is None or record.fencing_token != expected):
        return Decision(record, lock_changed(record, expected, now_ms))
    if not isinstance(record, Held):
        return Decision(record, Released(None))
    free = Free(record.fencing_token, now_ms, (record.owner_digest,), record.queue_state)
    return Decision(free, Released(record if blocks_others(record, now_ms) else None))


def revoke_grant(record: LockRecord | None, command: RevokeGrant, now_ms: int) -> Decision:
    """WAIT-5: ends exactly this lease, unless it was repeated or renewed since. The token is not retired, because its
    client may have lost only the connection and may send it again.
    """
    if is_same_grant(record, command):
        return Decision(Free(record.fencing_token, now_ms, (), record.queue_state), Released(record))
    return Decision(record, Released(None))


def is_same_grant(record: LockRecord | None, command: RevokeGrant) -> TypeGuard[Held]:
    """Whether the lease is the very one that the command revokes, neither repeated nor renewed since."""
    return (
        isinstance(record, Held)
        and compare_digest(record.owner_digest, command.owner_digest)
        and record.fencing_token == command.fencing_token
        and record.renewed_at_ms == command.granted_at_ms
    )


def read(record: LockRecord | None, _command: Read, now_ms: int) -> Decision:
    """LEASE-12: held means that an acquire by another owner would be refused now."""
    if isinstance(record, Held) and blocks_others(record, now_ms):
        return Decision(record, State(record))
    return Decision(record, State(None))


def decide(record: LockRecord | None, command: Command, now_ms: int) -> Decision:
    """Applies any command. For a `Damaged` record, every command gets `refused_damaged` instead."""
    match command:
        case Acquire():
            return acquire(record, command, now_ms)
        case Renew():
            return renew(record, command, now_ms)
        case Release():
            return release(record, command, now_ms)
        case ForceRelease():
            return force_release(record, command, now_ms)
        case RevokeGrant():
            return revoke_grant(record, command, now_ms)
        case Read():
            return read(record, command, now_ms)
        case _:
            assert_never(command)


def _withdrawn(record: LockRecord | None, owner_digest: bytes, now_ms: int) -> QueueState:
    """The queue state in which this token is withdrawn too."""
    state = (None if record is None else record.queue_state) or EMPTY_QUEUE_STATE
    latest = (owner_digest[-WITHDRAWN_BYTES:], *state.withdrawn)[:RETIRED_MAX]
    return replace(state, withdrawn=latest, withdrawn_at_ms=now_ms)


def _inherited(record: LockRecord | None, now_ms: int) -> QueueState | None:
    """The queue state of the next lease, without withdrawn tokens that wait no longer."""
    state = None if record is None else record.queue_state
    if state is None:
        return None
    if now_ms >= state.withdrawn_at_ms + WITHDRAWN_KEPT_MS:
        return QueueState(waiting_nodes=state.waiting_nodes) if state.waiting_nodes else None
    return replace(state, waited=False)


def _extended(held: Held, command: Acquire | Renew, now_ms: int, how: Literal["repeated", "renewed"]) -> Decision:
    """The same lease and fencing token with a new expiry, at most the deadline."""
    lease = Held(
        owner_digest=held.owner_digest,
        fencing_token=held.fencing_token,
        expires_at_ms=min(now_ms + command.ttl_seconds * 1_000, held.deadline_ms),
        deadline_ms=held.deadline_ms,
        acquired_at_ms=held.acquired_at_ms,
        renewed_at_ms=now_ms,
        ttl_seconds=command.ttl_seconds,
        holder=command.holder or held.holder,
        queue_state=held.queue_state,
        facts=None if held.facts is None else held.facts.renewed(),
    )
    return Decision(lease, Granted(lease.expires_at_ms, lease.fencing_token, how))
