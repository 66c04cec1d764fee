"""Prints a failing run as a short timeline: who, when, what."""

import textwrap
from collections.abc import Iterator
from itertools import takewhile
from typing import Final

from .run import Outcome
from .world import Note

WIDTH: Final = 80
LINES_MAX: Final = 40
FAULTS_MAX: Final = 20  # shown in place of the lines that are left out
WHO_WIDTH: Final = 12
BEFORE_LINES: Final = 8
CHECKS: Final = "checks"  # whose note is the violation

PROMISES: Final = {
    "two_holders": "At any instant at most one client relies on its lease of a lock: no grant before the lease of the "
    "holder before is over in real time, and no client relies on it longer.",
    "token_not_rising": "Each new lease of a lock has a higher fencing token than all leases before it.",
    "token_repeated": "No two leases of a lock have the same fencing token.",
    "not_atomic": "A node replaces only the record that its decision was based on: no other write comes in between.",
    "lease_lost": "An acknowledged lease is neither denied nor granted to another client before it is over.",
    "order_broken": "A lease that was requested after another one was acknowledged has the higher fencing token.",
    "overtaken": "Waiters of one node get the lock in the order of their arrival; no later request is before them.",
    "starved": "Waiters of each node get a turn: other nodes do not get the lock again and again before them.",
    "unserved": "A free lock is granted to a waiter, within two polls of its node at the latest.",
    "own_lease": "A waiter whose own token holds the lock, perhaps through another node, gets its lease as the answer.",
    "granted_after_disconnect": "A waiter whose client disconnected is granted nothing.",
    "event_order": "A stream never reports an earlier state of a lock after a later one.",
    "event_missing": "A stream reports the latest state of each lock, or a reset if it may have missed it.",
    "quota": "No more requests of a project are served in a minute than its quota allows, over all nodes.",
    "skewed_grant": "A node whose clock is behind that of a serving node by more than the bound grants nothing (etcd).",
    "no_response": "A node that runs answers each request in time.",
    "call_without_end": "Each call of a client ends.",
    "internal_error": "No request is answered with 500.",
    "exception": "No part of a node or client raises an error that nothing handles.",
}


def timeline(outcome: Outcome) -> str:
    """The story of the violation: what happened to its lock, and every fault, until the check failed."""
    violation = outcome.violation
    assert violation is not None
    notes = list(takewhile(lambda note: note.who != CHECKS, outcome.notes))
    shown = [note for note in notes if _belongs(note, violation.key)]
    about = f" to {violation.key}" if violation.key else ""
    begin = next((place for place, note in enumerate(shown) if note.at >= violation.since - 0.001), len(shown))
    shown = shown[max(0, min(begin - BEFORE_LINES, len(shown) - LINES_MAX)) :]
    head = [f"VIOLATION {violation.kind} at {violation.at:.3f} s", *_wrapped(violation.message, "  "), ""]
    head += ["The broken promise:", *_wrapped(PROMISES[violation.kind], "  "), ""]
    head += ["The run:", *_wrapped(str(outcome.plan), "  "), "", f"What happened{about} (seconds of true time):"]
    return "\n".join([*head, *_shortened(shown)])


def _shortened(notes: list[Note]) -> Iterator[str]:
    """All lines. If these are too many: the first ones, the last ones, and of those in between the latest faults."""
    if len(notes) <= LINES_MAX:
        yield from _all_lines(notes)
        return
    half = LINES_MAX // 2
    between = notes[half:-half]
    faults = [note for note in between if not note.key][-FAULTS_MAX:]
    yield from _all_lines(notes[:half])
    yield f"{'...':>10}  ({len(between)} events; these are the faults among them)"
    yield from _all_lines(faults)
    yield f"{'...':>10}"
    yield from _all_lines(notes[-half:])


def _belongs(note: Note, key: str) -> bool:
    return note.key == key or (not note.key and not note.who.startswith("reader"))


def _all_lines(notes: list[Note]) -> Iterator[str]:
    return (line for note in notes for line in _lines(note))


def _lines(note: Note) -> Iterator[str]:
    first = f"{note.at:10.3f}  {note.who:<{WHO_WIDTH}}  "
    yield from textwrap.wrap(note.what, WIDTH, initial_indent=first, subsequent_indent=" " * len(first))


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent)
