"""What the blocks of one client share: which threads or tasks are in them, and the quota that the server showed last.

A block inside a block on the same key of the same thread or task would wait for itself for ever, so it is refused
(SDK-26).
"""

import weakref
from collections.abc import Mapping

from volcano_locks.errors import LOCK_HELD, LockHeldError
from volcano_locks.holding.hold import Hold
from volcano_locks.protocol.messages import seen_quota
from volcano_locks.protocol.renewal_plan import SeenQuota


class BlocksOfClient:
    """The holds by key and thread or task. One that was lost, or dropped without being left, no longer counts.

    `last_headers`: of the client's last response.
    """

    def __init__(self) -> None:
        self.last_headers: Mapping[str, str] = {}
        self._holds: dict[tuple[str, object], weakref.ref[Hold]] = {}

    def quota(self) -> SeenQuota | None:
        """The quota in the last response, if any (SDK-3)."""
        return seen_quota(self.last_headers)

    def check(self, key: str, entering: object) -> None:
        """Raise `LockHeldError` if the thread or task `entering` is in a block on `key`."""
        holding = self._holds.get((key, entering))
        hold = None if holding is None else holding()
        if hold is not None and hold.not_held_error() is None:
            raise LockHeldError(
                f"lock {key!r} is held by an outer block of the same thread or task: blocks are not re-entrant",
                key=key,
                expires_at=hold.lease.expires_at,
                fencing_token=hold.lease.fencing_token,
                code=LOCK_HELD,
            )

    def enter(self, key: str, entering: object, hold: Hold) -> None:
        """The block was entered."""
        self._holds[key, entering] = weakref.ref(hold)

    def leave(self, key: str, entering: object, hold: Hold) -> None:
        """The block is being left. If its hold was lost, an inner block may have taken its place."""
        holding = self._holds.get((key, entering))
        if holding is not None and holding() is hold:
            self._holds.pop((key, entering), None)
