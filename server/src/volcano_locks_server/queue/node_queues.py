"""The wait queues of one node: the entry point of this package.

A waiter is enqueued before its acquire is evaluated. A batch that begins later sees the waiter; the acquire is
evaluated after every batch that began earlier. So no wake-up is lost: if a waiter is still queued after a batch, the
lock was held at that instant. `recheck` notices what becomes free later; `fairness` yields to other nodes.

A grant travels from the step that made it, through the commit, to the waiting request. If the client disconnects on the
way, `undelivered` revokes that very lease. If a batch fails, the waiter remembers the grant that it may have got
(`uncertain_grant`), and the grant is revoked if no request waits for it.

The package runs on the service's event loop, except the steps of batches (`handoff`). It does no I/O. Each node has its
own queues; no order between nodes is promised. Rules: spec/waiting.md, WAIT.
"""

import asyncio
from collections.abc import Callable
from itertools import islice
from typing import Final

from ..ports.clock import Clock
from ..ports.lock_store import RecordKey
from ..rules.errors import STOPPING, LockError, StoreUnavailableError
from ..rules.lease import NOT_OWNER, Acquire, Outcome
from ..rules.shares import Budget
from .batch_turn import BatchTurn, QueueParts
from .fairness import Fairness
from .handoff import LockChange, PendingCommand
from .recheck import Rechecks
from .undelivered import Submit, UndeliveredGrants
from .waiter import Waiter, WaitResult
from .waiter_table import WaiterTable


class WaitQueues:
    """`submit` submits a command to the next batch; `close` ends every timer. `budget` counts the waiters.

    `recheck_every_ms`: recheck all queues that often, for the sake of other nodes; None if this node is the only one.
    `on_changes` is called with what each committed batch did to locks; None while no event is published.
    """

    def __init__(self, clock: Clock, submit: Submit, budget: Budget, *, recheck_every_ms: int | None = None) -> None:
        self.clock: Final = clock
        self.on_changes: Callable[[list[LockChange]], None] | None = None
        self._undelivered: Final = UndeliveredGrants(clock, submit)
        self.table: Final = WaiterTable(clock, self._undelivered, budget)
        self._rechecks: Final = Rechecks(clock, submit, self.table.queues, every_ms=recheck_every_ms)
        self.fairness: Final = Fairness(clock, self._rechecks.recheck)
        self.recheck: Final = self._rechecks.recheck
        self.recheck_all: Final = self._rechecks.recheck_all
        self.revoke: Final = self._undelivered.revoke_result
        fairness = None if recheck_every_ms is None else self.fairness
        self._parts: Final = QueueParts(self.table, fairness, self._rechecks, self._undelivered)
        self._submit: Final = submit

    def count(self, key: RecordKey) -> int:
        """How many requests wait for that lock on this node now."""
        queue = self.table.queues.get(key)
        return 0 if queue is None else queue.request_count

    def first(self, key: RecordKey, count: int) -> list[Waiter]:
        """The first waiters for that lock on this node whose requests wait now, in order."""
        queue = self.table.queues.get(key)
        waiters = () if queue is None else queue.waiters.values()
        return list(islice((one for one in waiters if one.result is not None), count))

    def keys(self) -> list[RecordKey]:
        """The locks that requests wait for on this node now."""
        return [key for key, queue in self.table.queues.items() if queue.request_count]

    def join(self, key: RecordKey, acquire: Acquire, wait_ms: int) -> Waiter:
        """Enqueue a waiter, or attach to the one of the same token. The caller awaits its `result`, and calls `leave`
        if it stops waiting. Raises LockError `too_many_waiters`, `too_many_requests` and StoreUnavailableError.
        """
        table = self.table
        if table.stopped:
            raise StoreUnavailableError(*STOPPING)
        waiter = table.find(key, acquire.owner_digest)
        if waiter is None:
            waiter = table.add(key, acquire)
            self._rechecks.keep_polling()
        table.attach_request(waiter, acquire, wait_ms)
        if waiter.command is not None:
            return waiter
        try:
            waiter.command = self._submit(key, PendingCommand(acquire, waiter=waiter))
        except LockError:
            table.detach_request(waiter)
            table.keep(waiter)
            raise
        waiter.command.add_done_callback(lambda done: self._acquire_done(waiter, done))
        return waiter

    def leave(self, waiter: Waiter, result: "asyncio.Future[WaitResult]") -> None:
        """The request of `result` is gone: remove its waiter, and revoke what it was granted (WAIT-5)."""
        if waiter.result is result:
            self.table.detach_request(waiter)
            self.table.remove(waiter, "left")
            result.cancel()
        elif result.cancelled():
            if waiter.result is None:
                self.table.remove(waiter, "left")
        elif result.done() and result.exception() is None:
            self.revoke(waiter.key, waiter.acquire.owner_digest, result.result())

    def withdraw(self, key: RecordKey, owner_digest: bytes) -> None:
        """Remove the waiter of a token that is being released (WAIT-5)."""
        waiter = self.table.find(key, owner_digest)
        if waiter is not None:
            if waiter.result is not None:
                self.table.complete(waiter, WaitResult(NOT_OWNER))
            self.table.remove(waiter, "left")

    def begin_batch(self, keys: list[RecordKey]) -> BatchTurn | None:
        """What a batch of `keys` does for waiters; None if it has only its commands to evaluate."""
        if not self.table.queues and not self._undelivered and self.on_changes is None:
            return None
        snapshots, now_ms = {}, self.clock.now_ms()
        for key in keys:
            queue = self.table.queues.get(key)
            if queue is not None and queue.request_count:
                snapshots[key] = self._parts.snapshot(key, queue, now_ms)
        if not snapshots and self.on_changes is None and not self._undelivered.has_any_of(keys):
            return None
        return BatchTurn(self._parts, snapshots, now_ms, self.on_changes)

    def stop(self) -> None:
        """End all waits and refuse new ones (WAIT-8). A waiter in a batch gets the outcome of that batch."""
        self.table.stopped = True
        self._undelivered.stop()
        self._rechecks.stop()
        for waiter in self.table.all():
            self.table.time_out(waiter)

    def close(self) -> None:
        """To be called after the last batch."""
        self.stop()
        for waiter in self.table.all():
            if waiter.result is not None:
                self.table.complete(waiter, StoreUnavailableError(*STOPPING))
            self.table.remove(waiter, "left")
        self._undelivered.close()

    def _acquire_done(self, waiter: Waiter, done: "asyncio.Future[Outcome | None]") -> None:
        """If the acquire could not be evaluated, its error is the response, as without a wait (WAIT-2)."""
        if done.cancelled() or (error := done.exception()) is None:
            return
        if waiter.command is done and not waiter.is_evaluated:
            assert isinstance(error, StoreUnavailableError)
            self.table.complete(waiter, error)
            self.table.keep(waiter)
