"""The table of a run, for people and as JSON."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import median

from .history import FaultInterval
from .run import Run

Row = dict[str, object]


def rows(run: Run) -> list[Row]:
    """One row for each kind of fault: how often, operations meanwhile, violations, and recovery times in seconds."""
    by_kind: defaultdict[str, list[FaultInterval]] = defaultdict(list)
    for fault in run.history.faults:
        by_kind[fault.kind].append(fault)
    return [_row(run.engine, kind, by_kind[kind]) for kind in sorted(by_kind)]


def _row(engine: str, kind: str, faults: Sequence[FaultInterval]) -> Row:
    times = [fault.recovery_seconds for fault in faults if fault.recovery_seconds is not None]
    return {
        "engine": engine,
        "fault": kind,
        "times": len(times),
        "operations": sum(fault.operations for fault in faults),
        "violations": sum(len(fault.violations) for fault in faults),
        "recovery_median": round(median(times), 2) if times and kind != "none" else None,
        "recovery_max": round(max(times), 2) if times and kind != "none" else None,
    }


def summary(run: Run) -> Row:
    """What was checked besides."""
    counts = run.history.operations
    return {
        "engine": run.engine,
        "seed": str(run.seed),
        "seconds": round(run.seconds),
        "operations": counts.total(),
        "grants": counts["acquire granted"] + counts["renew granted"],
        "unknown": sum(count for name, count in counts.items() if name.endswith("unknown")),
        "lasting_leases": len(run.lasting),
        "writes_accepted": run.fence.counts["accepted"],
        "late_writes_refused": run.fence.counts["refused"],
        "longest_wait_grants": run.history.longest_wait_grants,
        "longest_call_seconds": round(run.history.longest_call_seconds, 1),
        "violations": len(run.violations),
    }


def table(runs: Sequence[Run]) -> Iterator[str]:
    """The lines of the table, of at most 80 columns."""
    yield f"{'':34} {'':5} {'opera-':>9} {'viola-':>7}  {'recovery in seconds':>20}"
    yield f"{'fault':34} {'times':>5} {'tions':>9} {'tions':>7}  {'median':>10} {'maximum':>9}"
    for run in runs:
        yield f"--- {run.engine} ---"
        for row in rows(run):
            median_seconds, max_seconds = ("" if row[name] is None else row[name] for name in RECOVERY)
            yield (
                f"{row['fault']:34} {row['times']:>5} {row['operations']:>9,} {row['violations']:>7}  "
                f"{median_seconds:>10} {max_seconds:>9}"
            )
    yield ""
    for run in runs:
        facts = summary(run)
        yield f"{run.engine}: seed {run.seed}, {facts['seconds']} s"
        yield (
            f"  {facts['operations']:,} operations, {facts['grants']:,} grants, {facts['unknown']:,} unknown outcomes, "
            f"{facts['violations']} violations"
        )
        yield (
            f"  fenced storage: {facts['writes_accepted']:,} writes accepted, "
            f"{facts['late_writes_refused']} late ones refused"
        )
        yield (
            f"  lasting leases: {facts['lasting_leases']}; longest wait: {facts['longest_wait_grants']} grants; "
            f"longest call: {facts['longest_call_seconds']} s"
        )


RECOVERY = ("recovery_median", "recovery_max")
