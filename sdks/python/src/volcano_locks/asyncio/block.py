"""The `async with` block: its body is cancelled when the lock is lost.

It cancels as `asyncio.timeout` does: it cancels its task once, takes that cancellation back on leaving, and converts it
to `LockOwnershipLostError` only if nothing else cancelled the task; a cancellation from outside always wins.

Not promised: a body that swallows `CancelledError` continues; when it ends, the loss is still raised.
"""

import weakref
from types import TracebackType

from volcano_locks.asyncio.closing_transport import ClosingTransport
from volcano_locks.asyncio.own_cancellation import OwnCancellation
from volcano_locks.errors import LockOwnershipLostError
from volcano_locks.holding.block import Block, exit_error
from volcano_locks.holding.guard import AsyncLockGuard


class AsyncLockBlock:
    """The context manager that `with_lock` returns, for one `async with` in one task. `loss` is set on leaving."""

    def __init__(self, block: Block, transport: ClosingTransport) -> None:
        self.loss: LockOwnershipLostError | None = None
        self._block = block
        self._transport = transport
        self._guard: AsyncLockGuard | None = None
        self._loss_cancellation: OwnCancellation | None = None
        self._finalizer: weakref.finalize[..., AsyncLockBlock] | None = None

    async def __aenter__(self) -> AsyncLockGuard:
        self._loss_cancellation = OwnCancellation()
        hold = await self._transport.cancel_on_close(self._block.enter(on_lost=self._loss_cancellation.cancel))
        # A block that is dropped without being left must not be renewed forever.
        self._finalizer = weakref.finalize(self, hold.leave)
        self._finalizer.atexit = False
        self._guard = AsyncLockGuard(hold)
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
            self.loss = await self._block.leave()
        self._guard._release_error = self._block.release_error
        outcome = exit_error(None if ours else error, self.loss, self._block.release_error)
        if outcome is not None:
            raise outcome
