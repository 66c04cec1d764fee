"""Durations as people write them: `30`, `30s`, `5m`, `2h`, `90d`. Whole seconds, nothing else."""

import re
from typing import Final

TTL_SECONDS_MIN: Final = 5
TTL_SECONDS_MAX: Final = 7_776_000
WAIT_SECONDS_MAX: Final = 7_776_000
KEEP_OLD_SECONDS_MAX: Final = 604_800
KEY_LIFE_SECONDS_MAX: Final = 3_650 * 86_400

_UNIT_SECONDS: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION: Final = re.compile(r"([0-9]{1,12})([smhd]?)", re.ASCII)


def parse_duration(text: str) -> int:
    """Seconds, or ValueError with a sentence that names the form and what came."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text[:40]!r} is not a duration: write whole numbers like 30, 30s, 5m, 2h or 90d")
    count, unit = match.groups()
    return int(count) * _UNIT_SECONDS[unit]


def duration_text(seconds: int) -> str:
    """`seconds` in its largest whole unit: 90 is `90s`, 300 is `5m`, 86400 is `1d`."""
    for unit in "dhm":
        if seconds and seconds % _UNIT_SECONDS[unit] == 0:
            return f"{seconds // _UNIT_SECONDS[unit]}{unit}"
    return f"{seconds}s"
