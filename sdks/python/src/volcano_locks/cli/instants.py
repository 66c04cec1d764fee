"""Parses times as people write them: `03:12`, `yesterday 03:12`, `2026-07-20 03:12` (CLI-38)."""

import re
from datetime import datetime, timedelta
from typing import Final

_CLOCK: Final = re.compile(r"(?:(today|yesterday) )?([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))?", re.ASCII)


def parse_instant(text: str, now: datetime) -> datetime:
    """The instant. A time without a day is the last one before `now`, which has a zone; a date without a zone is local.

    Raises ValueError with the accepted forms and the value received.
    """
    stripped = " ".join(text.split())
    match = _CLOCK.fullmatch(stripped.lower())
    try:
        if match is None:
            return datetime.fromisoformat(stripped).astimezone()
        day, hour, minute, second = match.groups()
        clock = {"hour": int(hour), "minute": int(minute), "second": int(second or 0), "microsecond": 0}
        instant = _local(now, 1 if day == "yesterday" else 0, clock)
        return _local(now, 1, clock) if day is None and instant > now else instant
    except (ValueError, OverflowError):
        forms = '03:12, "yesterday 03:12", "2026-07-20 03:12" or 2026-07-20T03:12:00Z'
        raise ValueError(f"{text[:40]!r} is not a time: use {forms}") from None


def _local(now: datetime, days_ago: int, clock: dict[str, int]) -> datetime:
    """That clock time on a day; without a zone first, because the day may have another offset than today."""
    day = now.replace(tzinfo=None) - timedelta(days=days_ago)
    return day.replace(**clock).astimezone()  # type: ignore[arg-type]
