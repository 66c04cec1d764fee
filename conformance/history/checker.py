"""Judging what many clients were told, when nobody could watch the server: the checker of histories.

Each client writes down what it asked, what it was told, and when it sent and when it had the answer, by one clock
that all clients share (a machine's boot time). Of the server nothing is believed. Between sending and
answer a command may have taken effect at any moment; without an answer it may take effect at any moment after its
sending, or never. Only what no order of such moments can explain is a violation:

- token_repeated  one fencing token of a lock was given to two acquisitions
- order_broken    a grant that was asked for after another was answered has the lower token
- two_holders     two clients were sure at the same time: from the answer until `sent + ttl` or their release
- lease_lost      an acknowledged lease was denied, or given to another, before it can have ended
- passed_over     one who waited was passed by one who came later to the same node
- starved         one who waited was passed more than OVERTAKEN_MAX times by those who came later, to whatever node
- granted_to_gone a reader saw the lock held under a token that nobody was told of, though all who might have it without
                  being told had hung up long before it was granted: NOTICE_SECONDS before somebody asked and was told
                  an earlier token, or that it is free. Whoever was granted it first and hung up then may have left
                  its answer unread

Who came first is known by the times of sending only if they are further apart than an arrival can take; who was granted
first, by the fencing tokens. A waiter keeps its place over several requests, so it came when its owner first asked
there. Whoever was answered nothing is neither said to have waited nor to have been passed.

What it cannot see: a fault that no client was told anything of. Force releases end everyone's certainty on that lock.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from math import inf
from typing import Final

from .fairness import granted_to_gone, passed_over
from .records import UNKNOWN, USUAL_SLACK, Event, Grant, Kind, Operation, Outcome, Slack, Violation, read, write

__all__ = ["Event", "Kind", "Operation", "Outcome", "Slack", "Violation", "check", "read", "write"]

GRACE_SECONDS: Final = 1.0
MARGIN_SECONDS: Final = 1.0


def check(events: Iterable[Event], slack: Slack = USUAL_SLACK) -> list[Violation]:
    """Every violation found, per lock."""
    by_key: defaultdict[str, list[Event]] = defaultdict(list)
    for event in events:
        by_key[event.key].append(event)
    return [violation for key in sorted(by_key) for violation in _check_lock(by_key[key], slack)]


# --- one lock ---------------------------------------------------------------------------------------------


def _check_lock(events: Sequence[Event], slack: Slack) -> Iterator[Violation]:
    tolerance = slack.tolerance_seconds
    grants = _grants(events, tolerance)
    yield from _repeated_tokens(grants)
    yield from _broken_order(grants)
    yield from _two_holders(grants)
    yield from _given_away(grants)
    yield from _denied(events, grants, tolerance)
    yield from passed_over(events, grants, slack)
    yield from granted_to_gone(events, grants, slack)


def _grants(events: Sequence[Event], tolerance: float) -> list[Grant]:
    """The acknowledged grants, in the order of their answers."""
    by_owner: defaultdict[str, list[Event]] = defaultdict(list)
    for event in events:
        by_owner[event.owner].append(event)
    forced = [event for event in events if event.operation == "force_release"]
    grants = []
    for owned in by_owner.values():
        ends = forced + [event for event in owned if event.operation == "release" and event.outcome != "refused"]
        for event in owned:
            if event.outcome == "granted" and event.fencing_token is not None and event.answered_at is not None:
                local_deadline = _local_deadline(event, owned)
                freed = (max(event.sent_at, end.sent_at) for end in ends if _may_follow(end, event))
                freed_at = min(freed, default=inf)
                lasts_until = min(local_deadline + GRACE_SECONDS - tolerance, freed_at)
                sure_until = min(local_deadline, freed_at)
                grants.append(Grant(event, event.fencing_token, event.answered_at, sure_until, lasts_until))
    return sorted(grants, key=lambda grant: grant.answered_at)


def _local_deadline(grant: Event, owned: Sequence[Event]) -> float:
    """`sent + ttl`; a later renewal, whatever became of it, may have brought the expiry nearer."""
    extensions = (event for event in owned if _may_have_extended(event, grant))
    return min(event.sent_at + event.ttl_seconds for event in (grant, *extensions))


def _may_have_extended(event: Event, grant: Event) -> bool:
    extends = event.operation in ("acquire", "renew") and event.outcome in ("granted", *UNKNOWN)
    return event is not grant and extends and _may_follow(event, grant)


def _may_follow(event: Event, grant: Event) -> bool:
    """Whether `event` may have taken effect after `grant` did."""
    return event.answered_at is None or event.outcome in UNKNOWN or event.answered_at >= grant.sent_at


def _repeated_tokens(grants: Sequence[Grant]) -> Iterator[Violation]:
    first_of_token: dict[int, Grant] = {}
    for grant in grants:
        first = first_of_token.setdefault(grant.token, grant)
        if first.event.owner != grant.event.owner:
            yield _violation("token_repeated", f"fencing token {grant.token} was given to two owners", first, grant)


def _broken_order(grants: Sequence[Grant]) -> Iterator[Violation]:
    """Each grant against the highest token that was answered before it was asked for."""
    highest: Grant | None = None
    answered = iter(grants)
    waiting = next(answered, None)
    for grant in sorted(grants, key=lambda grant: grant.event.sent_at):
        while waiting is not None and waiting.answered_at < grant.event.sent_at:
            highest = waiting if highest is None or waiting.token > highest.token else highest
            waiting = next(answered, None)
        if highest is not None and grant.token < highest.token:
            yield _violation("order_broken", f"token {grant.token} was given after {highest.token}", highest, grant)


def _two_holders(grants: Sequence[Grant]) -> Iterator[Violation]:
    """Sure intervals of different owners must not overlap."""
    last_by_owner: dict[str, Grant] = {}
    for grant in grants:
        if grant.answered_at >= grant.sure_until:
            continue
        last_by_owner = {owner: other for owner, other in last_by_owner.items() if other.sure_until > grant.answered_at}
        for owner, other in last_by_owner.items():
            if owner != grant.event.owner:
                yield _violation("two_holders", "two owners were sure to hold the lock at once", other, grant)
        mine = last_by_owner.get(grant.event.owner)
        if mine is None or mine.sure_until < grant.sure_until:
            last_by_owner[grant.event.owner] = grant


def _given_away(grants: Sequence[Grant]) -> Iterator[Violation]:
    """No higher token may have been answered before the lease can have ended."""
    earliest: Grant | None = None  # the first answered of those with higher tokens
    same_token: list[Grant] = []
    for grant in sorted(grants, key=lambda grant: grant.token, reverse=True):
        if same_token and same_token[0].token > grant.token:
            earliest = min(same_token if earliest is None else [earliest, *same_token], key=lambda one: one.answered_at)
            same_token = []
        same_token.append(grant)
        if earliest is not None and earliest.answered_at < grant.lasts_until:
            yield _violation("lease_lost", "the lock was granted anew before this lease ended", grant, earliest)


def _denied(events: Sequence[Event], grants: Sequence[Grant], tolerance: float) -> Iterator[Violation]:
    """Nobody may be told that a lease is over which cannot be: neither its owner nor a reader."""
    for event in events:
        if event.answered_at is None or (event.operation, event.outcome) not in DENIALS:
            continue
        for grant in grants:
            if grant.answered_at >= event.sent_at:
                break
            if event.operation == "get":
                end = grant.lasts_until
            elif grant.event.owner == event.owner:
                end = grant.sure_until - MARGIN_SECONDS - tolerance
            else:
                continue
            if event.answered_at < end:
                message = f"{event.operation} was answered {event.outcome} while the lease lived"
                yield Violation("lease_lost", event.key, message, (grant.event, event))
                break


DENIALS: Final = {
    ("acquire", "lost"),
    ("acquire", "held"),
    ("renew", "lost"),
    ("release", "refused"),
    ("get", "free"),
}


def _violation(kind: Kind, message: str, *grants: Grant) -> Violation:
    return Violation(kind, grants[0].event.key, message, tuple(grant.event for grant in grants))
