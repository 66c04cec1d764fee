"""Holding a lock: what is known of one acquisition, and the guards that show it to the code inside the block.

`lost` is not a flag somebody sets in time: it compares the clock with the local deadline whenever it is
asked, so it is right even if the renewals are starved, stuck or dead (SDK-4). It turns true once and stays
so: a renewal confirmed after somebody could have seen the loss is not believed.

Once its block is being left a guard counts as lost too, so that a thread or task that outlives the block stops
(SDK-5). The block's own outcome knows only a loss while it was held.

After `fork` the child's guard is lost, and the child never releases its parent's lock (SDK-6).

Not promised: code that does not ask is not stopped (the asyncio block is cancelled at its next await).
Writes after a long pause are refused only by a check of the fencing token where they land.
"""

import asyncio
import contextlib
import os
import threading
from collections.abc import Awaitable, Callable
from math import inf
from typing import NamedTuple

from volcano_locks.clock import Clock
from volcano_locks.errors import LOCK_OWNERSHIP_LOST, LockOwnershipLostError, VolcanoError
from volcano_locks.protocol.messages import Lease
from volcano_locks.protocol.renewal_plan import Heartbeat, Lost, Step, Wait


class Left(NamedTuple):
    """The block was left: nothing more is renewed."""


class Hold:
    """One acquisition: its newest lease, its plan, and at most one loss. Made in an event loop; asked anywhere.

    `acquired_at`: an instant before the acquisition, from which its absolute end is counted; by default that of the
    request that the lease's deadline is counted from.
    """

    def __init__(
        self, lease: Lease, clock: Clock, timeout_seconds: float, jitter: float, *, acquired_at: float | None = None
    ) -> None:
        assert lease.deadline is not None
        self._clock = clock
        self._pid = os.getpid()
        self._mutex = threading.RLock()
        self._lease = lease
        self._heartbeat = Heartbeat(
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
        self._over: asyncio.Future[None] = self._loop.create_future()

    @property
    def lease(self) -> Lease:
        """The newest confirmed lease."""
        return self._lease

    @property
    def forked(self) -> bool:
        """This process is a child of the one that acquired."""
        return os.getpid() != self._pid

    def loss(self) -> LockOwnershipLostError | None:
        """The one loss of this hold, found by looking at the clock if need be. After `leave` it stays as it was."""
        if self.forked:
            return _loss_of(self._lease.key, "it belongs to the process that acquired it, not to its fork")
        with self._mutex:
            if self._clock.now() >= self._heartbeat.deadline:
                self._lose_locally()
            return self._loss

    def held_no_more(self) -> LockOwnershipLostError | None:
        """Why the lease must not be relied on now: the loss, or else that the block was left."""
        loss = self.loss()
        return _loss_of(self._lease.key, "its block was left") if loss is None and self._left else loss

    def deadline(self) -> float:
        """The instant on the client's clock after which the lease must not be relied on."""
        return self._heartbeat.deadline

    def next_step(self) -> Step | Left:
        """What the renewal loop does now."""
        if self._left:
            return Left()
        if self.loss() is not None:
            return Lost()
        return self._heartbeat.next_step(self._clock.now())

    def renewed(self, lease: Lease) -> None:
        """A renewal was confirmed. Ignored once the block was left or the lease was lost (cases 3 and 8)."""
        assert lease.deadline is not None
        with self._mutex:
            if self._left or self.loss() is not None:
                return
            if self._heartbeat.renewed(lease.deadline, self._clock.now()):
                self._lease = lease
                self._last_failure = None

    def failed(self, error: Exception) -> None:
        """A renewal was not confirmed: no loss yet (SDK-3)."""
        with self._mutex:
            self._last_failure = error
            retry_after = error.retry_after if isinstance(error, VolcanoError) else None
            self._heartbeat.failed(self._clock.now(), retry_after)

    def lose(self, error: LockOwnershipLostError) -> None:
        """The server said that the lease is lost. Only the first loss counts (case 12)."""
        with self._mutex:
            if self._loss is None and not self._left:
                self._loss = error
                self._end()

    def leave(self) -> None:
        """The block is being left: a last look at the clock, then nothing changes any more."""
        if self.forked:
            return
        with self._mutex:
            self.loss()
            self._left = True
            self._end()

    @property
    def over(self) -> "asyncio.Future[None]":
        """Done once the hold was lost or left; of the loop the hold was made in."""
        return self._over

    async def wait_lost(self, seconds: float | None) -> bool:
        """Until the loss, the leaving or the time is up; whether it is held no more. In the hold's own loop."""
        until = inf if seconds is None else self._clock.now() + seconds
        while self.held_no_more() is None and self._clock.now() < until:
            await self._clock.wait(min(until, self.deadline()), self._over)
        return self.held_no_more() is not None

    def _lose_locally(self) -> None:
        if self._loss is None and not self._left:
            loss = _loss_of(self._lease.key, f"not renewed within its {self._lease.ttl_seconds} seconds")
            loss.__cause__ = self._last_failure
            self.lose(loss)

    def _end(self) -> None:
        def mark() -> None:
            if not self._over.done():
                self._over.set_result(None)

        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits there any more
            self._loop.call_soon_threadsafe(mark)


async def keep(
    hold: Hold, renew: Callable[[Lease, float], Awaitable[Lease]], clock: Clock, on_lost: Callable[[], None]
) -> None:
    """Renew `hold` until it is left or lost; `on_lost` is called at most once. Never raises (SDK-6)."""
    while True:
        step = hold.next_step()
        if isinstance(step, Left):
            return
        if isinstance(step, Lost):
            on_lost()
            return
        try:
            if isinstance(step, Wait):
                await clock.wait(step.until, hold.over)
            else:
                hold.renewed(await renew(hold.lease, step.timeout_seconds))
        except LockOwnershipLostError as error:
            hold.lose(error)
        except Exception as error:  # noqa: BLE001 - whatever it was, the lease may still be alive (case 2)
            hold.failed(error)
            await asyncio.sleep(0)


class _Guard:
    """What both guards show."""

    def __init__(self, hold: Hold) -> None:
        self._hold = hold
        self._release_error: VolcanoError | None = None

    @property
    def lease(self) -> Lease:
        """The newest lease: renewals replace it (case 22)."""
        return self._hold.lease

    @property
    def key(self) -> str:
        """The lock's key."""
        return self._hold.lease.key

    @property
    def fencing_token(self) -> int:
        """The number to send along with every write; renewals keep it."""
        return self._hold.lease.fencing_token

    @property
    def lost(self) -> bool:
        """Whether the lease must not be relied on any more, judged now: it was lost, or its block was left.

        Never turns false again.
        """
        return self._hold.held_no_more() is not None

    @property
    def release_error(self) -> VolcanoError | None:
        """Why the release on leaving the block was not confirmed; the lock then frees itself at its expiry."""
        return self._release_error

    def raise_if_lost(self) -> None:
        """Raise `LockOwnershipLostError` if `lost`; it says whether by a loss or because the block was left."""
        loss = self._hold.held_no_more()
        if loss is not None:
            raise loss

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._hold.lease!r} lost={self.lost}>"


class LockGuard(_Guard):
    """The lock as the body of `with client.locks.with_lock(…)` sees it. May be used from any thread."""

    def __init__(self, hold: Hold, wait: Callable[[float | None], bool]) -> None:
        super().__init__(hold)
        self._wait = wait

    def wait_lost(self, timeout: float | None = None) -> bool:
        """Block until the loss, or the end of the block, or `timeout` seconds; whether it is `lost`."""
        return True if self.lost else self._wait(timeout)


class AsyncLockGuard(_Guard):
    """The lock as the body of `async with client.locks.with_lock(…)` sees it. `lost` may be asked from any thread."""

    async def wait_lost(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109 - on the client's clock
        """Until the loss, or the end of the block, or `timeout` seconds; whether it is `lost`."""
        return await self._hold.wait_lost(timeout)


def _loss_of(key: str, why: str) -> LockOwnershipLostError:
    return LockOwnershipLostError(f"the lease of {key!r} is lost: {why}", code=LOCK_OWNERSHIP_LOST)
