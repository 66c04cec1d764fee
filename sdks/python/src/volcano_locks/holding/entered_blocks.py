"""The blocks that threads or tasks of one client are in, so that a block inside a block on its key is refused (SDK-26).

It would wait for its own thread or task for ever.
"""

import weakref

from volcano_locks.errors import LOCK_HELD, LockHeldError
from volcano_locks.holding.hold import Hold


class EnteredBlocks:
    """By key and thread or task. A hold that was lost, or dropped without being left, no longer counts."""

    def __init__(self) -> None:
        self._holds: dict[tuple[str, object], weakref.ref[Hold]] = {}

    def check(self, key: str, entering: object) -> None:
        """Raise `LockHeldError` if the thread or task `entering` is in a block on `key`."""
        holding = self._holds.get((key, entering))
        hold = None if holding is None else holding()
        if hold is not None and hold.not_held_error() is None:
            raise LockHeldError(
                f"lock {key!r} is held by an outer block of the same thread or task: blocks are not re-entrant",
                code=LOCK_HELD,
            )

    def enter(self, key: str, entering: object, hold: Hold) -> None:
        """The block was entered."""
        self._holds[key, entering] = weakref.ref(hold)

    def leave(self, key: str, entering: object) -> None:
        """The block is being left."""
        self._holds.pop((key, entering), None)
