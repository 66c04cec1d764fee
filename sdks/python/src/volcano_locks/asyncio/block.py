"""The `async with` block: its body is cancelled when the lock is lost.

Cancelling takes the care `asyncio.timeout` takes: the guard cancels its task once, takes that cancellation
back on leaving, and turns it into `LockOwnershipLostError` only if nobody else has cancelled the task too; a
cancellation from outside always wins.

Not promised: a body which swallows `CancelledError` goes on running; when it ends, the loss is raised all the same.
"""

import weakref
from types import TracebackType

from volcano_locks.asyncio.closing_sender import UntilClosed
from volcano_locks.asyncio.own_cancellation import Interrupt
from volcano_locks.errors import LockOwnershipLostError
from volcano_locks.holding.block import Block, outcome_of
from volcano_locks.holding.guard import AsyncLockGuard


class AsyncLockBlock:
    """What `with_lock` returns. Good for one `async with`, in one task. `loss` is known once it was left."""

    def __init__(self, block: Block, sender: UntilClosed) -> None:
        self.loss: LockOwnershipLostError | None = None
        self._block = block
        self._sender = sender
        self._guard: AsyncLockGuard | None = None
        self._interrupt: Interrupt | None = None
        self._forgotten: weakref.finalize[..., AsyncLockBlock] | None = None

    async def __aenter__(self) -> AsyncLockGuard:
        self._interrupt = Interrupt()
        hold = await self._sender.ending(self._block.enter(on_lost=self._interrupt.send))
        # A block that is forgotten rather than left must not be renewed for ever.
        self._forgotten = weakref.finalize(self, hold.leave)
        self._forgotten.atexit = False
        self._guard = AsyncLockGuard(hold)
        return self._guard

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._guard is not None
        assert self._interrupt is not None
        assert self._forgotten is not None
        self._block.stop()
        self._forgotten.detach()  # an interrupt that hits a finalizer is swallowed
        ours = self._interrupt.take_back(error)
        self.loss = self._guard._hold.loss()
        if not self._guard._hold.forked:
            self.loss = await self._block.leave()
        self._guard._release_error = self._block.release_error
        outcome = outcome_of(None if ours else error, self.loss, self._block.release_error)
        if outcome is not None:
            raise outcome
