"""Hand-off: the pure step of a batch, which grants a lock to the next waiter in the commit that frees it (WAIT-4).

When a batch is built, the waiters of its keys are copied into snapshots. Each run of the step folds the commands over
the records. After each command it grants the lock to the first waiters of that key's queue for as long as the lock is
free. An acquire that finds the lock free while waiters are queued gets `lock_held`, so it overtakes none of them. A new
waiter is in the queue from its own acquire on, so it overtakes no command that came before it.

A `HandoffStep` is one run. It changes nothing outside itself, so a store may run the step again, and it uses waiters by
identity only. The caller acts on the report of the run that was committed. If the outcome of the commit is unknown,
`undelivered_grants` of all runs are the grants that may have become durable (WAIT-9).
"""

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from hmac import compare_digest
from typing import Final, NamedTuple

from ..ports.lock_store import RecordKey
from ..rules.lease import (
    Acquire,
    Command,
    Granted,
    Held,
    LockRecord,
    Outcome,
    Refused,
    Release,
    Released,
    Renew,
    RevokeGrant,
    acquire,
    blocks_others,
    decide,
    free_in_ms,
    held_by,
    owns,
)
from .waiter import Waiter


class PendingCommand(NamedTuple):
    """A submitted command. `owner_only`: it passes only if its token owns the lock (QUOTA-5). `waiter` is that of an
    acquire that waits.
    """

    command: Command
    owner_only: bool = False
    waiter: Waiter | None = None


def evaluate(
    record: LockRecord | None, pending: PendingCommand, now_ms: int
) -> tuple[LockRecord | None, Outcome | None]:
    """Apply the lease rules; None if only the owner may pass and the token is not the owner's."""
    if pending.owner_only and not (
        isinstance(pending.command, Renew | Release) and owns(record, pending.command.owner_digest, now_ms)
    ):
        return record, None
    return decide(record, pending.command, now_ms)


class QueuedWaiter(NamedTuple):
    """A waiter as a batch sees it. `may_hold`: a batch that failed may have granted it the lock."""

    waiter: Waiter
    acquire: Acquire
    may_hold: bool


class QueueSnapshot(NamedTuple):
    """The waiters of one key, in order, and to how many of them this batch may grant the lock."""

    waiters: tuple[QueuedWaiter, ...]
    grants_max: int


class WaiterOutcome(NamedTuple):
    """The outcome for one waiter, at the store's `at_ms`. `undelivered`: a grant that its client cannot know yet."""

    key: RecordKey
    waiter: Waiter
    owner_digest: bytes
    outcome: Granted | Refused
    at_ms: int
    undelivered: bool


class QueueReport(NamedTuple):
    """The lock of a queue after the step: free to others in `free_in_ms` (0: now), its record, and whether waiters of
    the snapshot are left.
    """

    free_in_ms: int
    record: LockRecord | None
    has_waiters: bool


class LockChange(NamedTuple):
    """What one command did to a lock, for the events; `waiter` is that of a queued acquire."""

    key: RecordKey
    command: Command
    before: LockRecord | None
    after: LockRecord | None
    outcome: Outcome
    now_ms: int
    waiter: Waiter | None


@dataclass(slots=True)
class StepReport:
    """What a run did besides the outcomes of its commands. `joined`: waiters that found the lock held and are queued
    now; `grant_counts`: how many grants each token got; `changes`: None while no event is published.
    """

    changes: list[LockChange] | None
    served: list[WaiterOutcome] = field(default_factory=list)
    joined: list[Waiter] = field(default_factory=list)
    queues: dict[RecordKey, QueueReport] = field(default_factory=dict)
    grant_counts: Counter[tuple[RecordKey, bytes]] = field(default_factory=Counter)


class HandoffStep:
    """One run of a batch's step (`group_commit.BatchRun`)."""

    def __init__(self, snapshots: Mapping[RecordKey, QueueSnapshot], *, records_changes: bool) -> None:
        self._queues: Final = {key: deque(snapshot.waiters) for key, snapshot in snapshots.items()}
        self._may_hold: Final = {
            key for key, snapshot in snapshots.items() if any(queued.may_hold for queued in snapshot.waiters)
        }
        self._grants_left: Final = {key: snapshot.grants_max for key, snapshot in snapshots.items()}
        self._queued: Final = {queued.waiter for snapshot in snapshots.values() for queued in snapshot.waiters}
        self._outcomes: Final[dict[Waiter, Outcome]] = {}
        self._changes: Final[list[LockChange] | None] = [] if records_changes else None
        self._report: Final = StepReport(self._changes)

    @property
    def undelivered_grants(self) -> list[WaiterOutcome]:
        return [served for served in self._report.served if served.undelivered]

    def report(self) -> StepReport:
        return self._report

    def evaluate(
        self, key: RecordKey, record: LockRecord | None, pending: PendingCommand, now_ms: int
    ) -> tuple[LockRecord | None, Outcome | None]:
        """Evaluate the command, then hand the lock on if it is free."""
        waiter, queue = pending.waiter, self._queues.get(key)
        if waiter is not None and (served := self._outcomes.get(waiter)) is not None:
            after: LockRecord | None = record
            outcome: Outcome | None = served
        else:
            after, outcome = self._evaluate_command(key, record, pending, now_ms)
            if self._changes is not None and outcome is not None:
                self._changes.append(LockChange(key, pending.command, record, after, outcome, now_ms, waiter))
        if queue is not None:
            after = self._hand_on(key, queue, after, now_ms)
            self._report.queues[key] = QueueReport(free_in_ms(after, now_ms), after, bool(queue))
        return after, outcome

    def _evaluate_command(
        self, key: RecordKey, record: LockRecord | None, pending: PendingCommand, now_ms: int
    ) -> tuple[LockRecord | None, Outcome | None]:
        command, waiter = pending.command, pending.waiter
        if isinstance(command, RevokeGrant) and self._report.grant_counts[key, command.owner_digest]:
            return record, Released(None)  # its client acquired again in the meantime
        if isinstance(command, Acquire) and not blocks_others(record, now_ms) and self._is_reserved(key, waiter):
            decided: tuple[LockRecord | None, Outcome | None] = record, held_by(None)
        else:
            decided = evaluate(record, pending, now_ms)
        _, outcome = decided
        if isinstance(outcome, Granted) and isinstance(command, Acquire | Renew):
            self._report.grant_counts[key, command.owner_digest] += 1
        if waiter is not None and isinstance(command, Acquire) and isinstance(outcome, Granted | Refused):
            self._enqueue_or_serve(key, waiter, command, outcome, now_ms)
        return decided

    def _is_reserved(self, key: RecordKey, waiter: Waiter | None) -> bool:
        """Whether a free lock belongs to earlier waiters, here or on other nodes (WAIT-4, WAIT-10)."""
        return bool(self._queues.get(key)) or (waiter is not None and self._grants_left[key] <= 0)

    def _enqueue_or_serve(
        self, key: RecordKey, waiter: Waiter, command: Acquire, outcome: Granted | Refused, now_ms: int
    ) -> None:
        """A waiter's own acquire joins the queue if the lock is held, else its outcome is the response (WAIT-2)."""
        queue = self._queues[key]
        if isinstance(outcome, Refused) and outcome.code == "lock_held":
            self._report.joined.append(waiter)
            if waiter not in self._queued:
                self._queued.add(waiter)
                queue.append(QueuedWaiter(waiter, command, may_hold=False))
            return
        for queued in queue:
            if queued.waiter is waiter:
                queue.remove(queued)
                break
        self._grants_left[key] -= isinstance(outcome, Granted)
        self._serve(key, waiter, command, outcome, now_ms)

    def _hand_on(
        self, key: RecordKey, queue: deque[QueuedWaiter], record: LockRecord | None, now_ms: int
    ) -> LockRecord | None:
        """Grant a free lock to the first waiters. If a failed batch granted it to a waiter, that one gets it."""
        if key in self._may_hold and isinstance(record, Held) and blocks_others(record, now_ms):
            for queued in queue:
                if queued.may_hold and compare_digest(queued.acquire.owner_digest, record.owner_digest):
                    queue.remove(queued)
                    return self._acquire_for(key, queued, record, now_ms)
        while queue and self._grants_left[key] > 0 and not blocks_others(record, now_ms):
            record = self._acquire_for(key, queue.popleft(), record, now_ms)
        return record

    def _acquire_for(
        self, key: RecordKey, queued: QueuedWaiter, record: LockRecord | None, now_ms: int
    ) -> LockRecord | None:
        waiter, command, may_hold = queued
        after, outcome = acquire(record, command, now_ms)
        assert isinstance(outcome, Granted | Refused)
        if isinstance(outcome, Granted):
            self._grants_left[key] -= 1
            self._report.grant_counts[key, command.owner_digest] += 1
        if self._changes is not None:
            self._changes.append(LockChange(key, command, record, after, outcome, now_ms, waiter))
        self._serve(key, waiter, command, outcome, now_ms, may_hold=may_hold)
        return after

    def _serve(
        self,
        key: RecordKey,
        waiter: Waiter,
        command: Acquire,
        outcome: Granted | Refused,
        now_ms: int,
        *,
        may_hold: bool = False,
    ) -> None:
        undelivered = isinstance(outcome, Granted) and (may_hold or outcome.how != "repeated")
        self._outcomes[waiter] = outcome
        self._report.served.append(WaiterOutcome(key, waiter, command.owner_digest, outcome, now_ms, undelivered))
