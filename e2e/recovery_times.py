"""Collects how long recoveries took and prints a summary after the tests.

Runs in the process that reports, which is pytest-xdist's controller if there are workers.
"""

import pytest

RECOVERY = "recovery seconds"


class RecoveryTimes:
    """Reads the property RECOVERY, (fault, seconds), of each test."""

    def __init__(self) -> None:
        self._measured: list[tuple[str, float]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            self._measured += [value for name, value in report.user_properties if name == RECOVERY]  # type: ignore[misc]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._measured:
            terminalreporter.section("maximum seconds from a fault to the first lease granted after it")
            for fault in dict.fromkeys(fault for fault, _ in self._measured):
                times = [seconds for one, seconds in self._measured if one == fault]
                terminalreporter.line(f"{max(times):6.2f} of {len(times)}  {fault}")
