"""Metrics for Prometheus. Counting is an addition in a dictionary; the metric families are built at each scrape.

All methods, `text` included, must be called on the server's event loop.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

SECONDS_BUCKETS: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_STORE_COUNTS: Final = {
    "round_trips": "Requests to the store over the network",
    "conflicts": "Updates that conflicted with a write of another node",
    "retries": "Requests and updates that were retried",
    "connects": "Connections opened to the store, including switches to another of its servers",
}
GRANTS: Final = frozenset({"acquired", "taken_over", "repeated"})
SIZE_BUCKETS: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0)


class Histogram:
    """Counts of observations by bucket, and their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds: Final = bounds
        self.counts: Final = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative counts by upper bound, in Prometheus' form."""
        cumulative, buckets = 0, []
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            cumulative += count
            buckets.append((bound, float(cumulative)))
        return buckets


class Metrics(Collector):
    """All metrics of one server. No label holds the name of a lock or a project.

    `worker` is set if several workers share a port, and is then a label of every metric: a scrape reaches any of them.
    """

    def __init__(self, *, log_lines_dropped: Callable[[], int] = lambda: 0, worker: int | None = None) -> None:
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
        self.connections: Callable[[], int] = lambda: 0
        self.store_counts: Callable[[], Mapping[str, int]] = dict
        self._log_lines_dropped: Final = log_lines_dropped
        self._held: int | None = None
        self._families: Final = CollectorRegistry(auto_describe=False)
        self._families.register(self)

    def request(self, operation: str, outcome: str, seconds: float) -> None:
        """Count a response to a lock request."""
        self.requests[operation, outcome] += 1
        self.request_seconds[operation].observe(seconds)

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
        self._held = held
        return generate_latest(self._families)

    def collect(self) -> Iterable[Metric]:
        for family in self._families_now():
            if self._worker is not None:
                mine = {"worker": str(self._worker)}
                family.samples = [sample._replace(labels={**sample.labels, **mine}) for sample in family.samples]
            yield family

    def _families_now(self) -> Iterable[Metric]:
        for name, text, labels, counts in (
            ("requests", "Responses to lock requests", ("operation", "outcome"), self.requests),
            ("waits", "Acquires with wait_seconds, by outcome", ("outcome",), self.waits),
            ("store_errors", "Requests that the store could not answer, by cause", ("cause",), self.store_errors),
        ):
            by_label = CounterMetricFamily(f"volcano_locks_{name}", text, labels=labels)
            for values, count in counts.items():
                by_label.add_metric(values if isinstance(values, tuple) else (values,), count)
            yield by_label
        for name, text, count in (
            *((f"store_{name}", _STORE_COUNTS[name], count) for name, count in self.store_counts().items()),
            ("quota_refusals", "Requests refused because the project's quota was spent", self.quota_refusals),
            ("log_lines_dropped", "Log lines dropped because the log stream was too slow", self._log_lines_dropped()),
        ):
            yield CounterMetricFamily(f"volcano_locks_{name}", text, value=count)
        for name, text, value in (
            ("waiters", "Acquires that wait for a lock now", self.waiters()),
            ("watchers", "Event streams open now", self.watchers()),
            ("held", "Locks that are held now, in the whole store", self._held),
            ("connections", "Connections that are open now", self.connections()),
        ):
            if value is not None:
                yield GaugeMetricFamily(f"volcano_locks_{name}", text, value=value)
        for name, text, histogram in (
            ("wait_seconds", "Seconds that granted acquires waited", self.wait_seconds),
            ("batch_size", "Commands per committed batch", self.batch_size),
            ("commit_seconds", "Seconds that the commit of a batch took", self.commit_seconds),
        ):
            yield HistogramMetricFamily(f"volcano_locks_{name}", text, histogram.buckets(), histogram.total)
        answered = HistogramMetricFamily(
            "volcano_locks_request_seconds", "Seconds from a lock request to its response", labels=("operation",)
        )
        for operation, histogram in self.request_seconds.items():
            answered.add_metric((operation,), histogram.buckets(), histogram.total)
        yield answered
