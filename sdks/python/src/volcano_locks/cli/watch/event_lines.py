"""Events as `watch` prints them: as lines that line up as far as they come, and as JSON (CLI-30).

A stream does not know its widest name in advance, so the columns grow with what was printed.
"""

import shutil
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from volcano_locks.http.event_stream import parse_event_data
from volcano_locks.protocol.arguments import parse_date
from volcano_locks.protocol.sse import SseEvent

from ..output import GAP, cut, fitting, instant_text, total_width

KINDS: Final = frozenset(
    {"acquired", "renewed", "released", "expired", "force_released", "waiting", "gave_up", "reset"}
)
PLAIN_REASONS: Final = frozenset({"free", "renewed", "released", "forced", "not_renewed", "held", "left"})
KIND_CHARACTERS: Final = max(map(len, KINDS))
TOKEN_CHARACTERS: Final = 13
UNKNOWN: Final = "-"


class Told(NamedTuple):
    """One event. A `reset` is about no lock."""

    kind: str
    at: datetime
    key: str
    holder: str
    fencing_token: str
    why: str


def told_of(event: SseEvent) -> Told | None:
    """What it tells; None if it is none of those known (EVENT-2)."""
    body = parse_event_data(event)
    try:
        if event.kind not in KINDS:
            return None
        key, holder, token, why = (_text(body.get(name)) for name in ("key", "holder", "fencing_token", "why"))
        return Told(event.kind, parse_date(body["at"]), key, holder, token, "" if why in PLAIN_REASONS else why)
    except (KeyError, TypeError, ValueError):
        return None


def json_of(event: SseEvent) -> dict[str, Any]:
    """The event's name and id beside its data, all as on the wire."""
    return {"event": event.kind, "id": event.id, **parse_event_data(event)}


class Lines:
    """The lines of one watch."""

    def __init__(self, *, on_terminal: bool) -> None:
        self._on_terminal = on_terminal
        self._widths = [0, 0]
        self._why_width = 0

    def line(self, told: Told) -> str:
        """The next one. On a terminal it tells the time without the day, and its names are cut to the width."""
        names = (told.key, told.holder)
        self._widths = [max(width, len(name)) for width, name in zip(self._widths, names, strict=True)]
        self._why_width = max(self._why_width, len(told.why))
        at = f"{told.at.astimezone(UTC):%H:%M:%SZ}" if self._on_terminal else instant_text(told.at)
        kind, token = told.kind.ljust(KIND_CHARACTERS), told.fencing_token.ljust(TOKEN_CHARACTERS)
        if self._on_terminal:
            others = total_width([len(at), len(kind), 0, 0, len(token), self._why_width])
            self._widths = fitting(self._widths, shutil.get_terminal_size().columns - others)
        cells = (cut(name, width).ljust(width) for name, width in zip(names, self._widths, strict=True))
        return GAP.join((at, kind, *cells, token, told.why)).rstrip()


def _text(value: object) -> str:
    """Of what comes from the network nothing reaches the terminal but what can be seen."""
    text = UNKNOWN if value is None else str(value)
    return text if text.isprintable() else ascii(text)
