"""Durable lock operations per second over HTTP, compared with etcd's gateway and with Redis, which syncs its log."""

from pathlib import Path
from typing import Final

from .baselines import etcd_load, redis_load
from .interleaved_rounds import Target, run_interleaved
from .lock_server import sqlite_load
from .machine import baseline_versions, machine_facts
from .report import LATENCY_HEADER, RATE_HEADER, Goal, Report, problems_of, summary
from .wrk import CONNECTIONS, RoundResult

TIMES_ETCD_MIN: Final = 2.0
P99_MS_MAX: Final = 20.0

TARGETS: Final[dict[str, Target]] = {
    "volcano-locks: acquire, release (HTTP, SQLite)": sqlite_load,
    "etcd: create if absent (HTTP gateway)": etcd_load,
    "Redis: fenced acquire in Lua (RESP, AOF always)": redis_load,
}
VOLCANO_LOCKS, ETCD, _ = TARGETS


def measure(folder: Path, *, rounds: int, seconds: float, warm_up_seconds: float) -> Report:
    """The throughput report. `seconds` is the length of one round of one target."""
    machine = machine_facts(folder) + baseline_versions()
    results = run_interleaved(TARGETS, folder, rounds=rounds, seconds=seconds, warm_up_seconds=warm_up_seconds)
    return _report(results, machine, f"{rounds} rounds of {seconds:.0f} s")


def _report(results: dict[str, list[RoundResult]], machine: list[tuple[str, str]], length: str) -> Report:
    summaries = {name: summary(rounds) for name, rounds in results.items()}
    volcano_locks, etcd = summaries[VOLCANO_LOCKS], summaries[ETCD]
    times_etcd = volcano_locks.per_second / etcd.per_second
    return Report(
        name="throughput",
        title=f"Durable operations per second, {CONNECTIONS} connections, medians of {length}",
        header=("", *RATE_HEADER, "times etcd", *LATENCY_HEADER),
        rows=[
            (name, *one.rate_cells(), f"{one.per_second / etcd.per_second:.2f}", *one.latency_cells())
            for name, one in summaries.items()
        ],
        facts=machine,
        goals=[
            Goal(f"at least {TIMES_ETCD_MIN} times etcd", f"{times_etcd:.2f}", times_etcd >= TIMES_ETCD_MIN),
            Goal(f"p99 under {P99_MS_MAX:.0f} ms", f"{volcano_locks.p99_ms:.2f} ms", volcano_locks.p99_ms < P99_MS_MAX),
        ],
        problems=[problem for name, rounds in results.items() for problem in problems_of(name, rounds)],
    )
