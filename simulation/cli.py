"""The command line: `python -m simulation run|mutants`.

Runs seeds of whole deployments on virtual time, or looks for planted faults.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Final

from . import planted
from .plan import plan_of
from .profiles import PROFILES, STORES
from .run import run
from .shrink import shrink
from .timeline import timeline

EXIT_VIOLATION: Final = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0 if nothing was found, 1 after a violation, 2 for wrong arguments."""
    parser = argparse.ArgumentParser(prog="python -m simulation", description=(__doc__ or "").split("\n\n")[1])
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run", help="run seeds until one fails")
    running.add_argument("--seed", type=int, default=1, help="the first seed (default 1)")
    running.add_argument("--seeds", type=int, default=1, help="how many seeds from there on (default 1)")
    running.add_argument("--operations", type=_positive, default=10_000, help="operations of each seed (default 10000)")
    running.add_argument("--store", choices=STORES, help="the engine, instead of the seed's own")
    running.add_argument("--profile", choices=PROFILES, help="the profile, instead of the seed's own")
    running.add_argument("--no-shrink", action="store_true", help="print the first failing run as it is")
    running.add_argument("--quiet", action="store_true", help="print one line at the end, not one for each seed")
    planting = commands.add_parser("mutants", help="plant each fault of simulation/mutants and look for it")
    planting.add_argument("names", nargs="*", help="only these patches, by name")
    planting.add_argument("--operations", type=_positive, default=planted.OPERATIONS_MAX, help="at most, for each")
    searching = commands.add_parser("search", help="run seeds until one fails; prints the kind and the operations")
    searching.add_argument("--operations", type=_positive, default=planted.OPERATIONS_MAX)
    parsed = parser.parse_args(arguments)
    if parsed.command == "mutants":
        return _mutants(parsed.names, parsed.operations)
    if parsed.command == "search":
        found = planted.search_here(parsed.operations)
        print(found.kind or "-", found.operations)
        return 0
    return _run(parsed)


def _mutants(names: Sequence[str], operations_max: int) -> int:
    """Print a table of what found each planted fault; returns 1 if one was not found."""
    chosen = [patch for patch in planted.patches() if not names or patch.stem in names]
    print(f"{'planted fault':<30} {'found by':<26} {'operations':>10}")
    missed = 0
    for patch in chosen:
        found = planted.search(patch, operations_max)
        missed += found.kind is None
        print(f"{patch.stem:<30} {found.kind or 'NOT FOUND':<26} {found.operations:>10,}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} found")
    return EXIT_VIOLATION if missed else 0


def _run(parsed: argparse.Namespace) -> int:
    began, operations, virtual = time.perf_counter(), 0, 0.0
    for seed in range(parsed.seed, parsed.seed + parsed.seeds):
        outcome = run(plan_of(seed, parsed.operations, store=parsed.store, profile=parsed.profile))
        operations += outcome.operations
        virtual += outcome.true_seconds
        if outcome.violation is not None:
            print(f"seed {seed}: VIOLATION {outcome.violation.kind} after {outcome.operations} operations", flush=True)
            if not parsed.no_shrink:
                outcome = shrink(outcome, lambda line: print(f"  {line}"[:80], file=sys.stderr, flush=True))
            print(timeline(outcome))
            print(f"\nAgain: {_command(seed, parsed)}")
            return EXIT_VIOLATION
        if not parsed.quiet:
            plan = outcome.plan
            print(
                f"seed {seed:>6}  {plan.profile:<12}  {plan.store:<8}  {plan.nodes} nodes  "
                f"{len(plan.faults):>2} faults  {outcome.digest}",
                flush=True,
            )
    seconds = time.perf_counter() - began
    print(
        f"{operations:,} operations checked, no violation: {parsed.seeds} seeds from {parsed.seed}\n"
        f"{seconds:.0f} s, {operations / max(seconds, 0.001):,.0f} operations a second, "
        f"{virtual / 3600:.1f} h of virtual time"
    )
    return 0


def _command(seed: int, parsed: argparse.Namespace) -> str:
    """What runs that seed again."""
    chosen = "".join(f" --{name} {value}" for name in ("store", "profile") if (value := getattr(parsed, name)))
    return f"python -m simulation run --seed {seed} --operations {parsed.operations}{chosen}"


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1; got {number}")
    return number
