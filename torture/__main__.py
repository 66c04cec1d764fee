"""`python -m torture --minutes M [--engine E] [--seed S] [--json]`: run it, and print a table of faults."""

import argparse
import asyncio
import json
import secrets
import signal
import sys
import time

from . import report
from .run import ENGINES, Run


def main() -> int:
    """Run the torture as the command line says."""
    parser = argparse.ArgumentParser(prog="python -m torture", description=__doc__)
    parser.add_argument("--minutes", type=float, default=3, help="for all engines together (default: 3)")
    parser.add_argument("--engine", choices=list(ENGINES), action="append", help="one engine (default: all)")
    parser.add_argument("--seed", help="chooses the faults (default: a new one)")
    parser.add_argument("--json", action="store_true", help="print the table as JSON")
    arguments = parser.parse_args()
    seed = arguments.seed or secrets.token_hex(4)
    engines = arguments.engine or list(ENGINES)
    began_at = time.monotonic()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that it ends what it has started

    def progress(line: str) -> None:
        print(f"[{time.monotonic() - began_at:6.0f} s] {line}", file=sys.stderr, flush=True)

    progress(f"seed {seed}: {', '.join(engines)}, {arguments.minutes:g} minutes")
    runs = []
    for engine in engines:
        run = Run(engine, seed, progress)
        asyncio.run(run.last(arguments.minutes * 60 / len(engines)))
        runs.append(run)
    if arguments.json:
        facts = [
            {"summary": report.summary(run), "faults": report.rows(run), "violations": run.violations} for run in runs
        ]
        print(json.dumps(facts, indent=2))
    else:
        print("\n".join(report.table(runs)))
        for run in runs:
            for violation in run.violations:
                print(f"\nVIOLATION ({run.engine}) {violation}")
    return 1 if any(run.violations for run in runs) else 0


if __name__ == "__main__":
    sys.exit(main())
