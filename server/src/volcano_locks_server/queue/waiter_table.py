"""All waiters of one node: how each is added, and how its wait ends.

The table is bounded by WAITERS_PER_LOCK_MAX and a budget of the node. It submits no commands and builds no batches.
"""

import asyncio
from collections.abc import Callable
from typing import Final, Literal

from ..ports.clock import Clock, Timer
from ..ports.lock_store import RecordKey
from ..rules.errors import STOPPING, LockError, StoreUnavailableError
from ..rules.lease import Acquire, Outcome, held_by
from ..rules.shares import Budget, past_share
from .undelivered import UndeliveredGrants
from .wait_queue import WaitQueue
from .waiter import Waiter, WaiterState, WaitResult

WAITERS_PER_LOCK_MAX: Final = 1_000
WAITER_KEPT_SECONDS: Final = 5
WAIT_SLACK_SHARE: Final = 100  # a wait may end late by its hundredth, so that many waits end together
WAIT_SLACK_MS_MAX: Final = 250

RemovalReason = Literal["granted", "refused", "left"]


class WaiterTable:
    def __init__(self, clock: Clock, undelivered: UndeliveredGrants, budget: Budget) -> None:
        self.queues: Final[dict[RecordKey, WaitQueue]] = {}
        self.request_count = 0
        self.stopped = False
        self.on_waiting: Callable[[RecordKey, str | None], None] = lambda _key, _holder: None
        self.on_removed: Callable[[RecordKey, str | None, RemovalReason], None] = lambda _key, _holder, _reason: None
        self._clock: Final = clock
        self._undelivered: Final = undelivered
        self._budget: Final = budget

    def __len__(self) -> int:
        return self._budget.used

    def find(self, key: RecordKey, owner_digest: bytes) -> Waiter | None:
        queue = self.queues.get(key)
        return None if queue is None else queue.waiters.get(owner_digest)

    def all(self) -> list[Waiter]:
        return [waiter for queue in self.queues.values() for waiter in queue.waiters.values()]

    def add(self, key: RecordKey, acquire: Acquire) -> Waiter:
        """Append a waiter to the queue of that lock. Raises LockError and StoreUnavailableError (WAIT-7, WAIT-14)."""
        queue = self.queues.get(key)
        if queue is not None and len(queue.waiters) >= WAITERS_PER_LOCK_MAX:
            raise LockError(
                "too_many_waiters",
                f"{WAITERS_PER_LOCK_MAX} requests wait for this lock on this node: retry in a second",
                retry_after_seconds=1,
            )
        excess = self._budget.take(key.project_id)
        if excess == "share":
            raise past_share("too_many_waiters", "waiters")
        if excess is not None:
            raise StoreUnavailableError("too_many_waiters", f"{self._budget.limit} requests wait on this node")
        if queue is None:
            queue = self.queues[key] = WaitQueue()
        waiter = queue.waiters[acquire.owner_digest] = Waiter(key, acquire, self._clock.now_ms())
        return waiter

    def attach_request(self, waiter: Waiter, acquire: Acquire, wait_ms: int) -> None:
        """Let a new request wait; an earlier one of the same token gets `lock_held` (WAIT-6).

        `waiter.command` stays if it is not evaluated yet and equals the new request's acquire. A new command would be
        evaluated after those of the waiters behind it.
        """
        command = waiter.command if waiter.state is WaiterState.JOINING and waiter.acquire == acquire else None
        if command is not None:
            waiter.command = None  # so that it is not cancelled
        if waiter.result is not None:
            self.complete(waiter, WaitResult(held_by(self.queues[waiter.key].lease)))
        waiter.command = command
        waiter.acquire = acquire
        waiter.timed_out = False
        if waiter.state is not WaiterState.JOINING:
            waiter.state = WaiterState.REJOINING
        waiter.result = asyncio.get_running_loop().create_future()
        self.queues[waiter.key].request_count += 1
        self.request_count += 1
        _cancel(waiter.timer)
        slack_ms = min(wait_ms // WAIT_SLACK_SHARE, WAIT_SLACK_MS_MAX)
        waiter.timer = self._clock.call_in(wait_ms, lambda: self.time_out(waiter), slack_ms=slack_ms)

    def detach_request(self, waiter: Waiter) -> None:
        """No request waits any longer. The caller then keeps or removes the waiter."""
        waiter.result = None
        _cancel(waiter.timer)
        _cancel(waiter.command)
        waiter.timer = waiter.command = None
        self.queues[waiter.key].request_count -= 1
        self.request_count -= 1

    def complete(self, waiter: Waiter, result: WaitResult | StoreUnavailableError) -> None:
        """Detach the request, and resolve or reject it."""
        future = waiter.result
        assert future is not None
        self.detach_request(waiter)
        if future.done():
            return
        if isinstance(result, StoreUnavailableError):
            future.set_exception(result)
        else:
            future.set_result(result)

    def time_out(self, waiter: Waiter) -> None:
        """The deadline passed. The response waits until it is known whether the lock was granted (WAIT-9)."""
        if waiter.result is None:
            return
        waiter.timed_out = True
        if waiter.state in (WaiterState.WAITING, WaiterState.IN_LATE_BATCH):
            self.end_wait(waiter)

    def end_wait(self, waiter: Waiter) -> None:
        """End a wait without a grant, and keep the waiter for a while (WAIT-6)."""
        if self.stopped:
            self.complete(waiter, StoreUnavailableError(*STOPPING))
        elif self.queues[waiter.key].failing or waiter.uncertain_grant is not None:
            unknown = "the store failed during the wait: it is not known whether the lock was granted"
            self.complete(waiter, StoreUnavailableError("wait_unknown", unknown))
        else:
            self.complete(waiter, WaitResult(held_by(self.queues[waiter.key].lease)))
        self.keep(waiter)

    def announce(self, waiter: Waiter) -> None:
        waiter.announced = True
        self.on_waiting(waiter.key, waiter.acquire.holder)

    def keep(self, waiter: Waiter) -> None:
        """Keep a waiter without a request for WAITER_KEPT_SECONDS."""
        self._revoke_uncertain_grant(waiter)
        waiter.state = WaiterState.KEPT
        if self.stopped:
            self.remove(waiter, "left")
        else:
            _cancel(waiter.timer)
            kept_ms = WAITER_KEPT_SECONDS * 1_000
            waiter.timer = self._clock.call_in(kept_ms, lambda: self._remove_kept(waiter), slack_ms=WAIT_SLACK_MS_MAX)

    def remove(self, waiter: Waiter, reason: RemovalReason) -> None:
        if reason != "granted":
            self._revoke_uncertain_grant(waiter)
        _cancel(waiter.timer)
        if waiter.state is WaiterState.REMOVED:
            return
        waiter.state = WaiterState.REMOVED
        queue = self.queues[waiter.key]
        del queue.waiters[waiter.acquire.owner_digest]
        self._budget.give_back(waiter.key.project_id)
        if not queue.waiters:
            queue.cancel_timers()
            del self.queues[waiter.key]
        if waiter.announced:
            self.on_removed(waiter.key, waiter.acquire.holder, reason)

    def _remove_kept(self, waiter: Waiter) -> None:
        if waiter.state is WaiterState.KEPT:
            self.remove(waiter, "left")

    def _revoke_uncertain_grant(self, waiter: Waiter) -> None:
        if waiter.uncertain_grant is not None:
            self._undelivered.revoke(waiter.key, waiter.uncertain_grant)
            waiter.uncertain_grant = None


def _cancel(pending: "Timer | asyncio.Future[Outcome | None] | None") -> None:
    if pending is not None:
        pending.cancel()
