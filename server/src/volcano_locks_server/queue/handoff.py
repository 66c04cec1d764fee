"""Hand-off: the pure step of a batch, which grants a lock to the next waiter in the commit that frees it (WAIT-4).

When a batch is built, the waiters of its keys are copied into snapshots. Each run of the step folds the commands over
the records. After each command it grants the lock to the first waiters of that key's queue for as long as the lock is
free. An acquire that finds the lock free while waiters are queued gets `lock_held`, so it overtakes none of them. A new
waiter is in the queue from its own acquire on, so it overtakes no command that came before it.

Over a store of several nodes, a waiter may use its token at another node too. One whose token holds the lock is served
at once, and one whose token was released is refused at once (WAIT-13). Fairness decides whether a free lock is left to
another node (`node_turn`).

A `HandoffStep` is one run. It changes nothing outside itself, so a store may run the step again, and it uses waiters by
identity only. The caller acts on the report of the run that was committed. If the outcome of the commit is unknown,
`undelivered_grants` of all runs are the grants that may have become durable (WAIT-9).
"""

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from msgspec.structs import replace

from ..ports.audit import force_release_entry
from ..ports.audit_entry import Act, AuditEntry
from ..ports.lock_store import RecordKey
from ..rules.history import with_last_hold
from ..rules.hold import HoldEntry
from ..rules.lease import (
    WITHDRAWN_BYTES,
    Acquire,
    Command,
    Damaged,
    Granted,
    Held,
    LockRecord,
    Outcome,
    Refused,
    Release,
    Released,
    Renew,
    RevokeGrant,
    StoredRecord,
    acquire,
    blocks_others,
    decide,
    free_in_ms,
    held_by,
    is_retired,
    is_same_grant,
    owns,
    refused_damaged,
)
from .node_turn import NodeTurn, after_grant, waiting_nodes, with_node, with_overtaken_node, yields_to
from .waiter import Waiter


class PendingCommand(NamedTuple):
    """A submitted command. `owner_only`: it passes only if its token owns the lock (QUOTA-5). `waiter` is that of an
    acquire that waits. `act` is of a command that the audit names.
    """

    command: Command
    owner_only: bool = False
    waiter: Waiter | None = None
    act: Act | None = None


def evaluate(
    record: StoredRecord | None, pending: PendingCommand, now_ms: int
) -> tuple[StoredRecord | None, Outcome | None]:
    """Apply the lease rules; None if only the owner may pass and the token is not the owner's."""
    if isinstance(record, Damaged):
        return record, refused_damaged(record)
    return _evaluate(record, pending, now_ms)


def _evaluate(
    record: LockRecord | None, pending: PendingCommand, now_ms: int
) -> tuple[LockRecord | None, Outcome | None]:
    if pending.owner_only and not (
        isinstance(pending.command, Renew | Release) and owns(record, pending.command.owner_digest, now_ms)
    ):
        return record, None
    return decide(record, pending.command, now_ms)


def audit_entry(key: RecordKey, pending: PendingCommand, outcome: Outcome | None, now_ms: int) -> AuditEntry | None:
    """The entry of the audit for a command that was carried out; None if the audit does not name it."""
    if pending.act is None or not isinstance(outcome, Released):
        return None
    return force_release_entry(pending.act, key, outcome.ended, now_ms)


def recorded(
    before: StoredRecord | None, after: LockRecord, pending: PendingCommand, now_ms: int
) -> tuple[LockRecord, HoldEntry | None]:
    """The record to store, with the lock's last hold, and the entry of the hold before it, if this one displaces it."""
    return with_last_hold(before, after, pending.command, now_ms)


class QueuedWaiter(NamedTuple):
    """A waiter as a batch sees it. `uncertain_grant` revokes what a batch that failed may have granted it. `waited_ms`:
    how long it was queued when the batch began, None if it joins in this batch.
    """

    waiter: Waiter
    acquire: Acquire
    uncertain_grant: RevokeGrant | None
    waited_ms: int | None = None


class QueueSnapshot(NamedTuple):
    """The waiters of one key, in order, and the node's turn at that lock; None if this node is the only one."""

    waiters: tuple[QueuedWaiter, ...]
    turn: NodeTurn | None = None


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
    the snapshot are left. `turn` is the node's turn after the step, and `yields_to` the node that the lock is left to.
    """

    free_in_ms: int
    record: LockRecord | None
    has_waiters: bool
    turn: NodeTurn | None = None
    yields_to: str | None = None

    @property
    def awaits_turn(self) -> bool:
        """Whether this node is listed in the record."""
        return self.turn is not None and self.turn.node in waiting_nodes(self.record)


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
            key
            for key, snapshot in snapshots.items()
            if any(queued.uncertain_grant is not None for queued in snapshot.waiters)
        }
        self._turns: Final = {key: snapshot.turn for key, snapshot in snapshots.items() if snapshot.turn is not None}
        self._by_digest: Final[dict[RecordKey, dict[bytes, QueuedWaiter]]] = {}
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
        self, key: RecordKey, record: StoredRecord | None, pending: PendingCommand, now_ms: int
    ) -> tuple[StoredRecord | None, Outcome | None]:
        """Evaluate the command, then hand the lock on if it is free. A damaged record refuses all (LEASE-18)."""
        if isinstance(record, Damaged):
            return record, self._refuse_all(key, refused_damaged(record), pending, now_ms)
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
            self._report.queues[key] = self._queue_report(key, queue, after, now_ms)
        return after, outcome

    def _evaluate_command(
        self, key: RecordKey, record: LockRecord | None, pending: PendingCommand, now_ms: int
    ) -> tuple[LockRecord | None, Outcome | None]:
        command, waiter = pending.command, pending.waiter
        if isinstance(command, RevokeGrant) and self._report.grant_counts[key, command.owner_digest]:
            return record, Released(None)  # its client acquired again in the meantime
        if (
            isinstance(command, Acquire)
            and not blocks_others(record, now_ms)
            and self._is_reserved(key, record, waiter)
        ):
            after: LockRecord | None = record
            outcome: Outcome | None = held_by(None)
        else:
            after, outcome = _evaluate(record, pending, now_ms)
        if isinstance(outcome, Granted) and isinstance(command, Acquire | Renew):
            self._report.grant_counts[key, command.owner_digest] += 1
        if waiter is not None and isinstance(command, Acquire) and isinstance(outcome, Granted | Refused):
            after = self._count_grant(key, record, after, outcome)
            self._enqueue_or_serve(key, waiter, command, outcome, now_ms)
        return after, outcome

    def _refuse_all(self, key: RecordKey, refused: Refused, pending: PendingCommand, now_ms: int) -> Refused:
        queue = self._queues.get(key, deque())
        waiting = [queued for queued in queue if queued.waiter is not pending.waiter]
        queue.clear()
        for waiter, command, *_ in waiting:
            self._serve(key, waiter, command, refused, now_ms)
        if pending.waiter is not None and pending.waiter not in self._outcomes and isinstance(pending.command, Acquire):
            self._serve(key, pending.waiter, pending.command, refused, now_ms)
        if key in self._queues:
            self._report.queues[key] = QueueReport(0, None, has_waiters=False)
        return refused

    def _is_reserved(self, key: RecordKey, record: LockRecord | None, waiter: Waiter | None) -> bool:
        """Whether a free lock belongs to earlier waiters, here or on other nodes (WAIT-4, WAIT-10)."""
        return bool(self._queues.get(key)) or (waiter is not None and self._yields_to(key, record) is not None)

    def _yields_to(self, key: RecordKey, record: LockRecord | None) -> str | None:
        turn = self._turns.get(key)
        return None if turn is None else yields_to(turn, record)

    def _enqueue_or_serve(
        self, key: RecordKey, waiter: Waiter, command: Acquire, outcome: Granted | Refused, now_ms: int
    ) -> None:
        """A waiter's own acquire joins the queue if the lock is held, else its outcome is the response (WAIT-2)."""
        queue = self._queues[key]
        if isinstance(outcome, Refused) and outcome.code == "lock_held":
            self._report.joined.append(waiter)
            if waiter not in self._queued:
                self._queued.add(waiter)
                queued = QueuedWaiter(waiter, command, None)
                queue.append(queued)
                if key in self._by_digest:
                    self._by_digest[key][command.owner_digest[-WITHDRAWN_BYTES:]] = queued
            return
        for queued in queue:
            if queued.waiter is waiter:
                queue.remove(queued)
                break
        self._serve(key, waiter, command, outcome, now_ms)

    def _hand_on(
        self, key: RecordKey, queue: deque[QueuedWaiter], record: LockRecord | None, now_ms: int
    ) -> LockRecord | None:
        """Serve the waiters whose tokens the record knows, then grant a free lock to the first waiters."""
        for queued in self._known_to(key, queue, record, now_ms):
            queue.remove(queued)
            record = self._acquire_for(key, queued, record, now_ms)
        while queue and not blocks_others(record, now_ms) and self._yields_to(key, record) is None:
            record = self._acquire_for(key, queue.popleft(), record, now_ms)
        return self._with_this_node(key, record, now_ms) if queue else record

    def _with_this_node(self, key: RecordKey, record: LockRecord | None, now_ms: int) -> LockRecord | None:
        """The record that is left with waiters; it lists this node if another one goes first."""
        turn = self._turns.get(key)
        if turn is None or record is None:
            return record
        if isinstance(record, Held) and blocks_others(record, now_ms):
            return with_overtaken_node(turn, record)
        return with_node(turn.node, record) if yields_to(turn, record) else record

    def _known_to(
        self, key: RecordKey, queue: deque[QueuedWaiter], record: LockRecord | None, now_ms: int
    ) -> list[QueuedWaiter]:
        """The waiters whose token holds the lock, by another node or a batch that failed, or is withdrawn (WAIT-13)."""
        if not queue or record is None or (key not in self._turns and key not in self._may_hold):
            return []
        by_digest = self._by_digest.get(key)
        if by_digest is None:
            by_digest = {queued.acquire.owner_digest[-WITHDRAWN_BYTES:]: queued for queued in queue}
            self._by_digest[key] = by_digest
        digests = () if record.queue_state is None else record.queue_state.withdrawn
        if isinstance(record, Held) and blocks_others(record, now_ms):
            digests = (record.owner_digest[-WITHDRAWN_BYTES:], *digests)
        known = [by_digest[digest] for digest in digests if digest in by_digest]
        return [queued for queued in known if queued in queue and self._is_served(queued, record, now_ms)]

    def _is_served(self, queued: QueuedWaiter, record: LockRecord, now_ms: int) -> bool:
        digest = queued.acquire.owner_digest
        return owns(record, digest, now_ms) or is_retired(record, digest, now_ms)

    def _acquire_for(
        self, key: RecordKey, queued: QueuedWaiter, record: LockRecord | None, now_ms: int
    ) -> LockRecord | None:
        waiter, command, uncertain, waited_ms = queued
        after, outcome = acquire(record, command, now_ms)
        assert isinstance(outcome, Granted | Refused)
        if isinstance(outcome, Granted):
            self._report.grant_counts[key, command.owner_digest] += 1
            if waited_ms is not None and outcome.how != "repeated" and isinstance(after, Held) and after.facts:
                after = replace(after, facts=after.facts.waited(waited_ms))
        after = self._count_grant(key, record, after, outcome)
        if self._changes is not None:
            self._changes.append(LockChange(key, command, record, after, outcome, now_ms, waiter))
        # A repeat of a lease that another node granted, or extended since, is one that its client knows (WAIT-13).
        was_unknown = uncertain is not None and is_same_grant(record, uncertain)
        self._serve(key, waiter, command, outcome, now_ms, was_unknown=was_unknown)
        return after

    def _count_grant(
        self, key: RecordKey, before: LockRecord | None, after: LockRecord | None, outcome: Granted | Refused
    ) -> LockRecord | None:
        """The record after an acquire of a waiter, with the node's turn in it if a lease began."""
        turn = self._turns.get(key)
        if turn is None or not isinstance(outcome, Granted) or outcome.how == "repeated":
            return after
        assert isinstance(after, Held)
        self._turns[key], lease = after_grant(turn, before, after)
        return lease

    def _queue_report(
        self, key: RecordKey, queue: deque[QueuedWaiter], record: LockRecord | None, now_ms: int
    ) -> QueueReport:
        turn = self._turns.get(key)
        left_to = None if turn is None else yields_to(turn, record)
        return QueueReport(free_in_ms(record, now_ms), record, bool(queue), turn, left_to)

    def _serve(
        self,
        key: RecordKey,
        waiter: Waiter,
        command: Acquire,
        outcome: Granted | Refused,
        now_ms: int,
        *,
        was_unknown: bool = False,
    ) -> None:
        undelivered = isinstance(outcome, Granted) and (was_unknown or outcome.how != "repeated")
        self._outcomes[waiter] = outcome
        self._report.served.append(WaiterOutcome(key, waiter, command.owner_digest, outcome, now_ms, undelivered))
