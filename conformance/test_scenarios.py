"""Runs every scenario on every target that supports it.

`known_failing.yaml` lists pairs that are known to fail. A listed pair that passes is a failure, so the list stays true.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from .coverage_plugin import KNOWN_FAILING, PAIR
from .runner import run
from .scenario.parser import Scenario, load
from .targets.catalog import ADAPTERS, TARGETS, TargetSpec

SCENARIOS = load()
PAIRS = [(scenario, spec) for scenario in SCENARIOS for spec in TARGETS if spec.supports(scenario)]
EXPECTED_FAILURES = {
    (str(one["scenario"]), str(one["target"])): str(one["why"])
    for one in yaml.safe_load(Path(__file__).with_name("known_failing.yaml").read_text("utf-8")) or []
}


@pytest.fixture(scope="module", autouse=True)
def adapters_end_by_themselves() -> Iterator[None]:
    yield
    for adapter in ADAPTERS:
        adapter.end()


def run_on(spec: TargetSpec, scenario: Scenario, folder: Path) -> None:
    target = spec.open(scenario.quota, folder)
    try:
        run(scenario, target)
    finally:
        target.close()


@pytest.mark.parametrize(
    ("scenario", "spec"), [pytest.param(*pair, id=f"{pair[0].id}@{pair[1].name}") for pair in PAIRS]
)
def test_scenario(
    scenario: Scenario, spec: TargetSpec, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    why = EXPECTED_FAILURES.get((scenario.id, spec.name))
    record_property(PAIR, f"{scenario.id}@{spec.name}")
    if why is None:
        run_on(spec, scenario, tmp_path)
        return
    record_property(KNOWN_FAILING, why)
    try:
        run_on(spec, scenario, tmp_path)
    except Exception:
        return
    pytest.fail(f"passes, but known_failing.yaml lists it ({why}): remove the entry")


def test_known_failing_lists_existing_pairs() -> None:
    assert set(EXPECTED_FAILURES) <= {(scenario.id, spec.name) for scenario, spec in PAIRS}


def test_every_scenario_runs_on_some_target() -> None:
    supported = {scenario.id for scenario, _ in PAIRS}
    assert [scenario.id for scenario in SCENARIOS if scenario.id not in supported] == []
