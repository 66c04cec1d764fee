"""The cost of logging at `info`: the same load on two servers, one at log level `info` and one at `error`.

Grants and releases are logged at `debug` only, so neither server would log a load of those alone. Therefore every tenth
request asks for a held lock and is refused; `info` logs refusals, up to its budget per second. At `error` this traffic
writes no line. Both servers run all the time and are loaded alternately (A B, B A, A B …). The two rounds of a pair are
compared, so that a machine that slows down affects both sides.
"""

import statistics
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from .interleaved_rounds import rotated
from .lock_server import create_project, running_server
from .machine import machine_facts
from .report import LATENCY_HEADER, RATE_HEADER, Goal, Report, problems_of, summary
from .wrk import CONNECTIONS, RoundResult

COST_MAX: Final = 0.03
LEVELS: Final = ("error", "info")
REFUSED_EVERY: Final = 10


def measure(folder: Path, *, pairs: int, seconds: float, warm_up_seconds: float) -> Report:
    """The report on logging. A pair is one round of each server, `seconds` long each."""
    machine = machine_facts(folder)
    results: dict[str, list[RoundResult]] = {level: [] for level in LEVELS}
    with ExitStack() as stack:
        servers = {
            level: stack.enter_context(running_server(folder / f"{level}.db", log_level=level)) for level in LEVELS
        }
        keys = {level: create_project(server).service_key for level, server in servers.items()}
        for level in LEVELS:
            servers[level].load(keys[level], warm_up_seconds, refused_every=REFUSED_EVERY)
        for number in range(pairs):
            for level in rotated(LEVELS, number):
                results[level].append(servers[level].load(keys[level], seconds, refused_every=REFUSED_EVERY))
    return _report(results, machine, f"medians of {pairs} pairs of {seconds:.0f} s")


def _report(results: dict[str, list[RoundResult]], machine: list[tuple[str, str]], length: str) -> Report:
    at_error, at_info = (results[level] for level in LEVELS)
    costs = [1 - info.per_second / error.per_second for error, info in zip(at_error, at_info, strict=True)]
    cost = statistics.median(costs)
    return Report(
        name="logging-cost",
        title=f"Cost of logging at info, {CONNECTIONS} connections, {length}",
        header=("log level", *RATE_HEADER, *LATENCY_HEADER),
        rows=[
            (level, *one.rate_cells(), *one.latency_cells())
            for level, one in ((level, summary(rounds)) for level, rounds in results.items())
        ],
        facts=machine,
        goals=[Goal(f"median cost of a pair under {COST_MAX:.0%}", f"{cost:.1%}", cost < COST_MAX)],
        problems=[problem for level, rounds in results.items() for problem in problems_of(level, rounds)],
        notes=[
            f"One request in {REFUSED_EVERY} is refused.",
            f"Cost of each pair: {', '.join(f'{cost:+.1%}' for cost in costs)}.",
        ],
    )
