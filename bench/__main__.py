"""`python -m bench [NAME…] [--quick]`: measure, print, and keep the result under its date."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from . import clients, handoff, held, logging_cost, start, stores, throughput, waiting
from .machine import working_folder
from .processes import BenchError
from .report import Report

FULL: Final[dict[str, Callable[[Path], Report]]] = {
    "throughput": lambda folder: throughput.measure(folder, rounds=3, seconds=8, warm_up_seconds=2),
    "stores": lambda folder: stores.measure(folder, rounds=3, seconds=8, warm_up_seconds=2),
    "held": lambda folder: held.measure(folder, rounds=3, seconds=8, warm_up_seconds=2),
    "logging": lambda folder: logging_cost.measure(folder, pairs=8, seconds=4, warm_up_seconds=2),
    "clients": lambda folder: clients.measure(folder, rounds=20, cycles=100),
    "handoff": lambda folder: handoff.measure(folder, rounds=4, seconds=10),
    "waiting": lambda folder: waiting.measure(
        folder, rounds=3, seconds=8, warm_up_seconds=2, idle_seconds=25, deaths=3
    ),
    "start": lambda folder: start.measure(folder, samples=15),
}
QUICK: Final[dict[str, Callable[[Path], Report]]] = {
    "throughput": lambda folder: throughput.measure(folder, rounds=1, seconds=1, warm_up_seconds=1),
    "stores": lambda folder: stores.measure(folder, rounds=1, seconds=1, warm_up_seconds=1),
    "held": lambda folder: held.measure(folder, rounds=1, seconds=1, warm_up_seconds=1, held=10_000),
    "logging": lambda folder: logging_cost.measure(folder, pairs=1, seconds=1, warm_up_seconds=1),
    "clients": lambda folder: clients.measure(folder, rounds=2, cycles=20),
    "handoff": lambda folder: handoff.measure(folder, rounds=1, seconds=1),
    "waiting": lambda folder: waiting.measure(folder, rounds=1, seconds=1, warm_up_seconds=1, idle_seconds=1, deaths=1),
    "start": lambda folder: start.measure(folder, samples=2),
}


def main(arguments: list[str]) -> int:
    """0: measured and every goal reached (with --quick: measured). 1: a goal missed, or invalid. 2: not measurable."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"what to measure: {', '.join(FULL)} (default: all)")
    parser.add_argument(
        "--quick", action="store_true", help="prove that it runs: numbers mean nothing, nothing is kept"
    )
    asked = parser.parse_args(arguments)
    unknown = sorted(set(asked.names) - set(FULL))
    if unknown:
        parser.error(f"no benchmark is called {unknown[0]!r}: choose of {', '.join(FULL)}")
    chosen = QUICK if asked.quick else FULL
    good = True
    for name in asked.names or FULL:
        try:
            with working_folder() as folder:
                report = chosen[name](folder)
        except BenchError as error:
            print(f"{name}: {error}", file=sys.stderr)
            return 2
        print(report.text())
        if asked.quick:
            good = good and not report.problems
        else:
            print(f"kept in bench/results/{report.write().name}\n")
            good = good and report.good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
