"""What one batch does for those who wait in line: the pure part.

The theory. A lock is handed on where it becomes free: in the very step that frees it. So a release and the next grant
are one commit, nobody gets in between, and a waiter hears of its grant one commit after the release was asked for.
When a batch is built, the waiters of its keys are written down (`Heads`). Each run of the step folds the commands
over the records, and after each command those at the head of that key's line are served for as long as the lock is
free (WAIT-4). An acquire that finds it free while somebody is in line is refused, so nobody passes. Whoever is new in
line is there from its own acquire on, so that it passes nobody whose command came before.

The contract. A `Serving` is one run of a step: it changes nothing outside itself, so a store may run the step again.
What it found is its report; whoever owns the lines acts on the report of the run that was committed. Where nothing is
known of the commit, `Serving.grants` of all runs are the grants that may have become true (WAIT-9).
"""

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from hmac import compare_digest
from typing import Final, NamedTuple

from ..ports.lock_store import RecordKey
from ..rules.lease import (
    HELD,
    Acquire,
    Command,
    GiveBack,
    Granted,
    Held,
    LockRecord,
    Outcome,
    Refused,
    Release,
    Released,
    Renew,
    acquire,
    blocks_others,
    free_in_ms,
    owns,
)
from ..rules.lease import decide as decide_command


class Asked(NamedTuple):
    """A command on its way. `owner_only`: it may pass only if its token owns the lock (QUOTA-5). `place` is that of
    an acquire that waits (an object of the lines, told apart by identity).
    """

    command: Command
    owner_only: bool = False
    place: object | None = None


def decide(record: LockRecord | None, asked: Asked, now_ms: int) -> tuple[LockRecord | None, Outcome | None]:
    """The lease's rule; None where only an owner may pass and this is none."""
    if asked.owner_only and not (
        isinstance(asked.command, Renew | Release) and owns(record, asked.command.owner_digest, now_ms)
    ):
        return record, None
    return decide_command(record, asked.command, now_ms)


class Head(NamedTuple):
    """A waiter as a batch sees it. `maybe`: a batch that failed may have granted it the lock."""

    place: object
    acquire: Acquire
    maybe: bool


class Heads(NamedTuple):
    """Who is in line for one key, in order, and to how many waiters this batch may grant the lock."""

    waiting: tuple[Head, ...]
    grants_max: int


class Served(NamedTuple):
    """What came of one waiter, at the store's time `at_ms`. `untold`: it is a grant, and the token's bearer can know
    nothing of that lease yet.
    """

    key: RecordKey
    place: object
    owner_digest: bytes
    outcome: Granted | Refused
    at_ms: int
    untold: bool


class Deed(NamedTuple):
    """One command as it was judged: what was before, what is after. For whoever tells others of it. `place` is that of
    a waiter whose turn it was.
    """

    key: RecordKey
    command: Command
    before: LockRecord | None
    after: LockRecord | None
    outcome: Outcome | None
    at_ms: int
    place: object | None = None


class LineReport(NamedTuple):
    """How a lock that is waited for stands after the step: free to others in `free_in_ms` (0: now), the fencing token
    of its record, and whether somebody still waits of those whom the batch saw.
    """

    free_in_ms: int
    fencing_token: int
    left: bool


@dataclass(slots=True)
class Report:
    """What a run did besides answering its commands. `joined`: places that found the lock held and are in line now;
    `granted`: how often each token was granted something.
    """

    served: list[Served] = field(default_factory=list)
    joined: list[object] = field(default_factory=list)
    lines: dict[RecordKey, LineReport] = field(default_factory=dict)
    granted: Counter[tuple[RecordKey, bytes]] = field(default_factory=Counter)
    deeds: list[Deed] = field(default_factory=list)


class Serving:
    """One run of a batch's step (`commit.Judge`)."""

    def __init__(self, heads: Mapping[RecordKey, Heads], *, watched: bool) -> None:
        self._waiting: Final = {key: deque(mine.waiting) for key, mine in heads.items()}
        self._maybe: Final = {key for key, mine in heads.items() if any(head.maybe for head in mine.waiting)}
        self._grants_left: Final = {key: mine.grants_max for key, mine in heads.items()}
        self._in_line: Final = {id(head.place) for mine in heads.values() for head in mine.waiting}
        self._outcomes: Final[dict[int, Outcome]] = {}
        self._watched: Final = watched
        self._report: Final = Report()

    @property
    def grants(self) -> list[Served]:
        """The grants of this run so far that nobody knows of."""
        return [one for one in self._report.served if one.untold]

    def report(self) -> Report:
        return self._report

    def judge(
        self, key: RecordKey, record: LockRecord | None, asked: Asked, now_ms: int
    ) -> tuple[LockRecord | None, Outcome | None]:
        """Judge the command, then serve the line."""
        waiting = self._waiting.get(key)
        if asked.place is not None and (served := self._outcomes.get(id(asked.place))) is not None:
            after: LockRecord | None = record
            outcome: Outcome | None = served
        else:
            after, outcome = self._judged(key, record, asked, now_ms)
            if self._watched:
                self._report.deeds.append(Deed(key, asked.command, record, after, outcome, now_ms, asked.place))
        if waiting is not None:
            after = self._serve(key, waiting, after, now_ms)
            fencing_token = 0 if after is None else after.fencing_token
            self._report.lines[key] = LineReport(free_in_ms(after, now_ms), fencing_token, bool(waiting))
        return after, outcome

    def _judged(
        self, key: RecordKey, record: LockRecord | None, asked: Asked, now_ms: int
    ) -> tuple[LockRecord | None, Outcome | None]:
        command = asked.command
        if isinstance(command, GiveBack) and self._report.granted[key, command.owner_digest]:
            return record, Released(None)  # its bearer came back in the meantime
        if isinstance(command, Acquire) and not blocks_others(record, now_ms) and self._is_left(key, asked.place):
            decided: tuple[LockRecord | None, Outcome | None] = record, HELD
        else:
            decided = decide(record, asked, now_ms)
        _, outcome = decided
        if isinstance(outcome, Granted) and isinstance(command, Acquire | Renew):
            self._report.granted[key, command.owner_digest] += 1
        if asked.place is not None and isinstance(command, Acquire) and isinstance(outcome, Granted | Refused):
            self._judge_joined(key, asked.place, command, outcome, now_ms)
        return decided

    def _is_left(self, key: RecordKey, place: object | None) -> bool:
        """Whether a free lock is not for this acquire: nobody passes those who wait, here or on other nodes (WAIT-4,
        WAIT-10).
        """
        return bool(self._waiting.get(key)) or (place is not None and self._grants_left[key] <= 0)

    def _judge_joined(
        self, key: RecordKey, place: object, command: Acquire, outcome: Granted | Refused, now_ms: int
    ) -> None:
        """A waiter's own acquire takes its place in line, or is answered at once (WAIT-2)."""
        waiting = self._waiting[key]
        if outcome is HELD:
            self._report.joined.append(place)
            if id(place) not in self._in_line:
                self._in_line.add(id(place))
                waiting.append(Head(place, command, maybe=False))
            return
        for head in waiting:
            if head.place is place:
                waiting.remove(head)
                break
        self._grants_left[key] -= isinstance(outcome, Granted)
        self._tell(key, place, command, outcome, now_ms)

    def _serve(self, key: RecordKey, waiting: deque[Head], record: LockRecord | None, now_ms: int) -> LockRecord | None:
        """Grant the lock to the first in line, if it is free; tell one who has it without knowing."""
        if key in self._maybe and isinstance(record, Held) and blocks_others(record, now_ms):
            for head in waiting:
                if head.maybe and compare_digest(head.acquire.owner_digest, record.owner_digest):
                    waiting.remove(head)
                    return self._judge_head(key, head, record, now_ms)
        while waiting and self._grants_left[key] > 0 and not blocks_others(record, now_ms):
            record = self._judge_head(key, waiting.popleft(), record, now_ms)
        return record

    def _judge_head(self, key: RecordKey, head: Head, record: LockRecord | None, now_ms: int) -> LockRecord | None:
        after, outcome = acquire(record, head.acquire, now_ms)
        assert isinstance(outcome, Granted | Refused)
        if isinstance(outcome, Granted):
            self._grants_left[key] -= 1
            self._report.granted[key, head.acquire.owner_digest] += 1
        if self._watched:
            self._report.deeds.append(Deed(key, head.acquire, record, after, outcome, now_ms, head.place))
        self._tell(key, head.place, head.acquire, outcome, now_ms, maybe=head.maybe)
        return after

    def _tell(
        self,
        key: RecordKey,
        place: object,
        command: Acquire,
        outcome: Granted | Refused,
        now_ms: int,
        *,
        maybe: bool = False,
    ) -> None:
        untold = isinstance(outcome, Granted) and (maybe or outcome.how != "repeated")
        self._outcomes[id(place)] = outcome
        self._report.served.append(Served(key, place, command.owner_digest, outcome, now_ms, untold))
