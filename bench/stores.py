"""Each store's durable lock operations a second over HTTP, beside plain clients of the same engines.

What a plain client reaches is what an engine gives to one who commits each lease by itself. Ours does more for each
operation (HTTP, credentials, the rules of a lease), and commits many of them at once.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from . import postgres
from .machine import facts, version_of, version_said_by
from .ours import loaded, volcano_locks
from .peers import Load, etcd, etcd_serving
from .postgres import pgbench, postgres_serving
from .report import Goal, Report, problems_of, summary, whole
from .turns import Peer, in_turns
from .wrk import CONNECTIONS, Measured

TIMES_PGBENCH_MIN: Final = 0.5
TIMES_ETCD_MIN: Final = 1.5


@contextmanager
def on_postgres(folder: Path) -> Iterator[Load]:
    """Ours on a fresh PostgreSQL."""
    with (
        postgres_serving(folder) as port,
        loaded(f"postgresql://postgres@127.0.0.1:{port}/postgres", folder / "locks.log") as load,
    ):
        yield load


@contextmanager
def on_etcd(folder: Path) -> Iterator[Load]:
    """Ours on a fresh member of etcd."""
    with etcd_serving(folder) as peer, loaded(f"etcd://127.0.0.1:{peer.port}/bench", folder / "locks.log") as load:
        yield load


PEERS: Final[dict[str, Peer]] = {
    "volcano-locks on SQLite": volcano_locks,
    "volcano-locks on PostgreSQL": on_postgres,
    "pgbench: one lease upsert": pgbench,
    "volcano-locks on etcd": on_etcd,
    "etcd: create if absent (HTTP gateway)": etcd,
}
SQLITE, POSTGRES, PGBENCH, ETCD, GATEWAY = PEERS
PLAIN: Final = {POSTGRES: PGBENCH, PGBENCH: PGBENCH, ETCD: GATEWAY, GATEWAY: GATEWAY}


def measure(folder: Path, *, rounds: int, seconds: float, warm_up_seconds: float) -> Report:
    """The report on stores; `seconds` is the length of one round of one peer."""
    machine = [
        *facts(folder),
        ("PostgreSQL", version_said_by(postgres.program("postgres"))),
        ("etcd", version_of("etcd", "etcd-server")),
    ]
    measured = in_turns(PEERS, folder, rounds=rounds, seconds=seconds, warm_up_seconds=warm_up_seconds)
    return _report(measured, machine, f"{rounds} rounds of {seconds:.0f} s")


def _report(measured: dict[str, list[Measured]], machine: list[tuple[str, str]], length: str) -> Report:
    summaries = {name: summary(rounds) for name, rounds in measured.items()}
    times = {name: summaries[name].per_second / summaries[plain].per_second for name, plain in PLAIN.items()}
    return Report(
        name="stores",
        title=f"Durable operations a second by store, {CONNECTIONS} connections, medians of {length}",
        header=("", "operations/s", "slowest", "fastest", "times plain client", "p50 ms", "p99 ms"),
        rows=[
            (
                name,
                *(whole(one.per_second), whole(one.slowest_per_second), whole(one.fastest_per_second)),
                *(f"{times[name]:.2f}" if name in times else "", f"{one.p50_ms:.2f}", f"{one.p99_ms:.2f}"),
            )
            for name, one in summaries.items()
        ],
        facts=machine,
        goals=[
            _goal(f"PostgreSQL at least {TIMES_PGBENCH_MIN} times pgbench", times[POSTGRES], TIMES_PGBENCH_MIN),
            _goal(f"etcd at least {TIMES_ETCD_MIN} times its gateway", times[ETCD], TIMES_ETCD_MIN),
        ],
        problems=[problem for name, rounds in measured.items() for problem in problems_of(name, rounds)],
    )


def _goal(text: str, times: float, least: float) -> Goal:
    return Goal(text, f"{times:.2f}", times >= least)
