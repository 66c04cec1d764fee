"""The findings of `volcano-locks doctor`: one fact each, with advice if something is wrong."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from statistics import median
from time import perf_counter
from typing import Final, NamedTuple

from ..rules.errors import DamagedRecordError

DAMAGED_SHOWN_MAX: Final = 20
SKEW_MS_MAX: Final = 1_000
SLOW_MS_MAX: Final = 500.0
TRIES: Final = 3


class HealthFinding(NamedTuple):
    """`about` names the subject, `found` states the fact, `advice` says what to do; it is empty if all is well."""

    about: str
    found: str
    advice: str = ""

    @property
    def good(self) -> bool:
        return not self.advice


async def latency_finding(write: Callable[[], Awaitable[object]], if_slow: str, *, tries: int = TRIES) -> HealthFinding:
    """The median latency of `tries` durable writes; `if_slow` is the advice for a slow store."""
    latencies_ms = []
    for _ in range(tries):
        began = perf_counter()
        await write()
        latencies_ms.append((perf_counter() - began) * 1_000)
    median_ms = median(latencies_ms)
    found = f"a durable write takes {median_ms:.1f} ms"
    return HealthFinding("latency", found, if_slow if median_ms > SLOW_MS_MAX else "")


async def record_findings(damaged: AsyncIterator[DamagedRecordError]) -> Sequence[HealthFinding]:
    """One finding for each damaged record, up to DAMAGED_SHOWN_MAX, or one that there is none (LEASE-18)."""
    findings: list[HealthFinding] = []
    count = 0
    async for error in damaged:
        count += 1
        if count <= DAMAGED_SHOWN_MAX:
            found = f"{error.record} is damaged: {error.reason}"
            findings.append(HealthFinding("records", found, f"volcano-locks doctor --repair {error.record}"))
    if count > DAMAGED_SHOWN_MAX:
        found = f"{count} records are damaged, {count - DAMAGED_SHOWN_MAX} more than shown"
        findings.append(HealthFinding("records", found, "repair those, or restore a backup, then run this again"))
    return findings or [HealthFinding("records", "all records can be decoded")]


def schema_finding(version: int, newest: int) -> HealthFinding:
    """Whether the schema, which is at most `newest`, is the version that this release uses."""
    if version == newest:
        return HealthFinding("schema", f"version {version}, the newest that this release knows")
    found = f"version {version}, this release brings version {newest}" if version else "there is none yet"
    return HealthFinding("schema", found, "run volcano-locks migrate; serve does the same when it starts")


def clock_finding(skew_ms: float, reference: str, consequence: str) -> HealthFinding:
    """Whether this machine's clock, which is `skew_ms` ahead of `reference`, agrees with it."""
    direction = "ahead of" if skew_ms > 0 else "behind"
    found = f"this machine's clock is {abs(skew_ms) / 1_000:.1f} s {direction} {reference}"
    if abs(skew_ms) <= SKEW_MS_MAX:
        return HealthFinding("clock", found)
    return HealthFinding("clock", found, f"set both clocks by NTP: {consequence}")
