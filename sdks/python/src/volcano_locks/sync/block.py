"""The `with` block for threads: the calling thread enters and leaves it, the background loop renews the lock.

A loss does not interrupt the body. An interrupt (Ctrl-C) while entering releases what was acquired; an interrupt while
leaving does not prevent the release.
"""

import threading
import weakref
from types import TracebackType

from volcano_locks.errors import LockOwnershipLostError, VolcanoError
from volcano_locks.holding.block import Block, exit_error, log
from volcano_locks.holding.guard import LockGuard
from volcano_locks.holding.hold import Hold
from volcano_locks.sync.background_loop import BackgroundLoop


class LockBlock:
    """The context manager that `with_lock` returns, for one `with`. `loss` is set on leaving."""

    def __init__(self, block: Block, background: BackgroundLoop, stop: threading.Event | None = None) -> None:
        self.loss: LockOwnershipLostError | None = None
        self._stop = stop
        self._block = block
        self._background = background
        self._guard: LockGuard | None = None
        self._finalizer: weakref.finalize[..., LockBlock] | None = None

    def __enter__(self) -> LockGuard:
        hold = self._background.run(
            lambda: self._block.enter(on_lost=_nothing), undo=lambda _: self._block.leave(), stop=self._stop
        )
        try:
            # A block that is dropped without being left (by an interrupt here) must not be renewed forever.
            self._finalizer = weakref.finalize(self, hold.leave)
            self._finalizer.atexit = False
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
        except BaseException:  # an interrupt must not prevent the release (case 17)
            self._leave(hold)
            raise
        self._guard._release_error = self._block.release_error
        outcome = exit_error(error, self.loss, self._block.release_error)
        if outcome is not None:
            raise outcome

    def _leave(self, hold: Hold) -> LockOwnershipLostError | None:
        self._block.stop()
        if self._finalizer is not None:
            self._finalizer.detach()  # Python ignores an interrupt inside a finalizer
        if not hold.forked:
            try:
                return self._background.run(self._block.leave, shielded=True)
            except VolcanoError as closed:
                self._block.release_error = closed
                log.warning("lock %s was not released and stays held until it expires: %s", hold.lease.key, closed)
        return hold.loss()

    def _wait_lost(self, hold: Hold, timeout: float | None) -> bool:
        try:
            return self._background.run(lambda: hold.wait_lost(timeout))
        except VolcanoError:  # the client was closed, so its renewals ended
            return hold.not_held_error() is not None


def _nothing() -> None:
    """A loss does not interrupt a threaded body."""
