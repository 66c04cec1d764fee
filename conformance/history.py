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

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from typing import Final, Literal

GRACE_SECONDS: Final = 1.0
MARGIN_SECONDS: Final = 1.0
TOLERANCE_SECONDS: Final = 0.002
ARRIVAL_SECONDS: Final = 2.0
NOTICE_SECONDS: Final = 3.0
OVERTAKEN_MAX: Final = 200

Operation = Literal["acquire", "renew", "release", "force_release", "get"]
Outcome = Literal["granted", "lost", "held", "free", "done", "refused", "unknown", "left"]
Kind = Literal[
    "token_repeated", "order_broken", "two_holders", "lease_lost", "passed_over", "starved", "granted_to_gone"
]


@dataclass(frozen=True)
class Event:
    """One request of one client, in seconds of the clock they share.

    `owner` names the acquisition: its owner token, or a name for it. `outcome`: acquire and renew are `granted`,
    `lost` (lock_ownership_lost) or `held` (lock_held); release and force release `done` or `refused`; get `held` or
    `free`; any is `unknown` where no answer came, or one that says nothing (503). Then `answered_at` is None. One whose
    client hung up is `left`, at `answered_at`. `wait_seconds`: how long an acquire was ready to wait. `node`: which of
    several was asked. `fencing_token`: as told, also by a get.
    """

    client: str
    operation: Operation
    key: str
    owner: str
    sent_at: float
    answered_at: float | None
    outcome: Outcome
    ttl_seconds: float = 0.0
    fencing_token: int | None = None
    wait_seconds: float = 0.0
    node: str = ""


@dataclass(frozen=True)
class Violation:
    """What cannot have happened, with the events that say it did."""

    kind: Kind
    key: str
    message: str
    events: tuple[Event, ...]


@dataclass(frozen=True)
class _Grant:
    """An acknowledged grant with what follows from it.

    `sure_until` is when its client stops being sure, `lasts_until` the earliest instant at which the lock may
    rightly be another's.
    """

    event: Event
    token: int
    answered_at: float
    sure_until: float
    lasts_until: float


@dataclass(frozen=True)
class Slack:
    """What is allowed for. `tolerance_seconds` is how far server's and clients' clocks may disagree, `arrival_seconds`
    how long a request may take to its place in a line (inf: nobody is known to have come first), `notice_seconds` how
    long a hang-up may take to be noticed and a grant to be given back, `overtaken_max` how often one who waits may be
    passed by those who came later.
    """

    tolerance_seconds: float = TOLERANCE_SECONDS
    arrival_seconds: float = ARRIVAL_SECONDS
    notice_seconds: float = NOTICE_SECONDS
    overtaken_max: int = OVERTAKEN_MAX


def check(events: Iterable[Event], slack: Slack = Slack()) -> list[Violation]:
    """Every violation found, per lock."""
    by_key: defaultdict[str, list[Event]] = defaultdict(list)
    for event in events:
        by_key[event.key].append(event)
    return [violation for key in sorted(by_key) for violation in _check_lock(by_key[key], slack)]


def write(events: Iterable[Event], path: Path) -> None:
    """One event a line, as JSON."""
    path.write_text("".join(json.dumps(asdict(event)) + "\n" for event in events), "utf-8")


def read(*paths: Path) -> list[Event]:
    """The events of several clients' files. A last line that was cut off by the end of its process is left out."""
    events = []
    for path in paths:
        lines = path.read_text("utf-8").split("\n")
        events += [Event(**json.loads(line)) for line in lines[:-1]]
    return events


# --- one lock ---------------------------------------------------------------------------------------------


def _check_lock(events: Sequence[Event], slack: Slack) -> Iterator[Violation]:
    tolerance = slack.tolerance_seconds
    grants = _grants(events, tolerance)
    yield from _repeated_tokens(grants)
    yield from _broken_order(grants)
    yield from _two_holders(grants)
    yield from _given_away(grants)
    yield from _denied(events, grants, tolerance)
    yield from _passed_over(events, grants, slack)
    yield from _granted_to_gone(events, grants, slack)


def _grants(events: Sequence[Event], tolerance: float) -> list[_Grant]:
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
                grants.append(_Grant(event, event.fencing_token, event.answered_at, sure_until, lasts_until))
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


def _repeated_tokens(grants: Sequence[_Grant]) -> Iterator[Violation]:
    first_of_token: dict[int, _Grant] = {}
    for grant in grants:
        first = first_of_token.setdefault(grant.token, grant)
        if first.event.owner != grant.event.owner:
            yield _violation("token_repeated", f"fencing token {grant.token} was given to two owners", first, grant)


def _broken_order(grants: Sequence[_Grant]) -> Iterator[Violation]:
    """Each grant against the highest token that was answered before it was asked for."""
    highest: _Grant | None = None
    answered = iter(grants)
    waiting = next(answered, None)
    for grant in sorted(grants, key=lambda grant: grant.event.sent_at):
        while waiting is not None and waiting.answered_at < grant.event.sent_at:
            highest = waiting if highest is None or waiting.token > highest.token else highest
            waiting = next(answered, None)
        if highest is not None and grant.token < highest.token:
            yield _violation("order_broken", f"token {grant.token} was given after {highest.token}", highest, grant)


def _two_holders(grants: Sequence[_Grant]) -> Iterator[Violation]:
    """Sure intervals of different owners must not overlap."""
    last_by_owner: dict[str, _Grant] = {}
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


def _given_away(grants: Sequence[_Grant]) -> Iterator[Violation]:
    """No higher token may have been answered before the lease can have ended."""
    earliest: _Grant | None = None  # the first answered of those with higher tokens
    same_token: list[_Grant] = []
    for grant in sorted(grants, key=lambda grant: grant.token, reverse=True):
        if same_token and same_token[0].token > grant.token:
            earliest = min(same_token if earliest is None else [earliest, *same_token], key=lambda one: one.answered_at)
            same_token = []
        same_token.append(grant)
        if earliest is not None and earliest.answered_at < grant.lasts_until:
            yield _violation("lease_lost", "the lock was granted anew before this lease ended", grant, earliest)


def _denied(events: Sequence[Event], grants: Sequence[_Grant], tolerance: float) -> Iterator[Violation]:
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


def _passed_over(events: Sequence[Event], grants: Sequence[_Grant], slack: Slack) -> Iterator[Violation]:
    """Those who waited, against all who came later and were granted the lock before them."""
    came_at: dict[tuple[str, str], float] = {}
    for event in events:
        if event.operation == "acquire":
            place = event.node, event.owner
            came_at[place] = min(event.sent_at, came_at.get(place, inf))
    first_told: dict[int, _Grant] = {}
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


def _was_before(grant: _Grant, waiter: Event, slack: Slack) -> bool:
    """Whether `grant`, asked for after `waiter`, was made while that one waited."""
    if grant.event.owner == waiter.owner or grant.event.sent_at <= waiter.sent_at:
        return False
    if waiter.fencing_token is not None:
        return grant.token < waiter.fencing_token
    return waiter.answered_at is not None and grant.answered_at + slack.arrival_seconds < waiter.answered_at


def _granted_to_gone(events: Sequence[Event], grants: Sequence[_Grant], slack: Slack) -> Iterator[Violation]:
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


UNKNOWN: Final = ("unknown", "left")
DENIALS: Final = {
    ("acquire", "lost"),
    ("acquire", "held"),
    ("renew", "lost"),
    ("release", "refused"),
    ("get", "free"),
}


def _violation(kind: Kind, message: str, *grants: _Grant) -> Violation:
    return Violation(kind, grants[0].event.key, message, tuple(grant.event for grant in grants))
