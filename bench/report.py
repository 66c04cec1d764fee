"""The report of one benchmark: a Markdown table, its goals, and the machine it ran on."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from .line_chart import LineChart
from .wrk import RoundResult

RESULTS: Final = Path(__file__).resolve().parent / "results"
RATE_HEADER: Final = ("operations/s", "slowest", "fastest")
LATENCY_HEADER: Final = ("p50 ms", "p99 ms")


class Goal(NamedTuple):
    """A target value, the measured value, and whether it was reached."""

    text: str
    measured: str
    reached: bool


class Summary(NamedTuple):
    """Several rounds of one target: medians, and the slowest and fastest rate."""

    per_second: float
    slowest_per_second: float
    fastest_per_second: float
    p50_ms: float
    p99_ms: float

    def rate_cells(self) -> tuple[str, ...]:
        """The cells under RATE_HEADER."""
        return tuple(thousands(rate) for rate in (self.per_second, self.slowest_per_second, self.fastest_per_second))

    def latency_cells(self) -> tuple[str, ...]:
        """The cells under LATENCY_HEADER."""
        return (f"{self.p50_ms:.2f}", f"{self.p99_ms:.2f}")


@dataclass
class Report:
    """The result of one benchmark. `problems` make it invalid; it then reports no goals."""

    name: str
    title: str
    header: Sequence[str]
    rows: list[Sequence[str]]
    facts: list[tuple[str, str]]
    goals: list[Goal] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    charts: list[LineChart] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Valid, and every goal reached."""
        return not self.problems and all(goal.reached for goal in self.goals)

    def text(self) -> str:
        """The report in Markdown that is aligned for the terminal too."""
        parts = [f"# {self.title}", table(self.header, self.rows)]
        if self.goals and not self.problems:
            parts.append("\n".join(_goal_line(goal) for goal in self.goals))
        if self.problems:
            problems = [f"- {problem}" for problem in self.problems]
            parts.append("\n".join(["**INVALID:** these numbers do not count.", *problems]))
        if self.notes:
            parts.append("\n".join(self.notes))
        parts += [f"![{chart.title}]({chart.file_name})" for chart in self.charts]
        parts.append(table(("measured on", ""), self.facts))
        return "\n\n".join(parts) + "\n"

    def write(self) -> Path:
        """Save the report under today's date (UTC) and its name. It replaces an earlier one of the same day.

        Its charts replace those of every earlier day, because documents show them.
        """
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"{datetime.now(UTC):%Y-%m-%d}-{self.name}.md"
        path.write_text(self.text())
        if not self.problems:
            for chart in self.charts:
                (RESULTS / chart.file_name).write_text(chart.svg())
        return path


def summary(rounds: Sequence[RoundResult]) -> Summary:
    """The medians of the rounds."""
    rates = [result.per_second for result in rounds]
    return Summary(
        statistics.median(rates),
        min(rates),
        max(rates),
        statistics.median(result.p50_ms for result in rounds),
        statistics.median(result.p99_ms for result in rounds),
    )


def p50_and_p99(samples: Sequence[float]) -> tuple[float, float]:
    """The median and the 99th percentile."""
    ordered = sorted(samples)
    return statistics.median(ordered), ordered[int(len(ordered) * 0.99)]


def problems_of(name: str, rounds: Sequence[RoundResult]) -> list[str]:
    """The problems of invalid rounds, each with the number of its round."""
    return [f"{name}, round {number}: {result.problem}" for number, result in enumerate(rounds, 1) if result.problem]


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table with aligned columns: the first left, the others right. A table of two columns is all left."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    all_left = len(header) == 2

    def line(cells: Sequence[str]) -> str:
        aligned = [
            cell.ljust(width) if column == 0 or all_left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return f"| {' | '.join(aligned)} |"

    rule = ["-" * width if column == 0 or all_left else "-" * (width - 1) + ":" for column, width in enumerate(widths)]
    return "\n".join([line(header), line(rule), *(line(row) for row in rows)])


def thousands(number: float) -> str:
    """A whole number with thousands separators: 12,345."""
    return f"{number:,.0f}"


def _goal_line(goal: Goal) -> str:
    return f"- {'reached' if goal.reached else 'MISSED '}: {goal.text}: {goal.measured}"
