"""Formats events for `watch`: as aligned lines, and as JSON (CLI-30).

A stream's widest name is not known in advance, so the columns grow with the names printed so far.
"""

import shutil
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from volcano_locks.http.event_stream import parse_event_data
from volcano_locks.protocol.arguments import parse_date
from volcano_locks.protocol.sse import SseEvent

from ..output import GAP, NAME_CHARACTERS_MIN, fit_widths, instant_text, total_width, truncate, visible

KINDS: Final = frozenset(
    {"acquired", "renewed", "released", "expired", "force_released", "waiting", "gave_up", "reset"}
)
PLAIN_REASONS: Final = frozenset({"free", "renewed", "released", "forced", "not_renewed", "held", "left"})
KIND_CHARACTERS: Final = max(map(len, KINDS))
TOKEN_CHARACTERS: Final = 13
UNKNOWN: Final = "-"


class EventRow(NamedTuple):
    """The columns of one event. A `reset` has no key. `why` is empty if it adds nothing; a force release has its
    reason there.
    """

    kind: str
    at: datetime
    key: str
    holder: str
    fencing_token: str
    why: str


def event_row(event: SseEvent) -> EventRow | None:
    """The columns of `event`; None if its kind is unknown (EVENT-2)."""
    body = parse_event_data(event)
    try:
        if event.kind not in KINDS:
            return None
        key, holder, token, why = (_text(body.get(name)) for name in ("key", "holder", "fencing_token", "why"))
        reason = visible(str(body["reason"])) if body.get("reason") else "" if why in PLAIN_REASONS else why
        return EventRow(event.kind, parse_date(body["at"]), key, holder, token, reason)
    except (KeyError, TypeError, ValueError):
        return None


def event_json(event: SseEvent) -> dict[str, Any]:
    """The event's kind and id with its data, as in the HTTP API."""
    return {"event": event.kind, "id": event.id, **parse_event_data(event)}


class EventFormatter:
    """Formats the lines of one watch."""

    def __init__(self, *, on_terminal: bool) -> None:
        self._on_terminal = on_terminal
        self._widths = [0, 0]
        self._why_width = 0

    def format(self, row: EventRow) -> str:
        """The next line. On a terminal the time has no date, and names and reasons are truncated to fit the width."""
        names = (row.key, row.holder)
        self._widths = [max(width, len(name)) for width, name in zip(self._widths, names, strict=True)]
        if row.kind != "force_released":  # its reason is a sentence, which must not narrow the names of later lines
            self._why_width = max(self._why_width, len(row.why))
        at = f"{row.at.astimezone(UTC):%H:%M:%SZ}" if self._on_terminal else instant_text(row.at)
        kind, token = row.kind.ljust(KIND_CHARACTERS), row.fencing_token.ljust(TOKEN_CHARACTERS)
        if self._on_terminal:
            others = total_width([len(at), len(kind), 0, 0, len(token), self._why_width])
            self._widths = fit_widths(self._widths, shutil.get_terminal_size().columns - others)
        cells = (truncate(name, width).ljust(width) for name, width in zip(names, self._widths, strict=True))
        line, why = GAP.join((at, kind, *cells, token)), row.why
        if self._on_terminal:
            why = truncate(why, max(shutil.get_terminal_size().columns - len(line) - len(GAP), NAME_CHARACTERS_MIN))
        return f"{line}{GAP}{why}".rstrip()


def _text(value: object) -> str:
    return UNKNOWN if value is None else visible(str(value))
