"""What the doctor finds in a store: one fact a finding, and what to do where it is not as it should be."""

from collections.abc import Awaitable, Callable
from statistics import median
from time import perf_counter
from typing import Final, NamedTuple

SKEW_MS_MAX: Final = 1_000
SLOW_MS_MAX: Final = 500.0
TRIES: Final = 3


class Finding(NamedTuple):
    """`about` names what was looked at, `found` says what was seen, `advice` what to do: empty where it is good."""

    about: str
    found: str
    advice: str = ""

    @property
    def good(self) -> bool:
        return not self.advice


async def latency(write: Callable[[], Awaitable[object]], if_slow: str, *, tries: int = TRIES) -> Finding:
    """How long a durable write takes: the middle one of some tries."""
    took = []
    for _ in range(tries):
        began = perf_counter()
        await write()
        took.append((perf_counter() - began) * 1_000)
    found = f"a durable write takes {median(took):.1f} ms"
    return Finding("latency", found, if_slow if median(took) > SLOW_MS_MAX else "")


def schema(version: int, newest: int) -> Finding:
    """Whether a schema is the one this release works with; the version is not newer."""
    if version == newest:
        return Finding("schema", f"version {version}, the newest that this release knows")
    has = f"version {version}, this release brings version {newest}" if version else "there is none yet"
    return Finding("schema", has, "run volcano-locks migrate; serve does the same at its start")


def clock(skew_ms: float, whose: str, matters: str) -> Finding:
    """Whether this machine's clock, `skew_ms` ahead of another, agrees with it."""
    way = "ahead of" if skew_ms > 0 else "behind"
    found = f"this machine's clock is {abs(skew_ms) / 1_000:.1f} s {way} {whose}"
    if abs(skew_ms) <= SKEW_MS_MAX:
        return Finding("clock", found)
    return Finding("clock", found, f"set both clocks by NTP: {matters}")
