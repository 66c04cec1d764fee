"""The guards: what the code inside a block sees of its held lock.

`lost` turns true once and stays true. It also turns true while the block is being left, so that a thread or task that
outlives the block stops (SDK-5).

Limit: code that never checks is not stopped, except that an asyncio block is cancelled at its next await. After a long
pause, only a check of the fencing token at the destination refuses a late write.
"""

from volcano_locks.clock import Clock
from volcano_locks.errors import VolcanoError
from volcano_locks.holding.hold import Hold
from volcano_locks.protocol.lease import Lease


class BaseGuard:
    """The attributes of both guards."""

    def __init__(self, hold: Hold, clock: Clock) -> None:
        self._hold = hold
        self._clock = clock
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
        """Whether the lease must not be relied on now, because it was lost or its block was left.

        Never turns false again.
        """
        return self._hold.not_held_error() is not None

    @property
    def release_error(self) -> VolcanoError | None:
        """Why the release at the end of the block was not confirmed; the lock then expires by itself."""
        return self._release_error

    def raise_if_lost(self) -> None:
        """Raise `LockOwnershipLostError` if `lost`; its message distinguishes a loss from a block that was left."""
        loss = self._hold.not_held_error()
        if loss is not None:
            raise loss

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._hold.lease!r} lost={self.lost}>"
