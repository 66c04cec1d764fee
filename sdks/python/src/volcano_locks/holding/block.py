"""One `with_lock` block, for both faces: acquire and start renewing; stop renewing, then release.

Leaving (SDK-5): the renewal loop has ended before the release goes out, and an answer that is still under way
can re-arm nothing. The release is shielded from cancellation and bounded in time. What decides the outcome:

- the body raised: its error goes on; a loss or a failed release is attached to it as a note;
- the body succeeded but ownership was lost at some time: `LockOwnershipLostError`;
- the body succeeded and owned the lock throughout, but the release was not confirmed: the block succeeds. Its
  work was protected, and to report it as failed would invite doing it twice; the lock frees itself at its
  expiry. The failure is kept in `guard.release_error` and logged.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from math import ceil

from volcano_locks.clock import Clock
from volcano_locks.errors import LockOwnershipLostError, VolcanoError
from volcano_locks.holding.guard import Hold, keep
from volcano_locks.http.transport import Sender, perform, to_the_end
from volcano_locks.protocol.backoff import REST_SECONDS_MAX
from volcano_locks.protocol.effects import Flow
from volcano_locks.protocol.lock_operations import LockFlows
from volcano_locks.protocol.messages import TTL_SECONDS_MIN, Lease, checked_hold
from volcano_locks.protocol.operations import ATTEMPTS_MAX, WAIT_SLICE_SECONDS

KEEPER_END_SECONDS_MAX = 1.0
RELEASE_SECONDS_MAX = 5.0
RELEASE_LOST_SECONDS_MAX = 1.0

log = logging.getLogger("volcano_locks")


class Block:
    """The life of one block. Its coroutines run in one event loop; `hold` may be asked from anywhere."""

    def __init__(
        self, flows: LockFlows, sender: Sender, clock: Clock, acquire: Flow[Lease], hold_at_least: float | None = None
    ) -> None:
        self._hold_seconds = checked_hold(hold_at_least)
        self._entered_at = 0.0
        self._flows = flows
        self._sender = sender
        self._clock = clock
        self._acquire = acquire
        self._keeper: asyncio.Task[None] | None = None
        self._entered = False
        self._leaving = False
        self.hold: Hold | None = None
        self.release_error: VolcanoError | None = None

    async def enter(self, on_lost: Callable[[], None]) -> Hold:
        """Acquire, then renew in the background; `on_lost` is called at most once, in this loop."""
        if self._entered:
            raise RuntimeError("a with_lock(…) block is good for one `with`: call with_lock again")
        self._entered = True
        began_at = self._clock.now()
        lease = await perform(self._acquire, self._sender, self._clock)
        # From here to the end nothing awaits: there is no moment in which a lease has no keeper.
        self._entered_at = self._clock.now()
        timeout_seconds, jitter = self._flows.timeout_seconds, random.random()  # noqa: S311 - it only spreads
        acquired_at = max(began_at, _acquired_after(lease, timeout_seconds))
        self.hold = Hold(lease, self._clock, timeout_seconds, jitter, acquired_at=acquired_at)
        self._keeper = asyncio.get_running_loop().create_task(
            keep(self.hold, self._renew, self._clock, on_lost), name=f"renewal of {lease.key}"
        )
        self._clock.watch(self._keeper)
        return self.hold

    def stop(self) -> None:
        """No renewal is begun or believed after this, and the guard counts as lost. Does not await; repeat at will."""
        if self.hold is not None:
            self.hold.leave()

    async def leave(self) -> LockOwnershipLostError | None:
        """Stop renewing, release, and tell whether ownership was lost. A cancellation is raised at the end.

        Once: a later call only tells the loss.
        """
        if self._leaving:
            return self.hold.loss() if self.hold is not None else None
        self._leaving = True
        return await to_the_end(self._leave())

    async def _leave(self) -> LockOwnershipLostError | None:
        if self.hold is None:
            return None
        self.stop()
        await self._end_keeper()
        loss = self.hold.loss()
        if self.hold.forked or (loss is not None and loss.status is not None):
            return loss
        try:
            await self._let_go(self.hold.lease, loss)
        except LockOwnershipLostError as error:
            return loss or error
        except VolcanoError as error:
            self.release_error = error
            if loss is None:
                log.warning("lock %s was not released and frees itself at its expiry: %s", self.hold.lease.key, error)
        return loss

    async def _end_keeper(self) -> None:
        if self._keeper is None:
            return
        if self._rest_to_hold() > 0:  # a renewal under way could land after the one to the rest, and cut it short
            await asyncio.wait((self._keeper,), timeout=KEEPER_END_SECONDS_MAX)
        self._keeper.cancel()
        await asyncio.wait((self._keeper,), timeout=KEEPER_END_SECONDS_MAX)

    async def _let_go(self, lease: Lease, loss: LockOwnershipLostError | None) -> None:
        """Release, or leave the lease to expire at the end of `hold_at_least` (SDK-12)."""
        until, rest = self._release_until(loss), self._rest_to_hold()
        if rest <= 0 or loss is not None:
            await perform(self._flows.release_at_end(lease, until), self._sender, self._clock)
            return
        ttl_seconds = max(ceil(rest), TTL_SECONDS_MIN)
        await perform(self._flows.renew_at_end(lease, ttl_seconds, until), self._sender, self._clock)

    def _rest_to_hold(self) -> float:
        return self._entered_at + self._hold_seconds - self._clock.now()

    def _release_until(self, loss: LockOwnershipLostError | None) -> float:
        now = self._clock.now()
        if loss is not None or self.hold is None:
            return now + RELEASE_LOST_SECONDS_MAX
        return max(min(now + RELEASE_SECONDS_MAX, self.hold.deadline()), now + RELEASE_LOST_SECONDS_MAX)

    async def _renew(self, lease: Lease, timeout_seconds: float) -> Lease:
        return await perform(self._flows.renew_once(lease, timeout_seconds), self._sender, self._clock)


def _acquired_after(lease: Lease, timeout_seconds: float) -> float:
    """An instant before the grant: a wait's lease may be known by a later request, or by its confirmation."""
    assert lease.deadline is not None
    return lease.deadline - lease.ttl_seconds - WAIT_SLICE_SECONDS - ATTEMPTS_MAX * (timeout_seconds + REST_SECONDS_MAX)


def outcome_of(
    body_error: BaseException | None, loss: LockOwnershipLostError | None, release_error: VolcanoError | None
) -> LockOwnershipLostError | None:
    """What leaving raises: the loss if the body has no error of its own; else it is attached as a note."""
    if body_error is None:
        return loss
    for other in (loss, release_error):
        if other is not None and other is not body_error:
            body_error.add_note(f"{type(other).__name__}: {other}")
    return None
