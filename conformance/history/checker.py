"""The checker of histories: finds records of concurrent clients that no correct server can have caused.

Each client records its requests, the responses, and when it sent and received them, by one clock that all clients share
(the machine's boot time). The checker trusts no statement of the server. A request may take effect at any moment
between sending and response; without a response, at any later moment or never. A violation is anything that no order of
such moments explains:

- token_repeated   two acquisitions of a lock got the same fencing token
- order_broken     a grant requested after another was acknowledged has the lower token
- two_holders      two clients were sure to hold the lock at once: from the response until `sent + ttl` or their release
- lease_lost       an acknowledged lease was denied, or granted to another client, before it can have ended
- overtaken        a waiter was overtaken by one that arrived later at the same node
- starved          a waiter was overtaken more than `overtaken_max` times by later waiters on any node
- granted_after_disconnect
                   a reader saw the lock held under an unacknowledged token, although every client that may own it had
                   disconnected at least `disconnect_seconds` before the grant. The grant is later than each request
                   whose response had a lower token or found the lock free. (A client that disconnected after the grant
                   may have left the response unread.)

The order of arrival is known only if the sending times differ by more than `arrival_seconds`; the order of grants is
that of the fencing tokens. A waiter keeps its queue position over several requests, so it arrived with its owner's
first request to the node. A request without a response counts neither as waiting nor as overtaken.

The checker cannot detect a fault that no response shows. A force release ends every client's certainty about its lock.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from math import inf
from typing import Final

from .fairness import granted_after_disconnect, overtaken
from .records import (
    DEFAULT_TOLERANCES,
    UNKNOWN,
    Grant,
    OperationName,
    OutcomeName,
    RequestRecord,
    Tolerances,
    Violation,
    ViolationKind,
    read,
    write,
)

__all__ = [
    "OperationName",
    "OutcomeName",
    "RequestRecord",
    "Tolerances",
    "Violation",
    "ViolationKind",
    "check",
    "read",
    "write",
]

GRACE_SECONDS: Final = 1.0
MARGIN_SECONDS: Final = 1.0


def check(records: Iterable[RequestRecord], tolerances: Tolerances = DEFAULT_TOLERANCES) -> list[Violation]:
    """Every violation found, per lock."""
    by_key: defaultdict[str, list[RequestRecord]] = defaultdict(list)
    for record in records:
        by_key[record.key].append(record)
    return [violation for key in sorted(by_key) for violation in _check_lock(by_key[key], tolerances)]


# --- one lock ---------------------------------------------------------------------------------------------


def _check_lock(records: Sequence[RequestRecord], tolerances: Tolerances) -> Iterator[Violation]:
    tolerance = tolerances.tolerance_seconds
    grants = _grants(records, tolerance)
    yield from _repeated_tokens(grants)
    yield from _broken_order(grants)
    yield from _two_holders(grants)
    yield from _lost_leases(grants)
    yield from _denied(records, grants, tolerance)
    yield from overtaken(records, grants, tolerances)
    yield from granted_after_disconnect(records, grants, tolerances)


def _grants(records: Sequence[RequestRecord], tolerance: float) -> list[Grant]:
    """The acknowledged grants, ordered by their responses."""
    by_owner: defaultdict[str, list[RequestRecord]] = defaultdict(list)
    for record in records:
        by_owner[record.owner].append(record)
    forced = [record for record in records if record.operation == "force_release"]
    grants = []
    for owned in by_owner.values():
        ends = forced + [record for record in owned if record.operation == "release" and record.outcome != "refused"]
        for record in owned:
            if record.outcome == "granted" and record.fencing_token is not None and record.responded_at is not None:
                local_deadline = _local_deadline(record, owned)
                freed = (max(record.sent_at, end.sent_at) for end in ends if _may_follow(end, record))
                freed_at = min(freed, default=inf)
                lasts_until = min(local_deadline + GRACE_SECONDS - tolerance, freed_at)
                sure_until = min(local_deadline, freed_at)
                grants.append(Grant(record, record.fencing_token, record.responded_at, sure_until, lasts_until))
    return sorted(grants, key=lambda grant: grant.responded_at)


def _local_deadline(grant: RequestRecord, owned: Sequence[RequestRecord]) -> float:
    """`sent + ttl`. A later renewal may have shortened the lease, even without a response."""
    extensions = (record for record in owned if _may_have_extended(record, grant))
    return min(record.sent_at + record.ttl_seconds for record in (grant, *extensions))


def _may_have_extended(record: RequestRecord, grant: RequestRecord) -> bool:
    extends = record.operation in ("acquire", "renew") and record.outcome in ("granted", *UNKNOWN)
    return record is not grant and extends and _may_follow(record, grant)


def _may_follow(record: RequestRecord, grant: RequestRecord) -> bool:
    """Whether `record` may have taken effect after `grant` did."""
    return record.responded_at is None or record.outcome in UNKNOWN or record.responded_at >= grant.sent_at


def _repeated_tokens(grants: Sequence[Grant]) -> Iterator[Violation]:
    first_of_token: dict[int, Grant] = {}
    for grant in grants:
        first = first_of_token.setdefault(grant.token, grant)
        if first.record.owner != grant.record.owner:
            yield _violation("token_repeated", f"fencing token {grant.token} was granted to two owners", first, grant)


def _broken_order(grants: Sequence[Grant]) -> Iterator[Violation]:
    """Compare each grant with the highest token that was acknowledged before the grant was requested."""
    highest: Grant | None = None
    answered = iter(grants)
    waiting = next(answered, None)
    for grant in sorted(grants, key=lambda grant: grant.record.sent_at):
        while waiting is not None and waiting.responded_at < grant.record.sent_at:
            highest = waiting if highest is None or waiting.token > highest.token else highest
            waiting = next(answered, None)
        if highest is not None and grant.token < highest.token:
            yield _violation("order_broken", f"token {grant.token} was granted after {highest.token}", highest, grant)


def _two_holders(grants: Sequence[Grant]) -> Iterator[Violation]:
    """The intervals in which different owners are sure to hold the lock must not overlap."""
    last_by_owner: dict[str, Grant] = {}
    for grant in grants:
        if grant.responded_at >= grant.sure_until:
            continue
        last_by_owner = {
            owner: other for owner, other in last_by_owner.items() if other.sure_until > grant.responded_at
        }
        for owner, other in last_by_owner.items():
            if owner != grant.record.owner:
                yield _violation("two_holders", "two owners were sure to hold the lock at once", other, grant)
        mine = last_by_owner.get(grant.record.owner)
        if mine is None or mine.sure_until < grant.sure_until:
            last_by_owner[grant.record.owner] = grant


def _lost_leases(grants: Sequence[Grant]) -> Iterator[Violation]:
    """No higher token may be acknowledged before the lease can have ended."""
    earliest: Grant | None = None  # the first acknowledged grant with a higher token
    same_token: list[Grant] = []
    for grant in sorted(grants, key=lambda grant: grant.token, reverse=True):
        if same_token and same_token[0].token > grant.token:
            earliest = min(
                same_token if earliest is None else [earliest, *same_token], key=lambda one: one.responded_at
            )
            same_token = []
        same_token.append(grant)
        if earliest is not None and earliest.responded_at < grant.lasts_until:
            yield _violation("lease_lost", "the lock was granted again before this lease ended", grant, earliest)


def _denied(records: Sequence[RequestRecord], grants: Sequence[Grant], tolerance: float) -> Iterator[Violation]:
    """No response may deny a lease that cannot have ended, neither to its owner nor to a reader."""
    for record in records:
        if record.responded_at is None or (record.operation, record.outcome) not in DENIED:
            continue
        for grant in grants:
            if grant.responded_at >= record.sent_at:
                break
            if record.operation == "get":
                end = grant.lasts_until
            elif grant.record.owner == record.owner:
                end = grant.sure_until - MARGIN_SECONDS - tolerance
            else:
                continue
            if record.responded_at < end:
                message = f"{record.operation} returned {record.outcome} while the lease was valid"
                yield Violation("lease_lost", record.key, message, (grant.record, record))
                break


DENIED: Final = {
    ("acquire", "lost"),
    ("acquire", "held"),
    ("renew", "lost"),
    ("release", "refused"),
    ("get", "free"),
}


def _violation(kind: ViolationKind, message: str, *grants: Grant) -> Violation:
    return Violation(kind, grants[0].record.key, message, tuple(grant.record for grant in grants))
