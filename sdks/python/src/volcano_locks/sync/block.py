"""The `with` block for threads: entered and left by the calling thread, renewed in the client's own.

The body is not interrupted by a loss. An interrupt (Ctrl-C) while entering gives back what was acquired; one while
leaving does not keep the lock from being released.
"""

import threading
import weakref
from types import TracebackType

from volcano_locks.errors import LockOwnershipLostError, VolcanoError
from volcano_locks.holding.block import Block, log, outcome_of
from volcano_locks.holding.guard import Hold, LockGuard
from volcano_locks.sync.background_loop import Background


class LockBlock:
    """What `with_lock` returns. Good for one `with`. `loss` is known once it was left."""

    def __init__(self, block: Block, background: Background, stop: threading.Event | None = None) -> None:
        self.loss: LockOwnershipLostError | None = None
        self._stop = stop
        self._block = block
        self._background = background
        self._guard: LockGuard | None = None
        self._forgotten: weakref.finalize[..., LockBlock] | None = None

    def __enter__(self) -> LockGuard:
        hold = self._background.run(
            lambda: self._block.enter(on_lost=_nothing), undo=lambda _: self._block.leave(), stop=self._stop
        )
        try:
            # A block that is forgotten rather than left (an interrupt just here) must not be renewed for ever.
            self._forgotten = weakref.finalize(self, hold.leave)
            self._forgotten.atexit = False
            self._guard = LockGuard(hold, lambda timeout: self._wait_lost(hold, timeout))
        except BaseException:
            self._leave(hold)
            raise
        return self._guard

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._guard is not None
        hold = self._guard._hold
        try:
            self.loss = self._leave(hold)
        except BaseException:  # an interrupt, which must not keep the lock from being released (case 17)
            self._leave(hold)
            raise
        self._guard._release_error = self._block.release_error
        outcome = outcome_of(error, self.loss, self._block.release_error)
        if outcome is not None:
            raise outcome

    def _leave(self, hold: Hold) -> LockOwnershipLostError | None:
        self._block.stop()
        if self._forgotten is not None:
            self._forgotten.detach()  # an interrupt that hits a finalizer is swallowed
        if not hold.forked:
            try:
                return self._background.run(self._block.leave, to_the_end=True)
            except VolcanoError as closed:
                self._block.release_error = closed
                log.warning("lock %s was not released and frees itself at its expiry: %s", hold.lease.key, closed)
        return hold.loss()

    def _wait_lost(self, hold: Hold, timeout: float | None) -> bool:
        try:
            return self._background.run(lambda: hold.wait_lost(timeout))
        except VolcanoError:  # the client was closed: nothing is renewed, and nobody waits any longer
            return hold.held_no_more() is not None


def _nothing() -> None:
    """The threaded body is not interrupted."""
