"""Cuts the bytes of a connection into parts of which each belongs to one message only.

A head and a chunked body end with a blank line, so they are cut after each one. A body of declared length is cut at its
end. Therefore the parser never reads a byte of the next request before the last one has its response.
"""

from typing import Final

_BLANK_LINE: Final = b"\r\n\r\n"
_TAIL_BYTES: Final = len(_BLANK_LINE) - 1


class MessageParts:
    """The position in the messages of one connection. `body_bytes_left` is set when a head declares a length."""

    __slots__ = ("_tail", "body_bytes_left")

    def __init__(self) -> None:
        self.body_bytes_left = 0
        self._tail = b""  # the last bytes of a part without a blank line, where one may begin

    def end(self, data: bytes | bytearray, position: int, end: int) -> int:
        """Where the part ends that begins at `position`, at most `end`."""
        if self.body_bytes_left:
            length = min(self.body_bytes_left, end - position)
            self.body_bytes_left -= length
            return position + length
        tail, self._tail = self._tail, b""
        if tail:
            cut = (tail + data[position : min(position + _TAIL_BYTES, end)]).find(_BLANK_LINE)
            if cut >= 0:
                return position + cut + len(_BLANK_LINE) - len(tail)
        found = data.find(_BLANK_LINE, position, end)
        if found >= 0:
            return found + len(_BLANK_LINE)
        self._tail = (tail + data[max(position, end - _TAIL_BYTES) : end])[-_TAIL_BYTES:]
        return end
