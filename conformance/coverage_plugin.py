"""Records which scenarios passed on which target, and reports missing rule coverage after a run of the whole suite.

The record is `scenario-coverage.json` in pytest's cache, or in the folder of `--scenario-coverage`. It is merged over
partial runs, so it always holds the latest outcome of each pair of scenario and target.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

PASSED: Final = "passed"
PAIR: Final = "scenario on target"
KNOWN_FAILING: Final = "known failing"
TEST_NAME: Final = "conformance/rule_coverage.py::every_rule_ran_on_every_target"


class CoveragePlugin:
    """Runs in the process that reports: pytest's own, or the controller of pytest-xdist."""

    def __init__(self, folder: Path) -> None:
        self._file: Final = folder / "scenario-coverage.json"
        self._outcomes: Final[dict[tuple[str, str], str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.outcome == PASSED:
            return
        properties = dict(report.user_properties)
        if PAIR in properties:
            scenario, target = str(properties[PAIR]).rsplit("@", 1)
            self._outcomes[scenario, target] = KNOWN_FAILING if KNOWN_FAILING in properties else report.outcome

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Iterator[None]:
        """After the tests: write the record, and report the coverage as a test of its own."""
        result = yield
        if self._outcomes and not session.config.option.collectonly:
            self._write()
            self._report_coverage(session)
        return result

    def _write(self) -> None:
        known = json.loads(self._file.read_text("utf-8")) if self._file.exists() else {}
        for (scenario, target), outcome in self._outcomes.items():
            known.setdefault(scenario, {})[target] = outcome
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text(json.dumps(known, indent=1, sort_keys=True), "utf-8")

    def _report_coverage(self, session: pytest.Session) -> None:
        from .rule_coverage import exercised_pairs, required_pairs  # noqa: PLC0415 - reads all scenarios
        from .scenario.parser import load  # noqa: PLC0415
        from .targets.catalog import TARGETS  # noqa: PLC0415

        scenarios = load()
        suite = {(one.id, target.name) for one in scenarios for target in TARGETS if target.supports(one)}
        if not suite <= set(self._outcomes):
            return  # a partial run shows nothing about the rest
        passed: dict[str, list[str]] = {}
        for (scenario, target), outcome in self._outcomes.items():
            if outcome == PASSED:
                passed.setdefault(scenario, []).append(target)
        missing = required_pairs() - exercised_pairs(scenarios, passed)
        session.config.hook.pytest_runtest_logreport(report=_report(sorted(missing)))


def _report(missing: list[tuple[str, str]]) -> pytest.TestReport:
    by_rule: dict[str, list[str]] = {}
    for rule, target in missing:
        by_rule.setdefault(rule, []).append(target)
    lines = [f"{rule}: no passed scenario on {', '.join(targets)}" for rule, targets in by_rule.items()]
    hint = "Add a scenario that proves the rule there, or list the targets in EXEMPT and name the rule in a test."
    return pytest.TestReport(
        nodeid=TEST_NAME,
        location=("conformance/rule_coverage.py", None, "every_rule_ran_on_every_target"),
        keywords={},
        outcome="failed" if missing else "passed",
        longrepr="\n".join([*lines, hint]) if missing else None,
        when="call",
    )
