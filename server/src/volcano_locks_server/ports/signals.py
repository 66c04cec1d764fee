"""The port of messages between nodes. They reduce delays; no lease depends on them."""

from collections.abc import Callable
from typing import Final, Protocol

SIGNAL_BYTES_MAX: Final = 1_500


class Signals(Protocol):
    """Best-effort messages between the nodes of one service: fast, not durable, possibly lost.

    Anyone with access to the store's engine can read, forge, repeat or suppress a message. Therefore a message is only
    a reason to look at the store, and holds no token and no digest.
    """

    @property
    def working(self) -> bool:
        """Whether messages are received now. While not, `on_missed` is called every few seconds."""
        ...

    def start(self, on_message: Callable[[bytes], None], on_missed: Callable[[], None]) -> None:
        """Start to receive; call once. Both callbacks run in this event loop and must not raise.

        `on_message` gets each message of every node, this one included, in the order in which a node published them.
        `on_missed` means that messages may have been lost: at the start, after a reconnect, a compaction or a full
        queue, and repeatedly while nothing can be received.
        """
        ...

    def publish(self, message: bytes) -> None:
        """Queue a message for every node; never waits. Queued messages are sent together.

        Raises ValueError for more than SIGNAL_BYTES_MAX bytes, or a newline. A full queue drops the oldest message, and
        then `on_missed` is called on every node. Messages published before `start` are sent after it.
        """
        ...

    async def close(self) -> None:
        """Send what is queued if that is quick, then stop sending and receiving."""
        ...
