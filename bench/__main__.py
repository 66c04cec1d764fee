"""`python -m bench [NAME…] [--quick]`: run benchmarks, print their reports, and save them under today's date."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from . import (
    client_latency,
    handoff_latency,
    held_leases,
    logging_cost,
    startup_time,
    store_throughput,
    throughput,
    waiter_load,
)
from .machine import working_folder
from .processes import BenchError
from .report import Report

FULL: Final[dict[str, Callable[[Path], Report]]] = {
    "throughput": lambda folder: throughput.measure(folder, rounds=3, seconds=8, warm_up_seconds=2),
    "store-throughput": lambda folder: store_throughput.measure(folder, rounds=3, seconds=8, warm_up_seconds=2),
    "held-leases": lambda folder: held_leases.measure(folder, rounds=3, seconds=8, warm_up_seconds=2),
    "logging-cost": lambda folder: logging_cost.measure(folder, pairs=8, seconds=4, warm_up_seconds=2),
    "client-latency": lambda folder: client_latency.measure(folder, rounds=20, cycles=100),
    "handoff-latency": lambda folder: handoff_latency.measure(folder, rounds=4, seconds=10),
    "waiter-load": lambda folder: waiter_load.measure(
        folder, rounds=3, seconds=8, warm_up_seconds=2, idle_seconds=25, deaths=3
    ),
    "startup-time": lambda folder: startup_time.measure(folder, samples=15),
}
QUICK: Final[dict[str, Callable[[Path], Report]]] = {
    "throughput": lambda folder: throughput.measure(folder, rounds=1, seconds=1, warm_up_seconds=1),
    "store-throughput": lambda folder: store_throughput.measure(folder, rounds=1, seconds=1, warm_up_seconds=1),
    "held-leases": lambda folder: held_leases.measure(folder, rounds=1, seconds=1, warm_up_seconds=1, held=10_000),
    "logging-cost": lambda folder: logging_cost.measure(folder, pairs=1, seconds=1, warm_up_seconds=1),
    "client-latency": lambda folder: client_latency.measure(folder, rounds=2, cycles=20),
    "handoff-latency": lambda folder: handoff_latency.measure(folder, rounds=1, seconds=1),
    "waiter-load": lambda folder: waiter_load.measure(
        folder, rounds=1, seconds=1, warm_up_seconds=1, idle_seconds=1, deaths=1
    ),
    "startup-time": lambda folder: startup_time.measure(folder, samples=2),
}


def main(arguments: list[str]) -> int:
    """Run the benchmarks. Returns 0 if all numbers are valid and all goals reached, 1 if not, 2 if one cannot run.

    With --quick, goals do not count.
    """
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"benchmarks: {', '.join(FULL)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="smoke test: a few seconds each, nothing is saved")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.names) - set(FULL))
    if unknown:
        parser.error(f"unknown benchmark {unknown[0]!r}: choose from {', '.join(FULL)}")
    benchmarks = QUICK if options.quick else FULL
    passed = True
    for name in options.names or FULL:
        try:
            with working_folder() as folder:
                report = benchmarks[name](folder)
        except BenchError as error:
            print(f"{name}: {error}", file=sys.stderr)
            return 2
        print(report.text())
        if options.quick:
            passed = passed and not report.problems
        else:
            print(f"saved as bench/results/{report.write().name}\n")
            passed = passed and report.passed
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
