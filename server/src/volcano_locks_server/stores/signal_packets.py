"""Packs the messages between nodes into packets of plain text, and parses them again.

    1 9f86d081884c 17 whole
    {"event":"released",...
    ...

The header names the format, the node and the packet's number at that node, and says whether messages were lost
before it. Each further line is one message. Everything but printable ASCII, and `%`, `'` and the backslash, is
percent-encoded, so a packet passes unchanged through any engine's text type, encoding and quoting.

A client with write access to the engine can forge packets. Text that does not parse is ignored, as are packets and
messages above their limits of size, and a message is only ever a reason to recheck.
"""

import asyncio
import re
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple
from urllib.parse import quote_from_bytes, unquote_to_bytes
from uuid import uuid4

from ..ports.signals import SIGNAL_BYTES_MAX

SIGNALS_QUEUED_MAX: Final = 10_000
PACKET_CHARACTERS_MAX: Final = 65_536
_PLAIN: Final = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) not in "%'\\")
_HEADER: Final = re.compile(r"1 ([0-9a-f]{12}) ([0-9]{1,15}) (whole|lost)", re.ASCII)


class SignalPacket(NamedTuple):
    """A packet that was received. `lost` means that its node lost messages before these."""

    node: str
    number: int
    lost: bool
    messages: list[bytes]

    def deliver(self, on_message: Callable[[bytes], None], on_missed: Callable[[], None]) -> None:
        """Call `on_missed` if messages were lost, then `on_message` with each message in order."""
        if self.lost:
            on_missed()
        for message in self.messages:
            on_message(message)


class SignalOutbox:
    """The messages that one node has not sent yet: at most SIGNALS_QUEUED_MAX, in packets of `packet_bytes_max`."""

    def __init__(self, packet_bytes_max: int) -> None:
        self.node: Final = uuid4().hex[:12]
        self.number = 0
        """The number of the latest packet."""
        self._packet_bytes_max: Final = packet_bytes_max
        self._lines: Final[deque[str]] = deque()
        self._has_lost = False

    def __bool__(self) -> bool:
        """Whether there is something to send: messages, or a notice that messages were lost."""
        return bool(self._lines) or self._has_lost

    def put(self, message: bytes) -> None:
        """Queue a message; a full queue drops its oldest. Raises ValueError as `Signals.publish` says."""
        if len(message) > SIGNAL_BYTES_MAX:
            raise ValueError(f"a signal has up to {SIGNAL_BYTES_MAX} bytes; got {len(message)}")
        if b"\n" in message:
            raise ValueError("a signal is one line; got one with a newline")
        if len(self._lines) >= SIGNALS_QUEUED_MAX:
            self._lines.popleft()
            self._has_lost = True
        self._lines.append(quote_from_bytes(message, _PLAIN))

    def packet(self) -> str:
        """Take the next packet off the queue; it has no messages if the queue is empty."""
        self.number += 1
        lines = [f"1 {self.node} {self.number} {'lost' if self._has_lost else 'whole'}"]
        size = len(lines[0])
        while self._lines and size + 1 + len(self._lines[0]) <= self._packet_bytes_max:
            size += 1 + len(self._lines[0])
            lines.append(self._lines.popleft())
        self._has_lost = False
        return "\n".join(lines)

    def lose(self) -> None:
        """Mark the latest packet as perhaps lost, so that the next one says so."""
        self._has_lost = True


def parse_packet(text: str) -> SignalPacket | None:
    """The packet in `text`, or None if it is not one."""
    if len(text) > PACKET_CHARACTERS_MAX:
        return None
    header, *lines = text.split("\n")
    match = _HEADER.fullmatch(header)
    if match is None or not text.isascii():
        return None
    messages = [message for message in map(unquote_to_bytes, lines) if len(message) <= SIGNAL_BYTES_MAX]
    return SignalPacket(match[1], int(match[2]), match[3] == "lost", messages)


class PacketSignals:
    """What the `Signals` of both engines share: the outbox, and the delivery of the packets that they receive."""

    def __init__(self, packet_bytes_max: int) -> None:
        self._outbox: Final = SignalOutbox(packet_bytes_max)
        self._wake: Final = asyncio.Event()
        self._on_message: Callable[[bytes], None]
        self._on_missed: Callable[[], None]
        self._echoed = 0  # the number of this node's latest packet that came back
        self._is_closed = False

    def publish(self, message: bytes) -> None:
        if not self._is_closed:
            self._outbox.put(message)
            self._wake.set()

    def _deliver(self, text: str, came_back: asyncio.Event) -> None:
        """Deliver a packet; `came_back` is set if it is one of this node."""
        packet = parse_packet(text)
        if packet is not None:
            self._deliver_packet(packet, came_back)

    def _deliver_packet(self, packet: SignalPacket, came_back: asyncio.Event) -> None:
        if packet.node == self._outbox.node:
            if packet.number > self._outbox.number:
                return  # forged
            self._echoed = packet.number
            came_back.set()
        if not self._is_closed:
            packet.deliver(self._on_message, self._on_missed)
