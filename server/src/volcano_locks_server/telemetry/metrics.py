"""Metrics for Prometheus. Counting is an addition in a dictionary; the text of a scrape is built from the counts.

All methods, `text` included, must be called on the server's event loop. A scrape takes well under a millisecond of it.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Final, Literal, NamedTuple, Protocol

from ..rules.shares import Budget

SECONDS_BUCKETS: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_STORE_COUNTS: Final = {
    "round_trips": "Requests to the store over the network",
    "conflicts": "Updates that conflicted with a write of another node",
    "retries": "Requests and updates that were retried",
    "connects": "Connections opened to the store, including switches to another of its servers",
}
GRANTS: Final = frozenset({"acquired", "taken_over", "repeated"})
PROJECTS_MAX: Final = 100
OTHER_PROJECTS: Final = "(other)"
SIZE_BUCKETS: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0)


# The suffix, the labels, and the value of one number of a metric. The labels are written `name="value",…`; their values
# are a few words of the server.
Sample = tuple[str, str, float]


class FileCounts(Protocol):
    """The counts of a store that is a file."""

    @property
    def log_bytes(self) -> int: ...
    @property
    def checkpoint_failures(self) -> int: ...


class Histogram:
    """Counts of observations by bucket, and their sum."""

    __slots__ = ("_le", "bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds: Final = bounds
        self.counts: Final = [0] * (len(bounds) + 1)
        self.total = 0.0
        self._le: Final = [f'le="{bound}"' for bound in (*bounds, "+Inf")]

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def samples(self, labels: str = "") -> Iterator[Sample]:
        """The cumulative counts by upper bound, the count and the sum."""
        cumulative = 0
        for le, count in zip(self._le, self.counts, strict=True):
            cumulative += count
            yield "_bucket", f"{le},{labels}" if labels else le, cumulative
        yield "_count", labels, cumulative
        yield "_sum", labels, self.total


class Family(NamedTuple):
    """One metric with its samples."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    meaning: str
    samples: Iterable[Sample]

    def lines(self, label: str) -> Iterator[str]:
        """The lines of the Prometheus text format, with this label on every sample if it is not empty."""
        name = self.name
        yield f"# HELP {name} {self.meaning}\n# TYPE {name} {self.kind}\n"
        for suffix, labels, value in self.samples:
            both = f"{labels},{label}" if labels and label else labels or label
            yield f"{name}{suffix}{{{both}}} {float(value)}\n" if both else f"{name}{suffix} {float(value)}\n"


class Metrics:
    """All metrics of one server. No label holds the name of a lock.

    A label holds the name of a project only if `per_project`: the first PROJECTS_MAX projects have counters of their
    own, all others share OTHER_PROJECTS.

    `worker` is set if several workers share a port, and is then a label of every metric: a scrape reaches any of them.
    """

    def __init__(
        self,
        *,
        log_lines_dropped: Callable[[], int] = lambda: 0,
        budgets: Callable[[], Iterable[Budget]] = lambda: (),
        worker: int | None = None,
        per_project: bool = False,
    ) -> None:
        self._budgets: Final = budgets
        self.per_project: Final = per_project
        self._project_labels: Final[dict[str, str]] = {}
        self.project_requests: Final[Counter[tuple[str, str]]] = Counter()
        self._worker: Final = worker
        self.requests: Final[Counter[tuple[str, str]]] = Counter()
        self.request_seconds: Final = defaultdict[str, Histogram](lambda: Histogram(SECONDS_BUCKETS))
        self.store_errors: Final[Counter[str]] = Counter()
        self.batch_size: Final = Histogram(SIZE_BUCKETS)
        self.commit_seconds: Final = Histogram(SECONDS_BUCKETS)
        self.waits: Final[Counter[str]] = Counter()
        self.wait_seconds: Final = Histogram((*SECONDS_BUCKETS, 30.0, 60.0))
        self.waiters: Callable[[], int] = lambda: 0
        self.watchers: Callable[[], int] = lambda: 0
        self.quota_refusals = 0
        self.failed_credentials = 0
        self.delayed_credentials = 0
        self.connections: Callable[[], int] = lambda: 0
        self.certificate_expires_seconds: int | None = None
        self.store_counts: Callable[[], Mapping[str, int]] = dict
        self.file: FileCounts | None = None
        self._log_lines_dropped: Final = log_lines_dropped

    def request(self, operation: str, outcome: str, seconds: float) -> None:
        """Count a response to a lock request."""
        self.requests[operation, outcome] += 1
        self.request_seconds[operation].observe(seconds)

    def project_request(self, project_id: str, name: str, outcome: str) -> None:
        """Count a response to a lock request of a project, if `per_project`."""
        label = self._project_labels.get(project_id)
        if label is None:
            label = OTHER_PROJECTS
            if len(self._project_labels) < PROJECTS_MAX:
                label = self._project_labels[project_id] = name.replace("\\", "").replace('"', "").replace("\n", "")
        self.project_requests[label, outcome] += 1

    def waited(self, outcome: str, seconds: float) -> None:
        """Count the end of an acquire with `wait_seconds`; it is not counted by `request`."""
        self.waits[outcome] += 1
        if outcome in GRANTS:
            self.wait_seconds.observe(seconds)

    def batch(self, size: int, seconds: float) -> None:
        """Count a committed batch."""
        self.batch_size.observe(size)
        self.commit_seconds.observe(seconds)

    def store_error(self, cause_code: str) -> None:
        """Count a request that the store could not answer, by cause."""
        self.store_errors[cause_code] += 1

    def text(self, held: int | None) -> bytes:
        """The metrics in the Prometheus text format. `held` is the number of held locks, None if unknown."""
        label = "" if self._worker is None else f'worker="{self._worker}"'
        return "".join(chain.from_iterable(family.lines(label) for family in self.families(held))).encode()

    def families(self, held: int | None) -> Iterator[Family]:
        """All metrics, without the label `worker`."""
        files = () if self.file is None else (self.file,)
        for name, meaning, labels, counts in (
            ("requests", "Responses to lock requests", ("operation", "outcome"), self.requests),
            ("waits", "Acquires with wait_seconds, by outcome", ("outcome",), self.waits),
            ("store_errors", "Requests that the store could not answer, by cause", ("cause",), self.store_errors),
        ):
            yield Family(f"volcano_locks_{name}_total", "counter", meaning, _by_label(labels, counts))
        if self.per_project:
            yield Family(
                "volcano_locks_project_requests_total",
                "counter",
                "Responses to lock requests, by project",
                _by_label(("project", "outcome"), self.project_requests),
            )
        for name, meaning, count in (
            *((f"store_{name}", _STORE_COUNTS[name], count) for name, count in self.store_counts().items()),
            ("quota_refusals", "Requests refused because the project's quota was spent", self.quota_refusals),
            ("failed_credentials", "Requests refused because of their credential", self.failed_credentials),
            (
                "delayed_credentials",
                "Responses to failed credentials that were delayed because their address failed too often",
                self.delayed_credentials,
            ),
            ("log_lines_dropped", "Log lines dropped because the log stream was too slow", self._log_lines_dropped()),
            *(
                ("checkpoint_failures", "Checkpoints of the SQLite log that failed", file.checkpoint_failures)
                for file in files
            ),
        ):
            yield Family(f"volcano_locks_{name}_total", "counter", meaning, [("", "", count)])
        for name, meaning, value in (
            ("waiters", "Acquires that wait for a lock now", self.waiters()),
            ("watchers", "Event streams open now", self.watchers()),
            ("held", "Locks that are held, in the whole store", held),
            ("connections", "Connections that are open now", self.connections()),
            (
                "certificate_expires_seconds",
                "Expiry of the TLS certificate in seconds since 1970, if the server has one",
                self.certificate_expires_seconds,
            ),
            *(("wal_bytes", "Bytes of the SQLite log; grows if checkpoints fail", file.log_bytes) for file in files),
        ):
            if value is not None:
                yield Family(f"volcano_locks_{name}", "gauge", meaning, [("", "", value)])
        for name, meaning, histogram in (
            ("wait_seconds", "Seconds that granted acquires waited", self.wait_seconds),
            ("batch_size", "Commands per committed batch", self.batch_size),
            ("commit_seconds", "Seconds that the commit of a batch took", self.commit_seconds),
        ):
            yield Family(f"volcano_locks_{name}", "histogram", meaning, histogram.samples())
        yield from _budget_families(list(self._budgets()))
        yield Family(
            "volcano_locks_request_seconds",
            "histogram",
            "Seconds from a lock request to its response",
            (
                sample
                for operation, histogram in self.request_seconds.items()
                for sample in histogram.samples(f'operation="{operation}"')
            ),
        )


def _budget_families(budgets: Sequence[Budget]) -> Iterator[Family]:
    """The node-wide budgets (OPS-13)."""
    for name, meaning, values in (
        ("used", "Places of a node-wide budget that are in use, see limits.md", [one.used for one in budgets]),
        ("limit", "Places that a node-wide budget has", [one.limit for one in budgets]),
    ):
        samples = [("", f'budget="{one.name}"', value) for one, value in zip(budgets, values, strict=True)]
        yield Family(f"volcano_locks_budget_{name}", "gauge", meaning, samples)
    yield Family(
        "volcano_locks_budget_refusals_total",
        "counter",
        "Times that a budget had no place, because its project had its share or because all were in use",
        [("", f'budget="{one.name}",past="{past}"', count) for one in budgets for past, count in one.refused.items()],
    )


def _by_label(names: Sequence[str], counts: Mapping[str, int] | Mapping[tuple[str, str], int]) -> Iterator[Sample]:
    for values, count in counts.items():
        words = (values,) if isinstance(values, str) else values
        yield "", ",".join(f'{name}="{word}"' for name, word in zip(names, words, strict=True)), count
