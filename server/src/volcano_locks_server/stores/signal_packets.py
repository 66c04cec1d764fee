"""Messages between nodes on their way: gathered into packets of plain text, and taken out again.

    1 9f86d081884c 17 whole
    {"event":"released",...
    ...

The first line names this form, the node, the packet's number at that node, and whether something was lost before it.
A message a line; what is not plain ASCII, and `%`, `'` and the backslash, are percent-encoded, so a packet passes
through any engine's text, in any encoding and quotation marks, as it is.

Whoever may write to the engine can make packets up. What cannot be read as one is no packet; what it says when it can
be read is only a reason to look.
"""

import re
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple
from urllib.parse import quote_from_bytes, unquote_to_bytes
from uuid import uuid4

from ..ports.signals import SIGNAL_BYTES_MAX

SIGNALS_QUEUED_MAX: Final = 10_000
_PLAIN: Final = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) not in "%'\\")
_HEAD: Final = re.compile(r"1 ([0-9a-f]{12}) ([0-9]{1,15}) (whole|lost)", re.ASCII)


class Packet(NamedTuple):
    """A packet that was heard. `lost`: its node lost messages before these."""

    node: str
    number: int
    lost: bool
    messages: list[bytes]

    def deliver(self, heard: Callable[[bytes], None], missed: Callable[[], None]) -> None:
        """Pass on what it says, in its order."""
        if self.lost:
            missed()
        for message in self.messages:
            heard(message)


class Outbox:
    """What one node has still to tell, up to SIGNALS_QUEUED_MAX messages, in packets of up to `packet_bytes_max`."""

    def __init__(self, packet_bytes_max: int) -> None:
        self.node: Final = uuid4().hex[:12]
        self.number = 0
        """Of the packet that was made last."""
        self._packet_bytes_max: Final = packet_bytes_max
        self._lines: Final[deque[str]] = deque()
        self._has_lost = False

    def __bool__(self) -> bool:
        """Whether there is something to tell, be it only that something was lost."""
        return bool(self._lines) or self._has_lost

    def put(self, message: bytes) -> None:
        """Queue it, at the cost of the oldest where there is no room. ValueError as `Signals.tell` says."""
        if len(message) > SIGNAL_BYTES_MAX:
            raise ValueError(f"a signal has up to {SIGNAL_BYTES_MAX} bytes; got {len(message)}")
        if b"\n" in message:
            raise ValueError("a signal is one line; got one with a newline")
        if len(self._lines) >= SIGNALS_QUEUED_MAX:
            self._lines.popleft()
            self._has_lost = True
        self._lines.append(quote_from_bytes(message, _PLAIN))

    def packet(self) -> str:
        """The next one, without messages if none is queued. What it carries is queued no more."""
        self.number += 1
        lines = [f"1 {self.node} {self.number} {'lost' if self._has_lost else 'whole'}"]
        size = len(lines[0])
        while self._lines and size + 1 + len(self._lines[0]) <= self._packet_bytes_max:
            size += 1 + len(self._lines[0])
            lines.append(self._lines.popleft())
        self._has_lost = False
        return "\n".join(lines)

    def lose(self) -> None:
        """The last packet may not have arrived: the next one says so."""
        self._has_lost = True


def unpacked(text: str) -> Packet | None:
    """The packet that this text is; None where it is none."""
    head, *lines = text.split("\n")
    found = _HEAD.fullmatch(head)
    if found is None or not text.isascii():
        return None
    return Packet(found[1], int(found[2]), found[3] == "lost", [unquote_to_bytes(line) for line in lines])
