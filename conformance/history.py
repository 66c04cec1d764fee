"""Judging what many clients were told, when nobody could watch the server: the checker of histories.

Each client writes down what it asked, what it was told, and when it sent and when it had the answer, by one clock
that all clients share (a machine's boot time). Of the server nothing is believed. Between sending and
answer a command may have taken effect at any moment; without an answer it may take effect at any moment after its
sending, or never. Only what no order of such moments can explain is a violation:

- token_repeated  one fencing token of a lock was given to two acquisitions
- order_broken    a grant that was asked for after another was answered has the lower token
- two_holders     two clients were sure at the same time: from the answer until `sent + ttl` or their release
- lease_lost      an acknowledged lease was denied, or given to another, before it can have ended

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

Operation = Literal["acquire", "renew", "release", "force_release", "get"]
Outcome = Literal["granted", "lost", "held", "free", "done", "refused", "unknown"]
Kind = Literal["token_repeated", "order_broken", "two_holders", "lease_lost"]


@dataclass(frozen=True)
class Event:
    """One request of one client, in seconds of the clock they share.

    `owner` names the acquisition: its owner token, or a name for it. `outcome`: acquire and renew are `granted`,
    `lost` (lock_ownership_lost) or `held` (lock_held); release and force release `done` or `refused`; get `held` or
    `free`; any is `unknown` where no answer came, or one that says nothing (503). Then `answered_at` is None.
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


def check(events: Iterable[Event], *, tolerance_seconds: float = TOLERANCE_SECONDS) -> list[Violation]:
    """Every violation found, per lock. `tolerance_seconds` is how far server's and clients' clocks may disagree."""
    by_key: defaultdict[str, list[Event]] = defaultdict(list)
    for event in events:
        by_key[event.key].append(event)
    return [violation for key in sorted(by_key) for violation in _check_lock(by_key[key], tolerance_seconds)]


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


def _check_lock(events: Sequence[Event], tolerance: float) -> Iterator[Violation]:
    grants = _grants(events, tolerance)
    yield from _repeated_tokens(grants)
    yield from _broken_order(grants)
    yield from _two_holders(grants)
    yield from _given_away(grants)
    yield from _denied(events, grants, tolerance)


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
    extends = event.operation in ("acquire", "renew") and event.outcome in ("granted", "unknown")
    return event is not grant and extends and _may_follow(event, grant)


def _may_follow(event: Event, grant: Event) -> bool:
    """Whether `event` may have taken effect after `grant` did."""
    return event.answered_at is None or event.answered_at >= grant.sent_at


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


DENIALS: Final = {
    ("acquire", "lost"),
    ("acquire", "held"),
    ("renew", "lost"),
    ("release", "refused"),
    ("get", "free"),
}


def _violation(kind: Kind, message: str, *grants: _Grant) -> Violation:
    return Violation(kind, grants[0].event.key, message, tuple(grant.event for grant in grants))
