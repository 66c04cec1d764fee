"""Parses and formats durations: `30`, `30s`, `5m`, `2h`, `90d`. Whole seconds only (CLI-3)."""

import re
from typing import Final

_UNIT_SECONDS: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION: Final = re.compile(r"([0-9]{1,12})([smhd]?)", re.ASCII)


def parse_duration(text: str) -> int:
    """Seconds. Raises ValueError with the accepted form and the value received."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text[:40]!r} is not a duration: use a whole number like 30, 30s, 5m, 2h or 90d")
    count, unit = match.groups()
    return int(count) * _UNIT_SECONDS[unit]


def duration_text(seconds: int) -> str:
    """`seconds` in its largest whole unit: 90 is `90s`, 300 is `5m`, 86400 is `1d`."""
    for unit in "dhm":
        if seconds and seconds % _UNIT_SECONDS[unit] == 0:
            return f"{seconds // _UNIT_SECONDS[unit]}{unit}"
    return f"{seconds}s"


def span_text(seconds: float) -> str:
    """A rounded-down time span in at most two units: `12 s`, `2m 5s`, `3d 4h`. Negative spans are `0 s`."""
    left = max(int(seconds), 0)
    if left < 60:
        return f"{left} s"
    for unit, smaller in ("dh", "hm", "ms"):
        if left >= _UNIT_SECONDS[unit]:
            count, rest = divmod(left, _UNIT_SECONDS[unit])
            return f"{count}{unit} {rest // _UNIT_SECONDS[smaller]}{smaller}"
    raise AssertionError
