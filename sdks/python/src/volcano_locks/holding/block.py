"""The life of one `with_lock` block, for threads and asyncio: acquire, renew in the background, stop renewing, release.

Leaving (SDK-5): the renewer ends before the release is sent, and a response still under way cannot restart it. The
release is shielded from cancellation and bounded in time. The outcome:

- The body raised: its error propagates. A loss or a failed release is attached to it as a note.
- The body succeeded, but the lock was lost at some time: `LockOwnershipLostError`.
- The body succeeded while holding the lock throughout, but the release was not confirmed: the block succeeds. Its
  work was protected, and reporting a failure would invite doing it twice; the lock expires by itself. The error is
  kept in `guard.release_error` and logged.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from math import ceil

from volcano_locks.clock import Clock
from volcano_locks.errors import LockOwnershipLostError, VolcanoError
from volcano_locks.holding.hold import Hold
from volcano_locks.holding.renewer import run_renewals
from volcano_locks.http.transport import Transport, perform, run_shielded
from volcano_locks.protocol.arguments import TTL_SECONDS_MIN, checked_hold
from volcano_locks.protocol.backoff import BACKOFF_SECONDS_MAX
from volcano_locks.protocol.checked_operations import CheckedOperations
from volcano_locks.protocol.effects import Operation
from volcano_locks.protocol.lease import Lease
from volcano_locks.protocol.operations import ATTEMPTS_MAX, WAIT_SLICE_SECONDS

RENEWER_END_SECONDS_MAX = 1.0
RELEASE_SECONDS_MAX = 5.0
RELEASE_LOST_SECONDS_MAX = 1.0

log = logging.getLogger("volcano_locks")


class Block:
    """One block. Its coroutines run in one event loop; `hold` may be read from any thread."""

    def __init__(
        self,
        operations: CheckedOperations,
        transport: Transport,
        clock: Clock,
        acquire: Operation[Lease],
        hold_at_least: float | None = None,
    ) -> None:
        self._hold_seconds = checked_hold(hold_at_least)
        self._entered_at = 0.0
        self._operations = operations
        self._transport = transport
        self._clock = clock
        self._acquire = acquire
        self._renewer: asyncio.Task[None] | None = None
        self._entered = False
        self._leaving = False
        self.hold: Hold | None = None
        self.release_error: VolcanoError | None = None

    async def enter(self, on_lost: Callable[[], None]) -> Hold:
        """Acquire, then start the renewer. It calls `on_lost` at most once, in this loop."""
        if self._entered:
            raise RuntimeError("a with_lock(…) block can be entered only once: call with_lock again")
        self._entered = True
        began_at = self._clock.now()
        lease = await perform(self._acquire, self._transport, self._clock)
        # No await from here to the end, so that the lease always has a renewer.
        self._entered_at = self._clock.now()
        timeout_seconds, jitter = self._operations.timeout_seconds, random.random()  # noqa: S311 - not for cryptography
        acquired_at = max(began_at, _acquired_after(lease, timeout_seconds))
        self.hold = Hold(lease, self._clock, timeout_seconds, jitter, acquired_at=acquired_at)
        self._renewer = asyncio.get_running_loop().create_task(
            run_renewals(self.hold, self._renew, self._clock, on_lost), name=f"renewal of {lease.key}"
        )
        self._clock.watch(self._renewer)
        return self.hold

    def stop(self) -> None:
        """Stop renewing and mark the guard as lost, without awaiting. May be repeated."""
        if self.hold is not None:
            self.hold.leave()

    async def leave(self) -> LockOwnershipLostError | None:
        """Stop renewing, release once, and return the loss, if any. A cancellation is raised at the end."""
        if self._leaving:
            return self.hold.loss() if self.hold is not None else None
        self._leaving = True
        return await run_shielded(self._leave())

    async def _leave(self) -> LockOwnershipLostError | None:
        if self.hold is None:
            return None
        self.stop()
        await self._end_renewer()
        loss = self.hold.loss()
        if self.hold.forked or (loss is not None and loss.status is not None):
            return loss
        try:
            await self._release_or_extend(self.hold.lease, loss)
        except LockOwnershipLostError as error:
            return loss or error
        except VolcanoError as error:
            self.release_error = error
            if loss is None:
                log.warning("lock %s was not released and stays held until it expires: %s", self.hold.lease.key, error)
        return loss

    async def _end_renewer(self) -> None:
        if self._renewer is None:
            return
        if self._remaining_hold_seconds() > 0:  # a late renewal would shorten the hold
            await asyncio.wait((self._renewer,), timeout=RENEWER_END_SECONDS_MAX)
        self._renewer.cancel()
        await asyncio.wait((self._renewer,), timeout=RENEWER_END_SECONDS_MAX)

    async def _release_or_extend(self, lease: Lease, loss: LockOwnershipLostError | None) -> None:
        """Release, or let the lease expire at the end of `hold_at_least` (SDK-12)."""
        until, remaining_seconds = self._release_until(loss), self._remaining_hold_seconds()
        if remaining_seconds <= 0 or loss is not None:
            await perform(self._operations.release_at_end(lease, until), self._transport, self._clock)
            return
        ttl_seconds = max(ceil(remaining_seconds), TTL_SECONDS_MIN)
        await perform(self._operations.renew_at_end(lease, ttl_seconds, until), self._transport, self._clock)

    def _remaining_hold_seconds(self) -> float:
        return self._entered_at + self._hold_seconds - self._clock.now()

    def _release_until(self, loss: LockOwnershipLostError | None) -> float:
        now = self._clock.now()
        if loss is not None or self.hold is None:
            return now + RELEASE_LOST_SECONDS_MAX
        return max(min(now + RELEASE_SECONDS_MAX, self.hold.deadline()), now + RELEASE_LOST_SECONDS_MAX)

    async def _renew(self, lease: Lease, timeout_seconds: float) -> Lease:
        return await perform(self._operations.renew_once(lease, timeout_seconds), self._transport, self._clock)


def _acquired_after(lease: Lease, timeout_seconds: float) -> float:
    """An instant before the grant. After a wait, the lease may be known from a later request or its confirmation."""
    assert lease.deadline is not None
    longest_call = WAIT_SLICE_SECONDS + ATTEMPTS_MAX * (timeout_seconds + BACKOFF_SECONDS_MAX)
    return lease.deadline - lease.ttl_seconds - longest_call


def exit_error(
    body_error: BaseException | None, loss: LockOwnershipLostError | None, release_error: VolcanoError | None
) -> LockOwnershipLostError | None:
    """What leaving the block raises: the loss, or None if the body has its own error, which then gets notes."""
    if body_error is None:
        return loss
    for other in (loss, release_error):
        if other is not None and other is not body_error:
            body_error.add_note(f"{type(other).__name__}: {other}")
    return None
