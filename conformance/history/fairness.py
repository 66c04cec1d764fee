"""Checks whether a waiter was overtaken, and whether a lock was granted to a waiter that had disconnected."""

from collections.abc import Iterator, Sequence
from math import inf

from .records import Grant, RequestRecord, Tolerances, Violation


def overtaken(records: Sequence[RequestRecord], grants: Sequence[Grant], tolerances: Tolerances) -> Iterator[Violation]:
    """Compare each waiter with all later acquires that were granted the lock first."""
    if tolerances.arrival_seconds == inf and tolerances.overtaken_max >= len(records):
        return  # no order of arrival is known, and there are too few records for starvation
    arrived_at: dict[tuple[str, str], float] = {}
    for record in records:
        if record.operation == "acquire":
            position = record.node, record.owner
            arrived_at[position] = min(record.sent_at, arrived_at.get(position, inf))
    first_grants: dict[int, Grant] = {}
    for grant in grants:
        if grant.record.operation == "acquire":
            first_grants.setdefault(grant.token, grant)
    for waiter in records:
        if waiter.operation != "acquire" or not waiter.wait_seconds or waiter.outcome not in ("granted", "held"):
            continue
        earlier = [one for one in first_grants.values() if _overtook(one, waiter, tolerances)]
        for one in earlier:
            arrived = arrived_at[one.record.node, one.record.owner]
            if one.record.node == waiter.node and waiter.sent_at + tolerances.arrival_seconds < arrived:
                yield Violation("overtaken", waiter.key, "a later waiter got the lock first", (waiter, one.record))
                break
        if len(earlier) > tolerances.overtaken_max:
            last = earlier[-1].record
            yield Violation("starved", waiter.key, f"{len(earlier)} later waiters got the lock first", (waiter, last))


def _overtook(grant: Grant, waiter: RequestRecord, tolerances: Tolerances) -> bool:
    """Whether `grant` was requested after `waiter` and made while `waiter` waited."""
    if grant.record.owner == waiter.owner or grant.record.sent_at <= waiter.sent_at:
        return False
    if waiter.fencing_token is not None:
        return grant.token < waiter.fencing_token
    return waiter.responded_at is not None and grant.responded_at + tolerances.arrival_seconds < waiter.responded_at


def granted_after_disconnect(
    records: Sequence[RequestRecord], grants: Sequence[Grant], tolerances: Tolerances
) -> Iterator[Violation]:
    """A lock held under an unacknowledged token, although no client can still receive that acknowledgement."""
    acknowledged = {grant.token for grant in grants}
    acquires = [record for record in records if record.operation == "acquire"]
    uncertain_from = min((record.sent_at for record in acquires if record.outcome == "unknown"), default=inf)
    disconnected = [record for record in acquires if record.outcome == "disconnected"]
    for seen in records:
        if seen.operation != "get" or seen.fencing_token is None or seen.fencing_token in acknowledged:
            continue
        seen_at = seen.responded_at or inf
        suspects = [record for record in disconnected if record.sent_at < seen_at]
        if not suspects or uncertain_from < seen_at:
            continue
        last = max(suspects, key=lambda record: record.responded_at or 0)
        revoked_by = (last.responded_at or 0) + tolerances.disconnect_seconds
        if any(revoked_by < one.sent_at for one in _before(seen, records)):
            message = "held by a waiter that had disconnected"
            yield Violation("granted_after_disconnect", seen.key, message, (last, seen))


def _before(seen: RequestRecord, records: Sequence[RequestRecord]) -> Iterator[RequestRecord]:
    """Records that certainly precede the grant that a get saw: their token is lower, or they found the lock free."""
    assert seen.fencing_token is not None
    for record in records:
        if record.fencing_token is not None:
            if record.fencing_token < seen.fencing_token:
                yield record
        elif record.outcome == "free" and record.responded_at is not None and record.responded_at < seen.sent_at:
            yield record
