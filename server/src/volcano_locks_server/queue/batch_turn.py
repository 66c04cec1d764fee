"""What one batch does for the waiters of its keys, from its snapshot to its outcome."""

from collections.abc import Callable
from typing import Final, NamedTuple

from ..ports.lock_store import RecordKey
from ..rules.lease import Granted, Held, Refused, RevokeGrant
from .fairness import Fairness
from .handoff import HandoffStep, LockChange, QueuedWaiter, QueueReport, QueueSnapshot, StepReport, WaiterOutcome
from .recheck import Rechecks
from .undelivered import UndeliveredGrants
from .wait_queue import RETRY_MS_MIN, WaitQueue
from .waiter import WaiterState, WaitResult
from .waiter_table import WaiterTable


class QueueParts(NamedTuple):
    """The parts of a node's wait queues that a batch acts on; `fairness` is None if this node is the only one."""

    table: WaiterTable
    fairness: Fairness | None
    rechecks: Rechecks
    undelivered: UndeliveredGrants

    def snapshot(self, key: RecordKey, queue: WaitQueue, now_ms: int) -> QueueSnapshot:
        """The queue as a batch that begins now sees it; its waiters are in that batch from here on."""
        queue.recheck_submitted = False
        queued = []
        joining, waiting, in_batch = WaiterState.JOINING, WaiterState.WAITING, WaiterState.IN_BATCH  # slow lookups
        for waiter in queue.waiters.values():
            if waiter.state is not joining and waiter.result is not None and not waiter.result.done():
                waited_ms = max(0, now_ms - waiter.since_ms) if waiter.announced else None
                queued.append(QueuedWaiter(waiter, waiter.acquire, waiter.uncertain_grant, waited_ms))
                if waiter.state is waiting:
                    waiter.state = in_batch
        return QueueSnapshot(tuple(queued), None if self.fairness is None else self.fairness.turn(key, queue))


class BatchTurn:
    """One batch's part in the wait queues (`group_commit.BatchHandler`)."""

    def __init__(
        self,
        parts: QueueParts,
        snapshots: dict[RecordKey, QueueSnapshot],
        began_ms: int,
        on_changes: Callable[[list[LockChange]], None] | None,
    ) -> None:
        self._parts: Final = parts
        self._snapshots: Final = snapshots
        self._began_ms: Final = began_ms
        self._on_changes: Final = on_changes
        self._runs: Final[list[HandoffStep]] = []
        self._waiters: Final = [queued.waiter for snapshot in snapshots.values() for queued in snapshot.waiters]

    def begin_run(self) -> HandoffStep:
        run = HandoffStep(self._snapshots, records_changes=self._on_changes is not None)
        self._runs.append(run)
        return run

    def committed(self, report: StepReport) -> None:
        """Deliver the grants, and keep the other waiters queued."""
        for key, owner_digest in report.grant_counts:
            self._parts.undelivered.discard(key, owner_digest)  # its client acquired again
        for served in report.served:
            self._deliver(served, report)
        still_waiting = [waiter for waiter in (*self._waiters, *report.joined) if waiter.result is not None]
        waiting = WaiterState.WAITING
        for waiter in still_waiting:
            waiter.state = waiting
        self._update_queues(report)
        for waiter in still_waiting:
            if waiter.result is None:
                continue
            if waiter.timed_out:
                self._parts.table.end_wait(waiter)
            elif not waiter.announced:
                self._parts.table.announce(waiter)
        if self._on_changes is not None and report.changes:
            self._on_changes(report.changes)

    def failed(self) -> None:
        """The outcome is unknown: each grant of any run may have been committed (WAIT-9)."""
        for served in (grant for run in self._runs for grant in run.undelivered_grants):
            waiter, outcome = served.waiter, served.outcome
            assert isinstance(outcome, Granted)
            revoke = RevokeGrant(served.owner_digest, outcome.fencing_token, served.at_ms)
            if waiter.result is not None:
                waiter.uncertain_grant = revoke
            else:
                self._parts.undelivered.revoke(served.key, revoke)
        for key, queue in self._queues():
            queue.failing = True
            self._parts.rechecks.retry_soon(key, queue)
        for waiter in self._waiters:
            if waiter.state in (WaiterState.IN_BATCH, WaiterState.IN_LATE_BATCH):
                waiter.state = WaiterState.WAITING
                if waiter.timed_out:
                    self._parts.table.end_wait(waiter)

    def overdue(self) -> None:
        """The batch exceeded its time limit: waits that are over end without the batch's outcome."""
        for _, queue in self._queues():
            queue.failing = True
        for waiter in self._waiters:
            if waiter.state is WaiterState.IN_BATCH:
                waiter.state = WaiterState.IN_LATE_BATCH
                if waiter.timed_out:
                    self._parts.table.end_wait(waiter)

    def _queues(self) -> list[tuple[RecordKey, WaitQueue]]:
        queues = self._parts.table.queues
        return [(key, queues[key]) for key in self._snapshots if key in queues]

    def _update_queues(self, report: StepReport) -> None:
        for key, now in report.queues.items():
            queue = self._parts.table.queues.get(key)
            if self._parts.fairness is not None:
                self._update_turn(self._parts.fairness, key, queue, now)
            if queue is None:
                continue
            queue.failing = False
            queue.retry_ms = RETRY_MS_MIN
            before = queue.lease
            queue.lease = now.record if isinstance(now.record, Held) and now.free_in_ms else None
            if now.free_in_ms:
                self._parts.rechecks.schedule(key, queue, self._began_ms + now.free_in_ms)
            if now.awaits_turn:
                self._parts.rechecks.await_turn(key, queue, is_same_lease=before == queue.lease)

    def _update_turn(self, fairness: Fairness, key: RecordKey, queue: WaitQueue | None, now: QueueReport) -> None:
        before = self._snapshots[key].turn
        if now.turn is not None and before is not None and now.turn.fencing_token != before.fencing_token:
            fairness.note_grants(key, now.turn)
            if queue is not None:
                queue.skipped = frozenset()
        if queue is None:
            return
        if now.free_in_ms:
            fairness.end_pause(queue)
            if queue.blocked_by is None and now.record is not None:
                queue.blocked_by = now.record.fencing_token
        elif now.has_waiters and now.yields_to is not None:
            fairness.pause(key, queue, now.yields_to)

    def _deliver(self, served: WaiterOutcome, report: StepReport) -> None:
        table, waiter, outcome = self._parts.table, served.waiter, served.outcome
        result = WaitResult(outcome, served.at_ms, self._began_ms, served.undelivered)
        if waiter.result is not None and waiter.result.done():  # its request has just been cancelled
            table.detach_request(waiter)
            table.remove(waiter, "left")
        if waiter.result is not None:
            table.complete(waiter, result)
            table.remove(waiter, "granted" if isinstance(outcome, Granted) else "refused")
        elif isinstance(outcome, Refused):
            table.remove(waiter, "refused")
        elif report.grant_counts[served.key, served.owner_digest] < 2:
            self._parts.undelivered.revoke_result(served.key, served.owner_digest, result)
