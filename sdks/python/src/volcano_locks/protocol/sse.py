"""Parses server-sent events from the bytes of a stream, as this service sends them: lines end in LF or CRLF.

Limit: a lone CR, which the format also allows, does not end a line.
"""

import re
from typing import NamedTuple

EVENT_BYTES_MAX = 65_536

_ID = re.compile(r"[!-~]{1,128}")


class SseEvent(NamedTuple):
    """One event. `kind` and `data` are empty if it has only an id; `id` is None if it must not be sent back."""

    kind: str
    data: str
    id: str | None


class EventTooLongError(Exception):
    """An event is longer than EVENT_BYTES_MAX."""


class SseParser:
    """Parses one stream."""

    def __init__(self) -> None:
        self._partial_line = b""
        self._fields: dict[str, str] = {}
        self._event_length = 0

    def feed(self, data: bytes) -> list[SseEvent]:
        """Return the events that `data` completes, without comments. Raises EventTooLongError."""
        *lines, self._partial_line = (self._partial_line + data).split(b"\n")
        events = [event for event in map(self._parse_line, lines) if event is not None]
        self._check_length(self._event_length + len(self._partial_line))
        return events

    def _parse_line(self, line: bytes) -> SseEvent | None:
        text = line.removesuffix(b"\r").decode(errors="replace")
        if not text:
            fields, self._fields, self._event_length = self._fields, {}, 0
            return _parse_event(fields) if fields else None
        self._event_length += len(line)
        self._check_length(self._event_length)
        name, _, value = text.partition(":")
        if name:
            value = value.removeprefix(" ")
            self._fields[name] = f"{self._fields[name]}\n{value}" if name == "data" and name in self._fields else value
        return None

    def _check_length(self, length: int) -> None:
        if length > EVENT_BYTES_MAX:
            raise EventTooLongError(f"an event longer than {EVENT_BYTES_MAX} bytes")


def _parse_event(fields: dict[str, str]) -> SseEvent:
    event_id = fields.get("id", "")
    return SseEvent(fields.get("event", ""), fields.get("data", ""), event_id if _ID.fullmatch(event_id) else None)
