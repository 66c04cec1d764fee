"""Runs the HTTP load generator wrk with one of the scripts in `scripts/`."""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal, NamedTuple

from .processes import BenchError, program, run

CONNECTIONS: Final = 64
REFUSED_TOLERANCE: Final = 0.05
KeyOrder = Literal["ascending", "random"]
SCRIPTS: Final = Path(__file__).resolve().parent / "scripts"


class RoundResult(NamedTuple):
    """The result of one round. `problem` says why the round is invalid; it is empty for a valid one."""

    operations: int
    seconds: float
    p50_ms: float
    p99_ms: float
    problem: str = ""

    @property
    def per_second(self) -> float:
        return self.operations / self.seconds


def load(
    url: str,
    script: str,
    *arguments: str,
    seconds: float,
    connections: int = CONNECTIONS,
    environment: Mapping[str, str] | None = None,
    refused_share: float = 0.0,
    refused_slack: int = 0,
) -> RoundResult:
    """Load `url` with the script of that name.

    A broken connection makes the round invalid. So does a share of unsuccessful responses other than `refused_share`,
    which the script causes on purpose, by more than `refused_slack` responses.
    """
    text = (SCRIPTS / f"{script}.lua").read_text() + (SCRIPTS / "print_result.lua").read_text()
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as file:
        file.write(text)
        file.flush()
        printed = run(
            [
                program("wrk", "wrk"),
                *("--threads", "1", "--connections", str(connections), "--timeout", "10s"),
                *("--duration", f"{max(1, round(seconds))}s", "--script", file.name, url, "--", *arguments),
            ],
            environment=environment,
        )
    return _read(printed, refused_share, refused_slack)


def _read(printed: str, refused_share: float, refused_slack: int) -> RoundResult:
    lines = [line.removeprefix("BENCH ") for line in printed.splitlines() if line.startswith("BENCH ")]
    if len(lines) != 1:
        raise BenchError(f"wrk printed no result:\n{printed}")
    result = json.loads(lines[0])
    problems = []
    refused_expected = result["requests"] * refused_share
    if abs(result["not_2xx"] - refused_expected) > refused_expected * REFUSED_TOLERANCE + refused_slack:
        problems.append(f"{result['not_2xx']} responses were not a success, expected {refused_expected:.0f}")
    if result["broken"]:
        problems.append(f"{result['broken']} requests failed or timed out")
    if not result["requests"]:
        problems.append("there were no responses")
    return RoundResult(
        operations=result["requests"],
        seconds=result["duration_us"] / 1e6,
        p50_ms=result["p50_us"] / 1e3,
        p99_ms=result["p99_us"] / 1e3,
        problem=", ".join(problems),
    )
