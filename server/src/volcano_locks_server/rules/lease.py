"""Every rule of a lease, and nothing else.

The theory. A lock is a name. A *lease* is one holding of it, and it ends by itself: a holder that dies needs
nobody to clean up after it. Because clocks and networks are late, two bands of time surround the expiry:

    acquire          renewals …            expires_at - 1 s   expires_at   expires_at + 1 s
       |------------------ alive -----------------|--- margin ---|--- grace ---|---- free to take over ---->
       owner may renew, repeat, release           | too late to extend         | anybody may acquire
                                                    nobody else may acquire yet

In the *margin* nothing may be extended, so an answer that travels for a while still finds its lease alive.
In the *grace* nobody may take over, so a holder whose clock is a little slow has stopped before another
begins. A *fencing token* rises at each change of hands; storage that remembers the highest it has seen can
refuse a late write of a holder that was paused past its lease, which no lease can prevent by itself.

The contract. `decide(record, command, now_ms)` returns the outcome to answer and the record to keep. It reads
no clock, does no I/O, and holds for every store. `record` is None where nothing is remembered of a lock.
Rule ids refer to spec/lease.md. What this module does not promise: durability and atomicity are the store's.

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


# --- what is remembered of a lock -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Held:
    """A lease: who holds the lock (by digest), until when, and for people since when and by which name."""

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
    """A lock nobody holds: its last fencing token, and the tokens that must not come back (LEASE-11)."""

    fencing_token: int
    freed_at_ms: int
    retired_digests: tuple[bytes, ...] = ()


LockRecord = Held | Free


# --- what is asked ----------------------------------------------------------------------------------------


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
    """Ends a lease whose grant at `granted_at_ms` no client received; submitted by the service itself (WAIT-5)."""

    owner_digest: bytes
    fencing_token: int
    granted_at_ms: int


@dataclass(frozen=True, slots=True)
class Read:
    pass


Command = Acquire | Renew | Release | ForceRelease | RevokeGrant | Read


# --- what is answered -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Granted:
    """The caller holds the lock. `how` and `lapsed` (the lease taken over, if any) are for logs and metrics."""

    expires_at_ms: int
    fencing_token: int
    how: Literal["acquired", "taken_over", "repeated", "renewed"]
    lapsed: Held | None = None


@dataclass(frozen=True, slots=True)
class Released:
    """The lock is free of that caller. `ended` is the lease that this ended, None where the lock was free."""

    ended: Held | None


@dataclass(frozen=True, slots=True)
class State:
    """What a reader sees: the lease while it blocks others, or None where an acquire would succeed now."""

    lease: Held | None


@dataclass(frozen=True, slots=True)
class Refused:
    code: Literal["lock_held", "lock_ownership_lost"]
    message: str


Outcome = Granted | Released | State | Refused


class Decision(NamedTuple):
    """The record to keep (the same object if nothing changes) and the outcome to answer."""

    record: LockRecord | None
    outcome: Outcome


HELD: Final = Refused(
    "lock_held", "another owner holds this lock: try again after its lease ends, or wait for its release"
)
LAPSED: Final = Refused(
    "lock_ownership_lost",
    "this lease ended or is within a second of its end, too late to extend: stop the work, then acquire again "
    "with a new owner token",
)
NOT_OWNER: Final = Refused(
    "lock_ownership_lost", "this owner token does not hold this lock: stop the work that relied on it"
)
RETIRED: Final = Refused(
    "lock_ownership_lost", "this owner token was released or forced out: acquire again with a new owner token"
)


# --- the clock's view of a lease --------------------------------------------------------------------------


def extendable(held: Held, now_ms: int) -> bool:
    """Whether the owner may still extend the lease: not yet in its margin (LEASE-4, LEASE-8)."""
    return now_ms < held.expires_at_ms - MARGIN_MS


def blocks_others(record: LockRecord | None, now_ms: int) -> bool:
    """Whether an acquire by another owner is refused: the lease and its grace are not over (LEASE-6, LEASE-12)."""
    return isinstance(record, Held) and now_ms < record.expires_at_ms + GRACE_MS


def owns(record: LockRecord | None, owner_digest: bytes, now_ms: int) -> bool:
    """Whether this is the current owner, whom the quota's reserve serves (QUOTA rules): lease and grace not over."""
    return (
        isinstance(record, Held)
        and compare_digest(record.owner_digest, owner_digest)
        and now_ms < record.expires_at_ms + GRACE_MS
    )


def purgeable(record: LockRecord, now_ms: int) -> bool:
    """Whether the record has told its last: free, or past its grace, for RETENTION_MS (LEASE-13)."""
    free_since_ms = record.freed_at_ms if isinstance(record, Free) else record.expires_at_ms + GRACE_MS
    return now_ms >= free_since_ms + RETENTION_MS


def next_fencing_token(record: LockRecord | None, now_ms: int) -> int:
    """Above the lock's last token, and not below the clock: a forgotten record repeats none (LEASE-3)."""
    return now_ms if record is None else max(record.fencing_token + 1, now_ms)


def free_in_ms(record: LockRecord | None, now_ms: int) -> int:
    """Milliseconds until another owner may have the lock if nothing happens; 0 where it may now."""
    return max(0, record.expires_at_ms + GRACE_MS - now_ms) if isinstance(record, Held) else 0


# --- the verbs --------------------------------------------------------------------------------------------


def acquire(record: LockRecord | None, command: Acquire, now_ms: int) -> Decision:
    """LEASE-2 to LEASE-7 and LEASE-11."""
    if isinstance(record, Free) and _is_retired(record, command.owner_digest):
        return Decision(record, RETIRED)
    if isinstance(record, Held) and blocks_others(record, now_ms):
        if not compare_digest(record.owner_digest, command.owner_digest):
            return Decision(record, HELD)
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
    """LEASE-8: by the owner, in time, or not at all."""
    if not isinstance(record, Held) or not compare_digest(record.owner_digest, command.owner_digest):
        return Decision(record, NOT_OWNER)
    if not extendable(record, now_ms):
        return Decision(record, LAPSED)
    return _extended(record, command, now_ms, "renewed")


def release(record: LockRecord | None, command: Release, now_ms: int) -> Decision:
    """LEASE-9 and LEASE-11: the token is retired even where the lock was free, so that a given-up acquire
    which arrives after its own release stays without effect.
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
    """LEASE-10 and LEASE-11: whoever holds it is out, and stays out."""
    if not isinstance(record, Held):
        return Decision(record, Released(None))
    free = Free(record.fencing_token, now_ms, (record.owner_digest,))
    return Decision(free, Released(record if blocks_others(record, now_ms) else None))


def revoke_grant(record: LockRecord | None, command: RevokeGrant, now_ms: int) -> Decision:
    """WAIT-5: end that very lease, unless it was repeated or renewed since. The token is not retired: its client may
    have lost only a connection, and may acquire with it again.
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
    """The rule for any command; see the verb's own function."""
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
    """The same lease with a new expiry: never past its deadline, the fencing token unmoved."""
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
