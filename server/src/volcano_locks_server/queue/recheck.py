"""Rechecks: evaluate a wait queue although no command came for its lock.

If a waiter is still queued after a batch, the lock was held at that instant. From then on the lock becomes free in four
ways:

- a command of this node frees it: the command's batch hands it on;
- its lease and grace end: a timer rechecks the queue;
- another node frees it: a peer message calls `recheck`; with other nodes, a poll every `every_ms` finds lost messages;
- a batch that failed freed it after all: retries with back-off.

A recheck submits a read, whose batch hands the lock on.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

from ..ports.clock import Clock, Timer
from ..ports.lock_store import RecordKey
from ..rules.errors import LockError
from ..rules.lease import Outcome, Read
from .handoff import PendingCommand
from .undelivered import RETRY_MS_MAX, Submit
from .wait_queue import WaitQueue

RECHECK_EVERY_SECONDS: Final = 2
TURN_RECHECK_MS_MIN: Final = 100  # while the record lists this node, so that it uses its turn soon
TURN_RECHECK_MS_MAX: Final = 1_600  # while the same lease blocks its waiters


class Rechecks:
    """The rechecks of one node's queues. `stop` ends their timers, and no recheck begins after it.

    `every_ms`: recheck each queue that often, for the sake of other nodes; None if this node is the only one.
    """

    def __init__(
        self, clock: Clock, submit: Submit, queues: Mapping[RecordKey, WaitQueue], *, every_ms: int | None
    ) -> None:
        self._clock: Final = clock
        self._submit: Final = submit
        self._queues: Final = queues
        self._every_ms: Final = every_ms
        self._poll_timer: Timer | None = None
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True
        if self._poll_timer is not None:
            self._poll_timer.cancel()
        for queue in self._queues.values():
            queue.cancel_timers()

    def recheck(self, key: RecordKey) -> None:
        """The lock may have become free: hand it on if requests wait for it."""
        queue = self._queues.get(key)
        if queue is None or not queue.request_count or queue.recheck_submitted or self._stopped:
            return
        queue.recheck_submitted = True
        try:
            submitted = self._submit(key, PendingCommand(Read()))
        except LockError:
            queue.recheck_submitted = False
            self.retry_soon(key, queue)
        else:
            submitted.add_done_callback(lambda done: self._rechecked(key, done))

    def recheck_all(self) -> None:
        """Any lock may have become free."""
        for key in list(self._queues):
            self.recheck(key)

    def retry_soon(self, key: RecordKey, queue: WaitQueue) -> None:
        """Recheck a queue after a back-off (WAIT-9)."""
        if self.recheck_in(queue.retry_ms, key, queue):
            queue.retry_ms = min(RETRY_MS_MAX, queue.retry_ms * 2)

    def await_turn(self, key: RecordKey, queue: WaitQueue, *, is_same_lease: bool) -> None:
        """The record lists this node: recheck soon, and less often while the same lease blocks its waiters."""
        doubled_ms = min(TURN_RECHECK_MS_MAX, queue.turn_recheck_ms * 2)
        queue.turn_recheck_ms = doubled_ms if is_same_lease else TURN_RECHECK_MS_MIN
        self.recheck_in(queue.turn_recheck_ms, key, queue)

    def recheck_in(self, delay_ms: int, key: RecordKey, queue: WaitQueue) -> bool:
        """Recheck a queue after a delay. Returns False if that is scheduled already."""
        if queue.retry_timer is not None or self._stopped:
            return False

        def retry() -> None:
            queue.retry_timer = None
            self.recheck(key)

        queue.retry_timer = self._clock.call_in(delay_ms, retry)
        return True

    def schedule(self, key: RecordKey, queue: WaitQueue, free_at_ms: int) -> None:
        """Recheck when lease and grace are over. A renewal only moves the instant; the timer reads it when it fires."""
        due_before = queue.free_at_ms
        queue.free_at_ms = free_at_ms
        if self._stopped or (queue.expiry_timer is not None and due_before <= free_at_ms):
            return
        if queue.expiry_timer is not None:
            queue.expiry_timer.cancel()
        delay_ms = free_at_ms - self._clock.now_ms()
        queue.expiry_timer = self._clock.call_in(delay_ms, lambda: self._expired(key, queue))

    def keep_polling(self) -> None:
        """Recheck all queues every `every_ms`, for as long as there are any."""
        if self._every_ms is not None and self._poll_timer is None and not self._stopped:
            self._poll_timer = self._clock.call_in(self._every_ms, self._poll)

    def _poll(self) -> None:
        self._poll_timer = None
        for queue in self._queues.values():
            queue.overtaken_after, queue.blocked_by = queue.blocked_by, None
        self.recheck_all()
        if self._queues:
            self.keep_polling()

    def _rechecked(self, key: RecordKey, done: "asyncio.Future[Outcome | None]") -> None:
        if done.cancelled() or done.exception() is None:
            return
        queue = self._queues.get(key)
        if queue is not None:
            queue.recheck_submitted = False
            self.retry_soon(key, queue)

    def _expired(self, key: RecordKey, queue: WaitQueue) -> None:
        queue.expiry_timer = None
        if self._clock.now_ms() >= queue.free_at_ms:
            self.recheck(key)
        else:
            self.schedule(key, queue, queue.free_at_ms)
