"""Every scenario on every face it is for.

`known_failing.yaml` lists pairs that are known to fail: such a pair must fail, so the list cannot outlive its reasons.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from .runner import ScenarioFailed, run
from .scenario.parser import Scenario, load
from .targets import ADAPTERS, ENTRANCES, Entrance

SCENARIOS = load()
PAIRS = [(scenario, entrance) for scenario in SCENARIOS for entrance in ENTRANCES if entrance.plays(scenario)]
KNOWN_FAILING = {
    (str(one["scenario"]), str(one["face"])): str(one["why"])
    for one in yaml.safe_load(Path(__file__).with_name("known_failing.yaml").read_text("utf-8")) or []
}


@pytest.fixture(scope="module", autouse=True)
def end_of_the_adapters() -> Iterator[None]:
    yield
    for adapter in ADAPTERS:
        adapter.end()


def act(scenario: Scenario, entrance: Entrance, folder: Path) -> None:
    face = entrance.open(scenario.quota, folder)
    try:
        run(scenario, face)
    finally:
        face.close()


@pytest.mark.parametrize(
    ("scenario", "entrance"), [pytest.param(*pair, id=f"{pair[0].id}@{pair[1].name}") for pair in PAIRS]
)
def test_scenario(scenario: Scenario, entrance: Entrance, tmp_path: Path) -> None:
    why = KNOWN_FAILING.get((scenario.id, entrance.name))
    if why is None:
        act(scenario, entrance, tmp_path)
        return
    try:
        act(scenario, entrance, tmp_path)
    except ScenarioFailed:
        return
    pytest.fail(f"passes, but is listed as known failing ({why}): take it off the list")


def test_known_failing_names_real_pairs() -> None:
    real = {(scenario.id, entrance.name) for scenario, entrance in PAIRS}
    assert set(KNOWN_FAILING) <= real


def test_every_scenario_is_acted_by_some_face() -> None:
    acted = {scenario.id for scenario, _ in PAIRS}
    assert [scenario.id for scenario in SCENARIOS if scenario.id not in acted] == []
