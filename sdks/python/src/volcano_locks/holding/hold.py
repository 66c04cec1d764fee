"""`Hold`, the state of one held lock: its newest lease, its renewal plan, and how it ended.

A loss is not a flag that another thread must set in time. `Hold` compares the clock with the local deadline in each
query, so it is right even if the renewals are starved, stuck or dead (SDK-4). A hold ends once: it is lost, or its
block is left. A renewal confirmed after that is ignored.

Any thread, signal handler or finalizer may query it: there is no mutex, and the end is one atomic `dict.setdefault`.
Only the renewer changes the plan. After `fork` the child's hold is lost, and the child never releases its parent's lock
(SDK-6).
"""

import os
from collections.abc import Callable
from typing import NamedTuple

from volcano_locks.clock import Clock
from volcano_locks.errors import LOCK_OWNERSHIP_LOST, LockOwnershipLostError, VolcanoError
from volcano_locks.log import log
from volcano_locks.protocol.lease import Lease
from volcano_locks.protocol.renewal_plan import Action, Lost, RenewalPlan, SeenQuota


class BlockLeft(NamedTuple):
    """The block was left: stop renewing."""


class Hold:
    """One acquisition.

    `acquired_at`: an instant before the grant, from which the longest holding time counts; by default the request's.
    `renew_every` and `quota`: see `RenewalPlan`.
    """

    def __init__(
        self,
        lease: Lease,
        clock: Clock,
        timeout_seconds: float,
        jitter: float,
        *,
        acquired_at: float | None = None,
        renew_every: float | None = None,
        quota: SeenQuota | None = None,
    ) -> None:
        assert lease.deadline is not None
        self._clock = clock
        self._pid = os.getpid()
        self._lease = lease
        self._plan = RenewalPlan(
            ttl_seconds=lease.ttl_seconds,
            acquired_at=lease.deadline - lease.ttl_seconds if acquired_at is None else acquired_at,
            deadline=lease.deadline,
            timeout_seconds=timeout_seconds,
            jitter=jitter,
            renew_every=renew_every,
            quota=quota,
        )
        self._end: dict[str, LockOwnershipLostError | BlockLeft] = {}
        self._left = False
        self._last_failure: Exception | None = None
        self._listeners: list[Callable[[], None]] = []

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
        if not self._end and self._clock.now() >= self._plan.deadline:
            loss = _loss_error(self._lease.key, f"not renewed within its {self._lease.ttl_seconds} seconds")
            loss.__cause__ = self._last_failure
            self._finish(loss)
        end = self._end.get("end")
        return None if isinstance(end, BlockLeft) else end

    def not_held_error(self) -> LockOwnershipLostError | None:
        """Why the lease must not be relied on now: it was lost, or its block was left. None while it is held."""
        loss = self.loss()
        return _loss_error(self._lease.key, "its block was left") if loss is None and self._end else loss

    def deadline(self) -> float:
        """The instant on the client's clock after which the lease must not be relied on."""
        return self._plan.deadline

    def next_action(self) -> Action | BlockLeft:
        """The renewer's next action."""
        if self._left:
            return BlockLeft()
        return Lost() if self.loss() is not None else self._plan.next_action(self._clock.now())

    def renewed(self, lease: Lease, quota: SeenQuota | None = None) -> None:
        """A renewal was confirmed. Ignored after the block was left or the lease was lost (cases 3 and 8)."""
        assert lease.deadline is not None
        if self.not_held_error() is None and self._plan.renewed(lease.deadline, self._clock.now(), quota):
            self._lease = lease
            self._last_failure = None

    def failed(self, error: Exception) -> None:
        """A renewal was not confirmed, which is no loss yet (SDK-3)."""
        self._last_failure = error
        retry_after = error.retry_after if isinstance(error, VolcanoError) else None
        self._plan.failed(self._clock.now(), retry_after)

    def lose(self, error: LockOwnershipLostError) -> None:
        """The server reported the loss of the lease. Only the first loss counts (case 12)."""
        self._finish(error)

    def leave(self) -> None:
        """The block is being left: check for a loss a last time, then change nothing more."""
        if not self.forked:
            self.loss()
            self._left = True
            self._finish(BlockLeft())

    def on_end(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` when the hold is lost or left, in the thread that finds it; at once if it has ended.

        Returns a function that removes the listener.
        """
        self._listeners.append(listener)
        if self._end:
            listener()
        return lambda: self._listeners.remove(listener)

    def _finish(self, end: "LockOwnershipLostError | BlockLeft") -> None:
        if self._end.setdefault("end", end) is end:
            if not isinstance(end, BlockLeft):
                log.warning("lost lock %s: %s", self._lease.key, end)
            for listener in list(self._listeners):
                listener()


def _loss_error(key: str, why: str) -> LockOwnershipLostError:
    return LockOwnershipLostError(f"the lease of {key!r} is lost: {why}", code=LOCK_OWNERSHIP_LOST)
