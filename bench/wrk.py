"""wrk, the load for everything that speaks HTTP: one script, some seconds, one result."""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from .processes import BenchError, program, run

CONNECTIONS: Final = 64
SCRIPTS: Final = Path(__file__).resolve().parent / "scripts"


class Measured(NamedTuple):
    """One round. `problem` is empty, or says why the round does not count."""

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
) -> Measured:
    """Load `url` with the script of that name. An answer that is no success, or a broken connection, is a problem."""
    text = (SCRIPTS / f"{script}.lua").read_text() + (SCRIPTS / "done.lua").read_text()
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as whole:
        whole.write(text)
        whole.flush()
        printed = run(
            [
                program("wrk", "wrk"),
                *("--threads", "1", "--connections", str(connections), "--timeout", "10s"),
                *("--duration", f"{max(1, round(seconds))}s", "--script", whole.name, url, "--", *arguments),
            ],
            environment=environment,
        )
    return _read(printed)


def _read(printed: str) -> Measured:
    lines = [line.removeprefix("BENCH ") for line in printed.splitlines() if line.startswith("BENCH ")]
    if len(lines) != 1:
        raise BenchError(f"wrk printed no result:\n{printed}")
    result = json.loads(lines[0])
    problems = []
    if result["not_2xx"]:
        problems.append(f"{result['not_2xx']} answers were no success")
    if result["broken"]:
        problems.append(f"{result['broken']} requests broke or timed out")
    if not result["requests"]:
        problems.append("nothing was answered")
    return Measured(
        operations=result["requests"],
        seconds=result["duration_us"] / 1e6,
        p50_ms=result["p50_us"] / 1e3,
        p99_ms=result["p99_us"] / 1e3,
        problem=", ".join(problems),
    )
