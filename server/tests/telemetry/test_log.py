"""The log: it never blocks its callers, and no project displaces the lines of another."""

import io
import json
import threading
import time

import pytest

from volcano_locks_server.rules.shares import Budget
from volcano_locks_server.telemetry import LineWriter, Log
from volcano_locks_server.telemetry.log import NAMED_PROJECTS_MAX


class _StuckStream:
    """A stream that blocks until `gate` is set."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.written: list[str] = []

    def write(self, text: str) -> int:
        self.gate.wait()
        self.written.append(text)
        return len(text)

    def flush(self) -> None:
        return


def test_a_slow_log_stream_does_not_block_the_server() -> None:
    """OPS-6: lines over the limit of the queue are dropped and counted; the rest is written later."""
    stream = _StuckStream()
    writer = LineWriter(stream)  # type: ignore[arg-type]
    for number in range(25_000):
        writer.write(str(number))
    assert 5_000 <= writer.dropped < 25_000, (
        "10,000 wait, and as many may have been taken from the queue before it stuck"
    )
    stream.gate.set()
    writer.close()
    lines = "".join(stream.written).splitlines()
    assert len(lines) == 25_000 - writer.dropped
    assert lines[:3] == ["0", "1", "2"]


def test_each_project_has_a_share_of_the_lines_that_wait() -> None:
    """OPS-13: a project at level debug does not displace the lines of another one, or of the server."""
    stream = _StuckStream()
    budget = Budget("log_lines_waiting", 8)
    writer = LineWriter(stream, budget)  # type: ignore[arg-type]
    writer.write("first")
    while budget.used != 1 or writer._lines:
        time.sleep(0.001)  # until the thread is stuck with the first line
    log = Log(writer, "debug")
    for number in range(10):
        log.debug("noisy", number=number, project_id="greedy")
    log.info("quiet", project_id="modest")
    log.info("stopping")
    assert writer.dropped == 6
    assert budget.refused["share"] == 6
    stream.gate.set()
    writer.close()
    lines = [json.loads(line) for line in "".join(stream.written).splitlines()[1:]]
    assert [line["event"] for line in lines] == ["noisy"] * 4 + ["quiet", "stopping"]
    writer.settle()
    assert budget.used == 0


def test_each_project_has_a_share_of_the_lines_of_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """OPS-13: the number of lines left out is logged for each project, in one line for all past the first ten."""
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    stream = io.StringIO()
    log = Log(LineWriter(stream), "info")
    projects = ["greedy"] * 1_000 + ["modest", None] + [f"p{number}" for number in range(60)]
    now = 1.0
    written = [project_id for project_id in projects if log.within_rate(project_id)]
    assert written.count("greedy") == 50
    assert {"modest", None} <= set(written)
    assert len(written) == 100
    now = 2.0
    assert log.within_rate("modest")
    log.writer.close()
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert (lines[0]["event"], lines[0]["project_id"], lines[0]["count"]) == ("lines_passed_over", "greedy", 950)
    assert len(lines) == NAMED_PROJECTS_MAX + 1
    assert sum(line["count"] for line in lines) == 1_062 - 100
    assert lines[-1]["of"] == "other projects"
