"""The port of messages between nodes. They shorten a delay; no lease depends on them."""

from collections.abc import Callable
from typing import Final, Protocol

SIGNAL_BYTES_MAX: Final = 1_500


class Signals(Protocol):
    """What the nodes of one service tell each other: soon, not durably, and maybe not at all.

    A message may be read, made up, repeated or kept back by whoever may use the store's engine: it is a reason to
    look, never a truth, and holds no token and no digest.
    """

    @property
    def working(self) -> bool:
        """Whether messages are heard now. While not, `missed` is told every few seconds: look by yourself."""
        ...

    def start(self, heard: Callable[[bytes], None], missed: Callable[[], None]) -> None:
        """Begin to hear; once. Both are called in this event loop, and raise nothing.

        `heard` gets each message of every node, this one's too, those of one node in the order they were told.
        `missed` says that some may be lost: at the begin, after a reconnect, a compaction, a full queue, or while
        nothing can be heard.
        """
        ...

    def tell(self, message: bytes) -> None:
        """Queue a message for every node; never waits. Many go out together.

        ValueError for one of more than SIGNAL_BYTES_MAX bytes, or with a newline. A full queue drops the oldest, and
        everybody is told `missed` as soon as they can be. What is told before `start` waits for it.
        """
        ...

    async def close(self) -> None:
        """Send what is queued if that goes quickly, then hear and tell nothing more."""
        ...
