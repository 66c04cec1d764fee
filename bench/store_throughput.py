"""Durable lock operations per second with each store, compared with a plain client of the same engine.

A plain client commits each lease by itself. The lock server does more for each operation (HTTP, credentials, the lease
rules) and commits many operations at once.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from .baselines import Load, etcd_load, running_etcd
from .interleaved_rounds import Target, run_interleaved
from .lock_server import server_load, sqlite_load
from .machine import etcd_version, machine_facts, version_at
from .postgres_baseline import pgbench_load, postgres_program, running_postgres
from .report import LATENCY_HEADER, RATE_HEADER, Goal, Report, problems_of, summary
from .wrk import CONNECTIONS, RoundResult

TIMES_PGBENCH_MIN: Final = 0.5
TIMES_ETCD_MIN: Final = 1.5


@contextmanager
def postgres_store_load(folder: Path) -> Iterator[Load]:
    """The lock server on a fresh PostgreSQL."""
    with (
        running_postgres(folder) as port,
        server_load(f"postgresql://postgres@127.0.0.1:{port}/postgres", folder / "locks.log") as load,
    ):
        yield load


@contextmanager
def etcd_store_load(folder: Path) -> Iterator[Load]:
    """The lock server on a fresh etcd member."""
    with running_etcd(folder) as etcd, server_load(f"etcd://127.0.0.1:{etcd.port}/bench", folder / "locks.log") as load:
        yield load


TARGETS: Final[dict[str, Target]] = {
    "volcano-locks on SQLite": sqlite_load,
    "volcano-locks on PostgreSQL": postgres_store_load,
    "pgbench: one lease upsert": pgbench_load,
    "volcano-locks on etcd": etcd_store_load,
    "etcd: create if absent (HTTP gateway)": etcd_load,
}
SQLITE, POSTGRES, PGBENCH, ETCD, GATEWAY = TARGETS
PLAIN_CLIENT: Final = {POSTGRES: PGBENCH, PGBENCH: PGBENCH, ETCD: GATEWAY, GATEWAY: GATEWAY}


def measure(folder: Path, *, rounds: int, seconds: float, warm_up_seconds: float) -> Report:
    """The report on stores. `seconds` is the length of one round of one target."""
    machine = [
        *machine_facts(folder),
        ("PostgreSQL", version_at(postgres_program("postgres"))),
        etcd_version(),
    ]
    results = run_interleaved(TARGETS, folder, rounds=rounds, seconds=seconds, warm_up_seconds=warm_up_seconds)
    return _report(results, machine, f"{rounds} rounds of {seconds:.0f} s")


def _report(results: dict[str, list[RoundResult]], machine: list[tuple[str, str]], length: str) -> Report:
    summaries = {name: summary(rounds) for name, rounds in results.items()}
    times = {name: summaries[name].per_second / summaries[plain].per_second for name, plain in PLAIN_CLIENT.items()}
    return Report(
        name="store-throughput",
        title=f"Durable operations per second by store, {CONNECTIONS} connections, medians of {length}",
        header=("", *RATE_HEADER, "times plain client", *LATENCY_HEADER),
        rows=[
            (name, *one.rate_cells(), f"{times[name]:.2f}" if name in times else "", *one.latency_cells())
            for name, one in summaries.items()
        ],
        facts=machine,
        goals=[
            _goal(f"PostgreSQL at least {TIMES_PGBENCH_MIN} times pgbench", times[POSTGRES], TIMES_PGBENCH_MIN),
            _goal(f"etcd at least {TIMES_ETCD_MIN} times its gateway", times[ETCD], TIMES_ETCD_MIN),
        ],
        problems=[problem for name, rounds in results.items() for problem in problems_of(name, rounds)],
    )


def _goal(text: str, times: float, times_min: float) -> Goal:
    return Goal(text, f"{times:.2f}", times >= times_min)
