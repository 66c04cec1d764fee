"""Durable lock operations a second over HTTP, beside etcd's gateway and Redis with a synced log."""

from pathlib import Path
from typing import Final

from .machine import facts, peer_versions
from .ours import volcano_locks
from .peers import etcd, redis
from .report import Goal, Report, problems_of, summary, whole
from .turns import Peer, in_turns
from .wrk import CONNECTIONS, Measured

TIMES_ETCD_MIN: Final = 2.0
P99_MS_MAX: Final = 20.0

PEERS: Final[dict[str, Peer]] = {
    "volcano-locks: acquire, release (HTTP, SQLite)": volcano_locks,
    "etcd: create if absent (HTTP gateway)": etcd,
    "Redis: fenced acquire in Lua (RESP, AOF always)": redis,
}
OURS, ETCD, _ = PEERS


def measure(folder: Path, *, rounds: int, seconds: float, warm_up_seconds: float) -> Report:
    """The throughput report; `seconds` is the length of one round of one peer."""
    machine = facts(folder) + peer_versions()
    measured = in_turns(PEERS, folder, rounds=rounds, seconds=seconds, warm_up_seconds=warm_up_seconds)
    return _report(measured, machine, f"{rounds} rounds of {seconds:.0f} s")


def _report(measured: dict[str, list[Measured]], machine: list[tuple[str, str]], length: str) -> Report:
    summaries = {name: summary(rounds) for name, rounds in measured.items()}
    ours, etcds = summaries[OURS], summaries[ETCD]
    times = ours.per_second / etcds.per_second
    return Report(
        name="throughput",
        title=f"Durable operations a second, {CONNECTIONS} connections, medians of {length}",
        header=("", "operations/s", "slowest", "fastest", "times etcd", "p50 ms", "p99 ms"),
        rows=[
            (
                name,
                *(whole(one.per_second), whole(one.slowest_per_second), whole(one.fastest_per_second)),
                *(f"{one.per_second / etcds.per_second:.2f}", f"{one.p50_ms:.2f}", f"{one.p99_ms:.2f}"),
            )
            for name, one in summaries.items()
        ],
        facts=machine,
        goals=[
            Goal(f"at least {TIMES_ETCD_MIN} times etcd", f"{times:.2f}", times >= TIMES_ETCD_MIN),
            Goal(f"p99 under {P99_MS_MAX:.0f} ms", f"{ours.p99_ms:.2f} ms", ours.p99_ms < P99_MS_MAX),
        ],
        problems=[problem for name, rounds in measured.items() for problem in problems_of(name, rounds)],
    )
