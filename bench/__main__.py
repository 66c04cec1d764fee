"""`python -m bench [NAME…] [--quick] [--against COMMIT]`: run benchmarks, print and save their reports."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from . import (
    client_latency,
    handoff_latency,
    held_leases,
    history_cost,
    http_front,
    insert_order,
    logging_cost,
    memory,
    startup_time,
    store_throughput,
    throughput,
    waiter_load,
)
from .machine import working_folder
from .new_connections import NewConnectionLoad
from .processes import BenchError, allow_many_files
from .report import Report

Benchmark = Callable[[Path], Report]


def full(against: str) -> dict[str, Benchmark]:
    """The benchmarks by name; `against` is the commit that http-front compares with."""
    return {
        "throughput": lambda folder: throughput.measure(folder, rounds=3, seconds=8, warm_up_seconds=2),
        "store-throughput": lambda folder: store_throughput.measure(folder, rounds=3, seconds=8, warm_up_seconds=2),
        "http-front": lambda folder: http_front.measure(
            folder,
            against=against,
            rounds=5,
            seconds=5,
            warm_up_seconds=1,
            new_load=NewConnectionLoad(rounds=5, seconds=6, new_per_second=50, clients=5_000),
        ),
        "held-leases": lambda folder: held_leases.measure(folder, rounds=3, seconds=8, warm_up_seconds=2),
        "logging-cost": lambda folder: logging_cost.measure(folder, pairs=8, seconds=4, warm_up_seconds=2),
        "history-cost": lambda folder: history_cost.measure(folder, pairs=9, seconds=3, warm_up_seconds=2),
        "client-latency": lambda folder: client_latency.measure(folder, rounds=20, cycles=100),
        "handoff-latency": lambda folder: handoff_latency.measure(folder, rounds=4, seconds=10),
        "waiter-load": lambda folder: waiter_load.measure(
            folder, rounds=3, seconds=8, warm_up_seconds=2, idle_seconds=25, deaths=3
        ),
        "insert-order": lambda folder: insert_order.measure(folder, rounds=3, leases=1_000_000, seconds=10),
        "memory": lambda folder: memory.measure(
            folder, sizes=memory.Sizes((0, 100_000, 1_000_000), (0, 2_000, 9_900), 9_900), seconds=30
        ),
        "startup-time": lambda folder: startup_time.measure(folder, samples=15),
    }


def quick(against: str) -> dict[str, Benchmark]:
    """The same with as little work as shows that they run."""
    return {
        "throughput": lambda folder: throughput.measure(folder, rounds=1, seconds=1, warm_up_seconds=1),
        "store-throughput": lambda folder: store_throughput.measure(folder, rounds=1, seconds=1, warm_up_seconds=1),
        "http-front": lambda folder: http_front.measure(
            folder,
            against=against,
            rounds=1,
            seconds=1,
            warm_up_seconds=1,
            new_load=NewConnectionLoad(rounds=1, seconds=1, new_per_second=50, clients=500),
        ),
        "held-leases": lambda folder: held_leases.measure(folder, rounds=1, seconds=1, warm_up_seconds=1, held=10_000),
        "logging-cost": lambda folder: logging_cost.measure(folder, pairs=1, seconds=1, warm_up_seconds=1),
        "history-cost": lambda folder: history_cost.measure(folder, pairs=1, seconds=1, warm_up_seconds=1),
        "client-latency": lambda folder: client_latency.measure(folder, rounds=2, cycles=20),
        "handoff-latency": lambda folder: handoff_latency.measure(folder, rounds=1, seconds=1),
        "waiter-load": lambda folder: waiter_load.measure(
            folder, rounds=1, seconds=1, warm_up_seconds=1, idle_seconds=1, deaths=1
        ),
        "insert-order": lambda folder: insert_order.measure(folder, rounds=1, leases=10_000, seconds=1),
        "memory": lambda folder: memory.measure(
            folder, sizes=memory.Sizes((0, 1_000, 10_000), (0, 50, 200), 200), seconds=1
        ),
        "startup-time": lambda folder: startup_time.measure(folder, samples=2),
    }


def main(arguments: list[str]) -> int:
    """Run the benchmarks. Returns 0 if all numbers are valid and all goals reached, 1 if not, 2 if one cannot run.

    With --quick, goals do not count.
    """
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    names = ", ".join(full(http_front.BEFORE))
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"benchmarks: {names} (default: all)")
    parser.add_argument("--quick", action="store_true", help="smoke test: up to a minute each, nothing is saved")
    parser.add_argument(
        "--against",
        metavar="COMMIT",
        default=http_front.BEFORE,
        help="what http-front compares the working tree with (default: %(default)s)",
    )
    options = parser.parse_args(arguments)
    benchmarks = (quick if options.quick else full)(options.against)
    unknown = sorted(set(options.names) - set(benchmarks))
    if unknown:
        parser.error(f"unknown benchmark {unknown[0]!r}: choose from {names}")
    allow_many_files()
    passed = True
    for name in options.names or benchmarks:
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
