"""The text of a scrape is what Prometheus reads."""

from collections.abc import Mapping

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from volcano_locks_server.rules.shares import Budgets
from volcano_locks_server.telemetry import Metrics


def parsed(metrics: Metrics, held: int | None = None) -> Mapping[str, Metric]:
    """The metrics by name, as Prometheus' own parser reads them."""
    return {family.name: family for family in text_string_to_metric_families(metrics.text(held).decode())}


def value(family: Metric, suffix: str = "", **labels: str) -> float:
    (found,) = [one.value for one in family.samples if (one.name, one.labels) == (family.name + suffix, labels)]
    return found


@pytest.mark.parametrize("worker", [None, 3])
def test_prometheus_reads_every_metric(worker: int | None) -> None:
    """OPS-3: with `--workers`, each sample carries the number of its worker."""
    metrics = Metrics(worker=worker)
    metrics.store_counts = lambda: {"round_trips": 5}
    metrics.request("acquire", "acquired", 0.0015)
    metrics.request("acquire", "lock_held", 0.03)
    metrics.waited("acquired", 45.0)
    metrics.store_error("disk_full")
    metrics.batch(3, 0.0004)
    read = parsed(metrics, held=12_345_678)
    label = {} if worker is None else {"worker": str(worker)}
    assert value(read["volcano_locks_requests"], "_total", operation="acquire", outcome="lock_held", **label) == 1
    assert value(read["volcano_locks_store_errors"], "_total", cause="disk_full", **label) == 1
    assert value(read["volcano_locks_store_round_trips"], "_total", **label) == 5
    assert value(read["volcano_locks_held"], **label) == 12_345_678
    assert value(read["volcano_locks_wait_seconds"], "_sum", **label) == 45
    seconds = read["volcano_locks_request_seconds"]
    assert value(seconds, "_bucket", operation="acquire", le="0.001", **label) == 0
    assert value(seconds, "_bucket", operation="acquire", le="0.002", **label) == 1
    assert value(seconds, "_bucket", operation="acquire", le="+Inf", **label) == 2
    assert value(seconds, "_count", operation="acquire", **label) == 2
    assert value(read["volcano_locks_batch_size"], "_bucket", le="4.0", **label) == 1
    assert {family.type for family in read.values()} == {"counter", "gauge", "histogram"}
    assert all(family.documentation for family in read.values())


def test_an_unknown_number_of_held_locks_is_left_out() -> None:
    """OPS-3."""
    assert "volcano_locks_held" in parsed(Metrics(), held=0)
    assert "volcano_locks_held" not in parsed(Metrics(), held=None)


def test_each_budget_is_shown_by_its_name() -> None:
    """OPS-13."""
    budgets = Budgets({"waiters": 2})
    metrics = Metrics(budgets=lambda: budgets)
    assert [budgets.waiters.take(project_id) for project_id in ("p", "p", "q", "r")] == [None, "share", None, "budget"]
    read = parsed(metrics)
    assert value(read["volcano_locks_budget_used"], budget="waiters") == 2
    assert value(read["volcano_locks_budget_limit"], budget="waiters") == 2
    for past in ("share", "budget"):
        assert value(read["volcano_locks_budget_refusals"], "_total", budget="waiters", past=past) == 1
