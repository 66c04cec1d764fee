"""The shipped alerts: valid, tested by promtool, and about metrics, values and runbooks that exist."""

import re
import subprocess
import uuid
from pathlib import Path

import httpx
import yaml

from volcano_locks_server.testing import ManualClock, running_server

ROOT = Path(__file__).parents[2]
PROMETHEUS = ROOT / "deploy/prometheus"
RULES = (PROMETHEUS / "volcano-locks.rules.yml").read_text()
ALERTS = [rule for group in yaml.safe_load(RULES)["groups"] for rule in group["rules"] if "alert" in rule]


def promtool(*arguments: str | Path) -> str:
    result = subprocess.run(
        ["promtool", *arguments], cwd=PROMETHEUS, capture_output=True, text=True, check=False, timeout=300
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout + result.stderr


def test_the_rules_and_the_scrape_configuration_are_valid() -> None:
    assert "SUCCESS" in promtool("check", "rules", "volcano-locks.rules.yml")
    assert "SUCCESS" in promtool("check", "config", "prometheus.yml")


def test_the_unit_tests_of_the_rules_pass() -> None:
    promtool("test", "rules", *sorted(path.name for path in PROMETHEUS.glob("*.test.yml")))


def test_every_alert_has_a_unit_test() -> None:
    tested = {
        alert["alertname"]
        for path in PROMETHEUS.glob("*.test.yml")
        for test in yaml.safe_load(path.read_text())["tests"]
        for alert in test.get("alert_rule_test", ())
        if alert.get("exp_alerts")
    }
    assert {rule["alert"] for rule in ALERTS} == tested


def test_every_metric_exists() -> None:
    documented = set(re.findall(r"`(volcano_locks_\w+)`", (ROOT / "docs/reference/metrics.md").read_text()))
    used = {re.sub("_bucket$", "", name) for name in re.findall(r"\bvolcano_locks_\w+", RULES)}
    assert len(used) > 8
    assert sorted(used - documented) == []


def test_every_cause_is_one_that_the_server_reports() -> None:
    source = "\n".join(path.read_text() for path in (ROOT / "server/src").rglob("*.py"))
    causes = {one for text in re.findall(r'cause(?:=|=~|!=|!~)"([\w|]+)"', RULES) for one in text.split("|")}
    assert len(causes) > 6
    assert sorted(cause for cause in causes if f'"{cause}"' not in source) == []


def test_every_budget_is_one_that_the_server_has() -> None:
    limits = (ROOT / "docs/reference/limits.md").read_text()
    budgets = {one for text in re.findall(r'budget=~"([\w|]+)"', RULES) for one in text.split("|")}
    assert len(budgets) > 3
    assert sorted(budget for budget in budgets if f"| `{budget}` |" not in limits) == []


def test_the_outcomes_of_a_loss_are_counted_as_the_rules_expect() -> None:
    clock = ManualClock()
    with running_server(clock=clock) as running:
        headers = {"Authorization": f"Bearer {running.service_key}"}
        with httpx.Client(base_url=running.url, headers=headers) as client:
            paused, other = ({"X-Volcano-Lock-Token": str(uuid.uuid4())} for _ in range(2))
            assert client.post("/locks/a/lease", headers=paused, json={"ttl_seconds": 5}).status_code == 201
            clock.advance(7_000)
            assert client.post("/locks/a/lease", headers=other, json={"ttl_seconds": 5}).status_code == 201
            assert client.patch("/locks/a/lease", headers=paused, json={"ttl_seconds": 5}).status_code == 409
            metrics = client.get("/metrics").text
    losses = re.findall(r'requests_total\{(operation="\w+",outcome="(?:taken_over|lock_ownership_lost)")\}', RULES)
    assert len(losses) == 2
    for labels in losses:
        assert f"volcano_locks_requests_total{{{labels}}} 1.0" in metrics


def test_every_runbook_exists() -> None:
    for rule in ALERTS:
        assert (ROOT / rule["annotations"]["runbook"]).is_file(), rule["alert"]
        assert rule["labels"]["severity"] in {"page", "ticket"}
