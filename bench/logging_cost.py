"""What logging at `info` costs lock traffic: the same load on two servers, one that logs and one that hardly does.

Grants and releases are logged at `debug`, so a load of those alone would measure lines that nobody writes. Here
every tenth request asks for a held lock: a refusal, which `info` logs as far as its budget per second goes. At
`error` no line of this traffic is written. Both servers run all the while and are loaded in turns (A B, B A,
A B …), and each pair is compared within itself: a machine that slows down between pairs slows both sides of each.
"""

import statistics
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from .machine import facts
from .ours import new_tenant, serving
from .report import Goal, Report, problems_of, summary, whole
from .wrk import CONNECTIONS, Measured

COST_MAX: Final = 0.03
LEVELS: Final = ("error", "info")
REFUSED_EVERY: Final = 10


def measure(folder: Path, *, pairs: int, seconds: float, warm_up_seconds: float) -> Report:
    """The report on logging; a pair is one round of each server, `seconds` long each."""
    machine = facts(folder)
    measured: dict[str, list[Measured]] = {level: [] for level in LEVELS}
    with ExitStack() as stack:
        servers = {level: stack.enter_context(serving(folder / f"{level}.db", log_level=level)) for level in LEVELS}
        keys = {level: new_tenant(server).service_key for level, server in servers.items()}
        for level in LEVELS:
            servers[level].load(keys[level], warm_up_seconds, refused_every=REFUSED_EVERY)
        for number in range(pairs):
            for level in LEVELS if number % 2 == 0 else reversed(LEVELS):
                load = servers[level].load(keys[level], seconds, refused_every=REFUSED_EVERY)
                measured[level].append(load)
    return _report(measured, machine, f"medians of {pairs} pairs of {seconds:.0f} s")


def _report(measured: dict[str, list[Measured]], machine: list[tuple[str, str]], length: str) -> Report:
    quiet, info = (measured[level] for level in LEVELS)
    costs = [1 - with_it.per_second / without.per_second for without, with_it in zip(quiet, info, strict=True)]
    cost = statistics.median(costs)
    summaries = {level: summary(rounds) for level, rounds in measured.items()}
    return Report(
        name="logging",
        title=f"What logging at info costs lock traffic, {CONNECTIONS} connections, {length}",
        header=("log level", "operations/s", "slowest", "fastest", "p50 ms", "p99 ms"),
        rows=[
            (
                level,
                *(whole(one.per_second), whole(one.slowest_per_second), whole(one.fastest_per_second)),
                *(f"{one.p50_ms:.2f}", f"{one.p99_ms:.2f}"),
            )
            for level, one in summaries.items()
        ],
        facts=machine,
        goals=[Goal(f"median cost of a pair under {COST_MAX:.0%}", f"{cost:.1%}", cost < COST_MAX)],
        problems=[problem for level, rounds in measured.items() for problem in problems_of(level, rounds)],
        notes=[
            f"One request in {REFUSED_EVERY} is refused.",
            f"Cost of each pair: {', '.join(f'{one:+.1%}' for one in costs)}.",
        ],
    )
