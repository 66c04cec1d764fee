"""The part of `history` that judges waiters: was one passed over, and was a lock granted to one who had gone?"""

from collections.abc import Iterator, Sequence
from math import inf

from .records import Event, Grant, Slack, Violation


def passed_over(events: Sequence[Event], grants: Sequence[Grant], slack: Slack) -> Iterator[Violation]:
    """Those who waited, against all who came later and were granted the lock before them."""
    came_at: dict[tuple[str, str], float] = {}
    for event in events:
        if event.operation == "acquire":
            place = event.node, event.owner
            came_at[place] = min(event.sent_at, came_at.get(place, inf))
    first_told: dict[int, Grant] = {}
    for grant in grants:
        if grant.event.operation == "acquire":
            first_told.setdefault(grant.token, grant)
    for waiter in events:
        if waiter.operation != "acquire" or not waiter.wait_seconds or waiter.outcome not in ("granted", "held"):
            continue
        passing = [one for one in first_told.values() if _was_before(one, waiter, slack)]
        for one in passing:
            came = came_at[one.event.node, one.event.owner]
            if one.event.node == waiter.node and waiter.sent_at + slack.arrival_seconds < came:
                yield Violation("passed_over", waiter.key, "one who came later had the lock first", (waiter, one.event))
                break
        if len(passing) > slack.overtaken_max:
            last = passing[-1].event
            yield Violation("starved", waiter.key, f"{len(passing)} who came later had the lock first", (waiter, last))


def _was_before(grant: Grant, waiter: Event, slack: Slack) -> bool:
    """Whether `grant`, asked for after `waiter`, was made while that one waited."""
    if grant.event.owner == waiter.owner or grant.event.sent_at <= waiter.sent_at:
        return False
    if waiter.fencing_token is not None:
        return grant.token < waiter.fencing_token
    return waiter.answered_at is not None and grant.answered_at + slack.arrival_seconds < waiter.answered_at


def granted_to_gone(events: Sequence[Event], grants: Sequence[Grant], slack: Slack) -> Iterator[Violation]:
    """A lock held under a token that nobody was told, though nobody is left who may yet be told."""
    told = {grant.token for grant in grants}
    asked = [event for event in events if event.operation == "acquire"]
    in_doubt_at = min((event.sent_at for event in asked if event.outcome == "unknown"), default=inf)
    gone = [(event.answered_at, event) for event in asked if event.outcome == "left" and event.answered_at is not None]
    for seen in events:
        if seen.operation != "get" or seen.fencing_token is None or seen.fencing_token in told:
            continue
        suspects = [(left_at, event) for left_at, event in gone if event.sent_at < (seen.answered_at or inf)]
        if not suspects or in_doubt_at < (seen.answered_at or inf):
            continue
        left_at, last = max(suspects, key=lambda one: one[0])
        if any(left_at + slack.notice_seconds < one.sent_at for one in _before(seen, events)):
            yield Violation("granted_to_gone", seen.key, "held by one who had hung up", (last, seen))


def _before(seen: Event, events: Sequence[Event]) -> Iterator[Event]:
    """What certainly was judged before the grant whose token a get told: who was told a lower one, or found it free."""
    assert seen.fencing_token is not None
    for event in events:
        if event.fencing_token is not None:
            if event.fencing_token < seen.fencing_token:
                yield event
        elif event.outcome == "free" and event.answered_at is not None and event.answered_at < seen.sent_at:
            yield event
