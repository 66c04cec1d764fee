"""`Hold`, the state of one held lock: its newest lease, its renewal plan, and at most one loss.

A loss is not a flag that another thread must set in time. `Hold` compares the clock with the local deadline on each
question, so it is right even if the renewals are starved, stuck or dead (SDK-4). A loss is final: a renewal confirmed
after it is ignored.

After `fork` the child's hold is lost, and the child never releases its parent's lock (SDK-6).
"""

import asyncio
import contextlib
import os
import threading
from math import inf
from typing import NamedTuple

from volcano_locks.clock import Clock
from volcano_locks.errors import LOCK_OWNERSHIP_LOST, LockOwnershipLostError, VolcanoError
from volcano_locks.protocol.lease import Lease
from volcano_locks.protocol.renewal_plan import Action, Lost, RenewalPlan


class BlockLeft(NamedTuple):
    """The block was left: stop renewing."""


class Hold:
    """One acquisition. Created in an event loop; its state may be read from any thread.

    `acquired_at`: an instant before the acquisition, from which its end is counted; by default that of its request.
    """

    def __init__(
        self, lease: Lease, clock: Clock, timeout_seconds: float, jitter: float, *, acquired_at: float | None = None
    ) -> None:
        assert lease.deadline is not None
        self._clock = clock
        self._pid = os.getpid()
        self._mutex = threading.RLock()
        self._lease = lease
        self._plan = RenewalPlan(
            ttl_seconds=lease.ttl_seconds,
            acquired_at=lease.deadline - lease.ttl_seconds if acquired_at is None else acquired_at,
            deadline=lease.deadline,
            timeout_seconds=timeout_seconds,
            jitter=jitter,
        )
        self._loss: LockOwnershipLostError | None = None
        self._left = False
        self._last_failure: Exception | None = None
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()

    @property
    def lease(self) -> Lease:
        """The newest confirmed lease."""
        return self._lease

    @property
    def forked(self) -> bool:
        """Whether this process is a child of the one that acquired."""
        return os.getpid() != self._pid

    def loss(self) -> LockOwnershipLostError | None:
        """The loss of this hold, checked against the clock. It does not change after `leave`."""
        if self.forked:
            return _loss_error(self._lease.key, "it belongs to the process that acquired it, not to its fork")
        with self._mutex:
            if self._clock.now() >= self._plan.deadline:
                self._expire()
            return self._loss

    def not_held_error(self) -> LockOwnershipLostError | None:
        """Why the lease must not be relied on now: it was lost, or its block was left. None while it is held."""
        loss = self.loss()
        return _loss_error(self._lease.key, "its block was left") if loss is None and self._left else loss

    def deadline(self) -> float:
        """The instant on the client's clock after which the lease must not be relied on."""
        return self._plan.deadline

    def next_action(self) -> Action | BlockLeft:
        """The renewer's next action."""
        if self._left:
            return BlockLeft()
        if self.loss() is not None:
            return Lost()
        return self._plan.next_action(self._clock.now())

    def renewed(self, lease: Lease) -> None:
        """A renewal was confirmed. Ignored after the block was left or the lease was lost (cases 3 and 8)."""
        assert lease.deadline is not None
        with self._mutex:
            if self._left or self.loss() is not None:
                return
            if self._plan.renewed(lease.deadline, self._clock.now()):
                self._lease = lease
                self._last_failure = None

    def failed(self, error: Exception) -> None:
        """A renewal was not confirmed, which is no loss yet (SDK-3)."""
        with self._mutex:
            self._last_failure = error
            retry_after = error.retry_after if isinstance(error, VolcanoError) else None
            self._plan.failed(self._clock.now(), retry_after)

    def lose(self, error: LockOwnershipLostError) -> None:
        """The server reported the loss of the lease. Only the first loss counts (case 12)."""
        with self._mutex:
            if self._loss is None and not self._left:
                self._loss = error
                self._end()

    def leave(self) -> None:
        """The block is being left: check for a loss a last time, then change nothing more."""
        if self.forked:
            return
        with self._mutex:
            self.loss()
            self._left = True
            self._end()

    @property
    def ended(self) -> "asyncio.Future[None]":
        """Done when the hold was lost or left. It belongs to the loop in which the hold was created."""
        return self._ended

    async def wait_lost(self, seconds: float | None) -> bool:
        """Wait until the hold ends or the time is up; return whether it ended. Runs in the hold's own loop."""
        until = inf if seconds is None else self._clock.now() + seconds
        while self.not_held_error() is None and self._clock.now() < until:
            await self._clock.wait(min(until, self.deadline()), self._ended)
        return self.not_held_error() is not None

    def _expire(self) -> None:
        if self._loss is None and not self._left:
            loss = _loss_error(self._lease.key, f"not renewed within its {self._lease.ttl_seconds} seconds")
            loss.__cause__ = self._last_failure
            self.lose(loss)

    def _end(self) -> None:
        def mark() -> None:
            if not self._ended.done():
                self._ended.set_result(None)

        with contextlib.suppress(RuntimeError):  # the loop is closed, so no task waits in it
            self._loop.call_soon_threadsafe(mark)


def _loss_error(key: str, why: str) -> LockOwnershipLostError:
    return LockOwnershipLostError(f"the lease of {key!r} is lost: {why}", code=LOCK_OWNERSHIP_LOST)
