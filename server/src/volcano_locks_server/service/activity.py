"""What happened on this server in the last hour, minute by minute, for `GET /activity` (UI-11).

Counting must cost next to nothing: a request adds to two numbers of its project's current minute, and the minute is
known from its quota. All memory is bounded: PROJECTS_MAX projects, MINUTES minutes, CONTENDED_MAX locks for each half
hour. Past PROJECTS_MAX the project that was quiet for longest is forgotten.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from math import log
from typing import Final, NamedTuple

from ..ports.lock_store import RecordKey

MINUTES: Final = 60
PROJECTS_MAX: Final = 200
CONTENDED_MAX: Final = 100
SHOWN_MAX: Final = 10
_MINUTE_SECONDS: Final = 60
_HALF_HOUR_SECONDS: Final = 1_800
_MS_MIN: Final = 0.25
_STEP: Final = log(1.2)  # a percentile is at most a fifth too high

FORCED: Final = "forced"
"""The outcome of a force release that ended a lease, in place of `released`."""

_COUNTED: Final[Mapping[str, tuple[str, ...]]] = {
    "acquired": ("grants",),
    "taken_over": ("grants", "not_renewed"),
    "lock_held": ("contended",),
    "lock_ownership_lost": ("ownership_lost",),
    "lock_rate_limited": ("over_quota",),
    FORCED: ("forced",),
}
"""What an outcome adds to, besides `requests`."""
COUNTS: Final = (
    "requests",
    "grants",
    "contended",
    "hand_offs",
    "over_quota",
    "not_renewed",
    "forced",
    "ownership_lost",
)


class Times:
    """Durations in buckets that grow by a fifth each. Only used buckets take memory."""

    __slots__ = ("_buckets", "count")

    def __init__(self) -> None:
        self.count = 0
        self._buckets: Final[dict[int, int]] = {}

    def add(self, seconds: float) -> None:
        bucket = int(log(max(1.0, seconds * 1_000 / _MS_MIN)) / _STEP)
        self._buckets[bucket] = self._buckets.get(bucket, 0) + 1
        self.count += 1

    def add_all(self, other: "Times") -> None:
        """Add the durations of another."""
        for bucket, count in other._buckets.items():
            self._buckets[bucket] = self._buckets.get(bucket, 0) + count
        self.count += other.count

    def percentile_ms(self, percent: int) -> float | None:
        """The duration in ms that this share of all did not exceed, None if there is none."""
        left = self.count * percent / 100
        for bucket in sorted(self._buckets):
            left -= self._buckets[bucket]
            if left <= 0:
                return float(f"{_MS_MIN * 1.2 ** (bucket + 1):.3g}")
        return None


class Minute:
    """The counts of one minute, which ends at `ends_at` (epoch seconds)."""

    __slots__ = ("counts", "ends_at", "waits")

    def __init__(self, ends_at: int) -> None:
        self.ends_at: Final = ends_at
        self.counts: Final[dict[str, int]] = {}
        self.waits = Times()

    def count(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1


class _Contended:
    """The locks that were wanted most while they were held, in the current half hour and the one before."""

    __slots__ = ("_before", "_begins_at", "_now")

    def __init__(self) -> None:
        self._begins_at = 0
        self._before: dict[str, int] = {}
        self._now: dict[str, int] = {}

    def count(self, key: str, at_seconds: int) -> None:
        if at_seconds >= self._begins_at + _HALF_HOUR_SECONDS:
            self._turn(at_seconds)
        counts = self._now
        if key not in counts and len(counts) >= CONTENDED_MAX:  # the least wanted one makes room, and leaves its count
            least = min(counts, key=counts.__getitem__)
            counts[key] = counts.pop(least)
        counts[key] = counts.get(key, 0) + 1

    def top(self, at_seconds: int) -> list[tuple[str, int]]:
        """The most wanted locks of the last half hour to hour, with how often they were."""
        if at_seconds >= self._begins_at + _HALF_HOUR_SECONDS:
            self._turn(at_seconds)
        sums = {key: self._now.get(key, 0) + self._before.get(key, 0) for key in {**self._now, **self._before}}
        return sorted(sums.items(), key=lambda one: (-one[1], one[0]))[:SHOWN_MAX]

    def _turn(self, at_seconds: int) -> None:
        is_next = at_seconds < self._begins_at + 2 * _HALF_HOUR_SECONDS
        self._before, self._now = self._now if is_next else {}, {}
        self._begins_at = at_seconds - at_seconds % _HALF_HOUR_SECONDS


class _Project:
    """`current` is the last of its `minutes`."""

    __slots__ = ("contended", "current", "minutes", "requests_per_minute")

    def __init__(self) -> None:
        self.current = Minute(0)
        self.minutes: Final[deque[Minute]] = deque(maxlen=MINUTES)
        self.contended: Final = _Contended()
        self.requests_per_minute = 0


class ActivityReport(NamedTuple):
    """The minutes of the last hour, oldest first, each with the commits of the whole server. `requests_per_minute` and
    `contended` are of one project, None and empty for all of them together.
    """

    minutes: list[tuple[Minute, Times | None]]
    requests_per_minute: int | None
    contended: list[tuple[str, int]]


class Activity:
    """The activity of one server."""

    def __init__(self) -> None:
        self._projects: Final[dict[str, _Project]] = {}  # the one that was quiet for longest is first
        self._commits: Final[deque[tuple[int, Times]]] = deque(maxlen=MINUTES)

    def request(self, lock: RecordKey, outcome: str, ends_at: int, requests_per_minute: int) -> None:
        """Count a response to a lock request that counted against a quota, whose minute ends at `ends_at`."""
        project = self._project(lock.project_id, ends_at)
        project.requests_per_minute = requests_per_minute
        counts = project.current.counts
        counts["requests"] = counts.get("requests", 0) + 1
        names = _COUNTED.get(outcome)
        if names is None:
            return
        for name in names:
            counts[name] = counts.get(name, 0) + 1
        if outcome == "lock_held":
            project.contended.count(lock.key, ends_at - _MINUTE_SECONDS)

    def waited(self, project_id: str, outcome: str, ends_at: int, seconds: float) -> None:
        """Count the end of an acquire that could wait; `queued` counts those that did."""
        minute = self._project(project_id, ends_at).current
        minute.count("requests")
        for name in _COUNTED.get(outcome, ()):
            if name != "contended":
                minute.count(name)
        if "grants" in _COUNTED.get(outcome, ()):
            minute.waits.add(seconds)

    def queued(self, lock: RecordKey, now_ms: int) -> None:
        """Count an acquire that found the lock held and waits."""
        ends_at = _end_of(now_ms)
        project = self._project(lock.project_id, ends_at)
        project.current.count("contended")
        project.contended.count(lock.key, ends_at - _MINUTE_SECONDS)

    def handed_off(self, lock: RecordKey, now_ms: int) -> None:
        """Count a grant to a waiter."""
        self._project(lock.project_id, _end_of(now_ms)).current.count("hand_offs")

    def committed(self, seconds: float, now_ms: int) -> None:
        """Count a batch by how long its commit took."""
        ends_at = _end_of(now_ms)
        if not self._commits or self._commits[-1][0] < ends_at:
            self._commits.append((ends_at, Times()))
        self._commits[-1][1].add(seconds)

    def report(self, project_id: str | None, now_ms: int) -> ActivityReport:
        """The last hour of one project, or of all together."""
        commits = dict(self._commits)
        ends = range(_end_of(now_ms) - (MINUTES - 1) * _MINUTE_SECONDS, _end_of(now_ms) + 1, _MINUTE_SECONDS)
        one = None if project_id is None else self._projects.get(project_id)
        projects = self._projects.values() if project_id is None else () if one is None else (one,)
        sums = {ends_at: Minute(ends_at) for ends_at in ends}
        for minute in (minute for project in projects for minute in project.minutes):
            if minute.ends_at in sums:
                _add(sums[minute.ends_at], minute)
        top = [] if one is None else one.contended.top(_end_of(now_ms) - _MINUTE_SECONDS)
        limit = None if one is None else one.requests_per_minute
        return ActivityReport([(sums[ends_at], commits.get(ends_at)) for ends_at in ends], limit, top)

    def _project(self, project_id: str, ends_at: int) -> _Project:
        """The project in its current minute. A request whose clock is a moment behind counts in the newer minute."""
        project = self._projects.get(project_id)
        if project is not None and project.current.ends_at >= ends_at:
            return project
        if project is not None:
            del self._projects[project_id]  # to the end of the order
        else:
            if len(self._projects) >= PROJECTS_MAX:
                del self._projects[next(iter(self._projects))]
            project = _Project()
        self._projects[project_id] = project
        project.minutes.append(current := Minute(ends_at))
        project.current = current
        return project


def times_ms(all_times: Iterable[Times]) -> dict[str, float | None] | None:
    """The median and the 95th percentile in ms, None if there are no times."""
    together = Times()
    for times in all_times:
        together.add_all(times)
    if not together.count:
        return None
    return {"p50": together.percentile_ms(50), "p95": together.percentile_ms(95)}


def _add(total: Minute, minute: Minute) -> None:
    for name, count in minute.counts.items():
        total.counts[name] = total.counts.get(name, 0) + count
    total.waits.add_all(minute.waits)


def _end_of(now_ms: int) -> int:
    """The end of the minute, in epoch seconds."""
    return now_ms // 60_000 * _MINUTE_SECONDS + _MINUTE_SECONDS
