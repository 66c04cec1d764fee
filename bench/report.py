"""A measurement as people read it: an aligned table, what was to be reached, and the machine it ran on."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from .wrk import Measured

RESULTS: Final = Path(__file__).resolve().parent / "results"


class Goal(NamedTuple):
    """What was to be reached, what came, and whether that is enough."""

    text: str
    got: str
    reached: bool


class Summary(NamedTuple):
    """Several rounds of one kind: medians, and the spread of their rates."""

    per_second: float
    slowest_per_second: float
    fastest_per_second: float
    p50_ms: float
    p99_ms: float


@dataclass
class Report:
    """One benchmark's outcome. `problems` make it invalid: then no goal is told as reached."""

    name: str
    title: str
    header: Sequence[str]
    rows: list[Sequence[str]]
    facts: list[tuple[str, str]]
    goals: list[Goal] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Valid, and every goal reached."""
        return not self.problems and all(goal.reached for goal in self.goals)

    def text(self) -> str:
        """The report in Markdown that is aligned for the terminal too."""
        parts = [f"# {self.title}", table(self.header, self.rows)]
        if self.goals and not self.problems:
            parts.append("\n".join(_goal_line(goal) for goal in self.goals))
        if self.problems:
            parts.append(
                "\n".join(["**INVALID:** these numbers do not count."] + [f"- {one}" for one in self.problems])
            )
        if self.notes:
            parts.append("\n".join(self.notes))
        parts.append(table(("measured on", ""), self.facts))
        return "\n\n".join(parts) + "\n"

    def write(self) -> Path:
        """Keep the report under today's date (UTC) and its name; a later one of the day replaces it."""
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"{datetime.now(UTC):%Y-%m-%d}-{self.name}.md"
        path.write_text(self.text())
        return path


def summary(rounds: Sequence[Measured]) -> Summary:
    """The rounds' medians."""
    rates = [one.per_second for one in rounds]
    return Summary(
        statistics.median(rates),
        min(rates),
        max(rates),
        statistics.median(one.p50_ms for one in rounds),
        statistics.median(one.p99_ms for one in rounds),
    )


def problems_of(name: str, rounds: Sequence[Measured]) -> list[str]:
    """What made rounds invalid, each with its round's number."""
    return [f"{name}, round {number}: {one.problem}" for number, one in enumerate(rounds, 1) if one.problem]


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table with every column as wide as its widest cell; the first column left, the others right."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    left = len(header) == 2

    def line(cells: Sequence[str]) -> str:
        aligned = [
            cell.ljust(width) if column == 0 or left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return f"| {' | '.join(aligned)} |"

    rule = ["-" * width if column == 0 or left else "-" * (width - 1) + ":" for column, width in enumerate(widths)]
    return "\n".join([line(header), line(rule), *(line(row) for row in rows)])


def whole(number: float) -> str:
    """With thousands apart: 12,345."""
    return f"{number:,.0f}"


def _goal_line(goal: Goal) -> str:
    return f"- {'reached' if goal.reached else 'MISSED '}: {goal.text}: {goal.got}"
