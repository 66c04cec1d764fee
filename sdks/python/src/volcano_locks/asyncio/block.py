"""The `async with` block: its body is cancelled when the lock is lost.

It cancels as `asyncio.timeout` does: it cancels its task once, takes that cancellation back on leaving, and converts it
to `LockOwnershipLostError` only if nothing else cancelled the task; a cancellation from outside always wins.

Limit: a body that swallows `CancelledError` continues; the loss is still raised when it ends.
"""

import asyncio
import weakref
from collections.abc import Awaitable, Callable
from math import inf
from types import TracebackType
from typing import ParamSpec, TypeVar

from volcano_locks.asyncio.driver import AsyncDriver
from volcano_locks.asyncio.waiting import LoopWakeup, OwnCancellation, run_shielded, sleep
from volcano_locks.clock import Clock
from volcano_locks.errors import LockOwnershipLostError
from volcano_locks.holding.block import RENEWAL_END_SECONDS_MAX, Block, exit_error
from volcano_locks.holding.guard import BaseGuard
from volcano_locks.holding.hold import BlockLeft, Hold
from volcano_locks.protocol.renewal_plan import Lost, Wait

P = ParamSpec("P")
R = TypeVar("R")


class AsyncLockGuard(BaseGuard):
    """The held lock in the body of `async with client.locks.with_lock(…)`. `lost` may be read from any thread."""

    async def wait_lost(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109 - on the client's clock
        """Wait until the loss, the end of the block, or `timeout` seconds; return `lost`."""
        hold, clock = self._hold, self._clock
        until = inf if timeout is None else clock.now() + timeout
        while hold.not_held_error() is None and clock.now() < until:
            await _sleep_while_held(hold, clock, min(until, hold.deadline()))
        return hold.not_held_error() is not None


class AsyncLockBlock:
    """The context manager that `with_lock` returns, for one `async with` in one task. `loss` is set on leaving."""

    def __init__(
        self, block: Block, driver: AsyncDriver, new_block: "Callable[[], AsyncLockBlock] | None" = None
    ) -> None:
        self.loss: LockOwnershipLostError | None = None
        self._block = block
        self._driver = driver
        self._new_block = new_block
        self._guard: AsyncLockGuard | None = None
        self._renewer: asyncio.Task[None] | None = None
        self._loss_cancellation: OwnCancellation | None = None
        self._finalizer: weakref.finalize[..., AsyncLockBlock] | None = None

    def __call__(self, function: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
        """A decorator: each call runs in a block of its own. An argument named `guard` is passed as by `exclusive`."""
        from volcano_locks.features.exclusive import asynchronous  # noqa: PLC0415 - rarely needed

        new_block = self._new_block
        if new_block is None:
            raise TypeError("with_lock as a decorator takes no token: each call makes its own")
        return asynchronous("", "raise", lambda _key, _wait: new_block())(function)

    async def __aenter__(self) -> AsyncLockGuard:
        enter = self._block.enter(asyncio.current_task())
        self._loss_cancellation = cancellation = OwnCancellation()
        hold = await self._driver.cancel_on_close(self._driver.run(enter))
        # No await from here to the end, so that the lease always has a renewer.
        self._renewer = renewer = asyncio.get_running_loop().create_task(
            _run_renewals(self._block, hold, self._driver, cancellation.cancel),
            name=f"renewal of {hold.lease.key}",
        )
        self._block.clock.watch(renewer, renewer.done)
        # A block that is dropped without being left must not be renewed forever.
        self._finalizer = weakref.finalize(self, hold.leave)
        self._finalizer.atexit = False
        self._guard = AsyncLockGuard(hold, self._block.clock)
        return self._guard

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._guard is not None
        assert self._loss_cancellation is not None
        assert self._finalizer is not None
        self._block.stop()
        self._finalizer.detach()  # Python ignores an interrupt inside a finalizer
        ours = self._loss_cancellation.uncancel(error)
        self.loss = self._guard._hold.loss()
        if not self._guard._hold.forked:
            self.loss = await run_shielded(self._leave())
        self._guard._release_error = self._block.release_error
        outcome = exit_error(None if ours else error, self.loss, self._block.release_error)
        if outcome is not None:
            raise outcome

    async def _leave(self) -> LockOwnershipLostError | None:
        assert self._renewer is not None
        if self._block.needs_last_renewal():  # a late renewal would shorten the hold
            await asyncio.wait((self._renewer,), timeout=RENEWAL_END_SECONDS_MAX)
        self._renewer.cancel()
        await asyncio.wait((self._renewer,), timeout=RENEWAL_END_SECONDS_MAX)
        return await self._driver.run(self._block.leave())


async def _run_renewals(block: Block, hold: Hold, driver: AsyncDriver, on_lost: Callable[[], None]) -> None:
    """Renew `hold` until it is left or lost (SDK-6). Call `on_lost` at most once. Never raises."""
    while True:
        action = hold.next_action()
        if isinstance(action, BlockLeft):
            return
        if isinstance(action, Lost):
            on_lost()
            return
        if isinstance(action, Wait):
            await _sleep_while_held(hold, block.clock, action.until)
        else:
            await driver.run(block.renew(action.timeout_seconds))
            await asyncio.sleep(0)


async def _sleep_while_held(hold: Hold, clock: Clock, until: float) -> None:
    """Return when `now() >= until`, or when the hold ends."""
    wakeup = LoopWakeup()
    forget = hold.on_end(wakeup.set)
    try:
        await sleep(clock, until, wakeup)
    finally:
        forget()
