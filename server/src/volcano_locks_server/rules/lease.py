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

from dataclasses import dataclass
from hmac import compare_digest
from typing import Final, Literal, NamedTuple, assert_never

MARGIN_MS: Final = 1_000
GRACE_MS: Final = 1_000
DEADLINE_MS: Final = 90 * 24 * 3600 * 1_000
RETENTION_MS: Final = 24 * 3600 * 1_000
RETIRED_MAX: Final = 16


# --- records ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Held:
    """A lock that has a lease. Times of acquisition and renewal, TTL and holder label are for people."""

    owner_digest: bytes
    fencing_token: int
    expires_at_ms: int
    deadline_ms: int
    acquired_at_ms: int
    renewed_at_ms: int
    ttl_seconds: int
    holder: str | None = None


@dataclass(frozen=True, slots=True)
class Free:
    """A lock without a lease: its last fencing token, and the retired owner tokens (LEASE-11)."""

    fencing_token: int
    freed_at_ms: int
    retired_digests: tuple[bytes, ...] = ()


LockRecord = Held | Free


# --- commands ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Acquire:
    owner_digest: bytes
    ttl_seconds: int
    holder: str | None = None


@dataclass(frozen=True, slots=True)
class Renew:
    owner_digest: bytes
    ttl_seconds: int
    holder: str | None = None


@dataclass(frozen=True, slots=True)
class Release:
    owner_digest: bytes


@dataclass(frozen=True, slots=True)
class ForceRelease:
    pass


@dataclass(frozen=True, slots=True)
class RevokeGrant:
    """Revokes the grant of `granted_at_ms`, because its client disconnected before it got it (WAIT-5)."""

    owner_digest: bytes
    fencing_token: int
    granted_at_ms: int


@dataclass(frozen=True, slots=True)
class Read:
    pass


Command = Acquire | Renew | Release | ForceRelease | RevokeGrant | Read


# --- outcomes ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Granted:
    """The client holds the lock. `how` and `lapsed` (the lease taken over, if any) are for logs and metrics."""

    expires_at_ms: int
    fencing_token: int
    how: Literal["acquired", "taken_over", "repeated", "renewed"]
    lapsed: Held | None = None


@dataclass(frozen=True, slots=True)
class Released:
    """The client does not hold the lock. `ended` is the lease that the command ended, if any."""

    ended: Held | None


@dataclass(frozen=True, slots=True)
class State:
    """The lease if it blocks other owners now; None if an acquire would succeed."""

    lease: Held | None


@dataclass(frozen=True, slots=True)
class Refused:
    """The command changed nothing. `lease` is the one that holds the lock, if the code is `lock_held` and the lease is
    known (HTTP-28).
    """

    code: Literal["lock_held", "lock_ownership_lost"]
    message: str
    lease: Held | None = None


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


def held_by(lease: Held | None) -> Refused:
    """The refusal of an acquire because of this lease; None if the lease is unknown."""
    return Refused("lock_held", HELD_MESSAGE, lease)


# --- a lease at an instant --------------------------------------------------------------------------------


def extendable(held: Held, now_ms: int) -> bool:
    """Whether the owner may still extend the lease: not yet in its margin (LEASE-4, LEASE-8)."""
    return now_ms < held.expires_at_ms - MARGIN_MS


def blocks_others(record: LockRecord | None, now_ms: int) -> bool:
    """Whether an acquire by another owner is refused: the lease and its grace are not over (LEASE-6, LEASE-12)."""
    return isinstance(record, Held) and now_ms < record.expires_at_ms + GRACE_MS


def owns(record: LockRecord | None, owner_digest: bytes, now_ms: int) -> bool:
    """Whether this is the current owner until the grace ends; only owners may use the quota's reserve (QUOTA-5)."""
    return (
        isinstance(record, Held)
        and compare_digest(record.owner_digest, owner_digest)
        and now_ms < record.expires_at_ms + GRACE_MS
    )


def purgeable(record: LockRecord, now_ms: int) -> bool:
    """Whether the record may be deleted: the lock was free, or past its grace, for RETENTION_MS (LEASE-13)."""
    free_since_ms = record.freed_at_ms if isinstance(record, Free) else record.expires_at_ms + GRACE_MS
    return now_ms >= free_since_ms + RETENTION_MS


def next_fencing_token(record: LockRecord | None, now_ms: int) -> int:
    """Above the lock's last token and at least the clock, so that a purged lock repeats no token (LEASE-3)."""
    return now_ms if record is None else max(record.fencing_token + 1, now_ms)


def free_in_ms(record: LockRecord | None, now_ms: int) -> int:
    """Milliseconds until another owner may acquire, if nothing else happens; 0 if it may now."""
    return max(0, record.expires_at_ms + GRACE_MS - now_ms) if isinstance(record, Held) else 0


# --- the commands -----------------------------------------------------------------------------------------


def acquire(record: LockRecord | None, command: Acquire, now_ms: int) -> Decision:
    """LEASE-2 to LEASE-7 and LEASE-11."""
    if isinstance(record, Free) and _is_retired(record, command.owner_digest):
        return Decision(record, RETIRED)
    if isinstance(record, Held) and blocks_others(record, now_ms):
        if not compare_digest(record.owner_digest, command.owner_digest):
            return Decision(record, held_by(record))
        if not extendable(record, now_ms):
            return Decision(record, LAPSED)
        return _extended(record, command, now_ms, "repeated")
    deadline_ms = now_ms + DEADLINE_MS
    lease = Held(
        owner_digest=command.owner_digest,
        fencing_token=next_fencing_token(record, now_ms),
        expires_at_ms=min(now_ms + command.ttl_seconds * 1_000, deadline_ms),
        deadline_ms=deadline_ms,
        acquired_at_ms=now_ms,
        renewed_at_ms=now_ms,
        ttl_seconds=command.ttl_seconds,
        holder=command.holder,
    )
    lapsed = record if isinstance(record, Held) else None
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
    """LEASE-9 and LEASE-11. Retires the token even if the lock was free, so that an abandoned acquire that arrives
    after its own release has no effect.
    """
    if isinstance(record, Held):
        if compare_digest(record.owner_digest, command.owner_digest):
            return Decision(Free(record.fencing_token, now_ms, (command.owner_digest,)), Released(record))
        if blocks_others(record, now_ms):
            return Decision(record, NOT_OWNER)
        return Decision(Free(record.fencing_token, now_ms, (command.owner_digest,)), Released(None))
    if record is None:
        return Decision(Free(0, now_ms, (command.owner_digest,)), Released(None))
    if _is_retired(record, command.owner_digest):
        return Decision(record, Released(None))
    retired = (command.owner_digest, *record.retired_digests)[:RETIRED_MAX]
    return Decision(Free(record.fencing_token, now_ms, retired), Released(None))


def force_release(record: LockRecord | None, _command: ForceRelease, now_ms: int) -> Decision:
    """LEASE-10 and LEASE-11."""
    if not isinstance(record, Held):
        return Decision(record, Released(None))
    free = Free(record.fencing_token, now_ms, (record.owner_digest,))
    return Decision(free, Released(record if blocks_others(record, now_ms) else None))


def revoke_grant(record: LockRecord | None, command: RevokeGrant, now_ms: int) -> Decision:
    """WAIT-5: ends exactly this lease, unless it was repeated or renewed since. The token is not retired, because its
    client may have lost only the connection and may send it again.
    """
    if (
        isinstance(record, Held)
        and compare_digest(record.owner_digest, command.owner_digest)
        and record.fencing_token == command.fencing_token
        and record.renewed_at_ms == command.granted_at_ms
    ):
        return Decision(Free(record.fencing_token, now_ms), Released(record))
    return Decision(record, Released(None))


def read(record: LockRecord | None, _command: Read, now_ms: int) -> Decision:
    """LEASE-12: held means that an acquire by another owner would be refused now."""
    if isinstance(record, Held) and blocks_others(record, now_ms):
        return Decision(record, State(record))
    return Decision(record, State(None))


def decide(record: LockRecord | None, command: Command, now_ms: int) -> Decision:
    """Applies any command."""
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


def _is_retired(record: Free, owner_digest: bytes) -> bool:
    return any(compare_digest(retired, owner_digest) for retired in record.retired_digests)


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
    )
    return Decision(lease, Granted(lease.expires_at_ms, lease.fencing_token, how))
