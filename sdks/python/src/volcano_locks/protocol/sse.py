"""Server-sent events from the bytes of their stream: what the service sends (lines end in LF or CRLF), no more.

Not promised: the third line end that the format knows, a lone CR.
"""

import re
from typing import NamedTuple

BLOCK_BYTES_MAX = 65_536

_ID = re.compile(r"[!-~]{1,128}")


class Event(NamedTuple):
    """One block. `kind` and `data` are empty where it told only its id; `id` is None if it has none to send back."""

    kind: str
    data: str
    id: str | None


class TooLongError(Exception):
    """A block has more than BLOCK_BYTES_MAX."""


class EventReader:
    """Reads one stream."""

    def __init__(self) -> None:
        self._rest = b""
        self._fields: dict[str, str] = {}
        self._length = 0

    def take(self, data: bytes) -> list[Event]:
        """The events that `data` completes. Comments are none. Raises TooLongError."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        events = [event for event in map(self._line, lines) if event is not None]
        self._check(self._length + len(self._rest))
        return events

    def _line(self, line: bytes) -> Event | None:
        text = line.removesuffix(b"\r").decode(errors="replace")
        if not text:
            fields, self._fields, self._length = self._fields, {}, 0
            return _event(fields) if fields else None
        self._length += len(line)
        self._check(self._length)
        name, _, value = text.partition(":")
        if name:
            value = value.removeprefix(" ")
            self._fields[name] = f"{self._fields[name]}\n{value}" if name == "data" and name in self._fields else value
        return None

    def _check(self, length: int) -> None:
        if length > BLOCK_BYTES_MAX:
            raise TooLongError(f"an event longer than {BLOCK_BYTES_MAX} bytes")


def _event(fields: dict[str, str]) -> Event:
    told = fields.get("id", "")
    return Event(fields.get("event", ""), fields.get("data", ""), told if _ID.fullmatch(told) else None)
