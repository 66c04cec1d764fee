"""The cost of the history: the same loads on two servers over each store, one with `--history-days 0`.

One load uses each lock once, the other the same locks again and again: their entries are stored apart (HISTORY-2).
Both servers of a store run all the time and are loaded alternately (A B, B A, A B …). The two rounds of a pair are
compared, so that a machine that slows down affects both sides.
"""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Final

from .baselines import running_etcd
from .interleaved_rounds import rotated
from .lock_server import create_project, running_server_on
from .machine import machine_facts
from .postgres_baseline import running_postgres
from .report import LATENCY_HEADER, RATE_HEADER, Goal, Report, problems_of, summary
from .wrk import CONNECTIONS, RoundResult

SHARE_MIN: Final[Mapping[str, float]] = {"SQLite": 0.9, "PostgreSQL": 0.9, "etcd": 0.7}
DAYS: Final = (0, 7)
LOCKS: Final = (0, 2_000)  # used again and again; 0: each lock is used once

Rounds = dict[tuple[int, int], list[RoundResult]]
"""By the number of `LOCKS` and of `DAYS`."""


@contextmanager
def _sqlite(folder: Path) -> Iterator[str]:
    yield f"sqlite:///{folder / 'locks.db'}"


@contextmanager
def _postgres(folder: Path) -> Iterator[str]:
    with running_postgres(folder) as port:
        yield f"postgresql://postgres@127.0.0.1:{port}/postgres"


@contextmanager
def _etcd(folder: Path) -> Iterator[str]:
    with running_etcd(folder) as etcd:
        yield f"etcd://127.0.0.1:{etcd.port}/bench"


STORES: Final[Mapping[str, Callable[[Path], AbstractContextManager[str]]]] = {
    "SQLite": _sqlite,
    "PostgreSQL": _postgres,
    "etcd": _etcd,
}


def measure(
    folder: Path, *, pairs: int, seconds: float, warm_up_seconds: float, stores: Sequence[str] = tuple(STORES)
) -> Report:
    """The report on the history. A pair is one round of each server of a store, `seconds` long each."""
    machine = machine_facts(folder)
    results = {store: _pairs(folder / store, store, pairs, seconds, warm_up_seconds) for store in stores}
    return _report(results, machine, f"medians of {pairs} pairs of {seconds:.0f} s")


def _pairs(folder: Path, store: str, pairs: int, seconds: float, warm_up_seconds: float) -> Rounds:
    results: Rounds = {(locks, days): [] for locks in LOCKS for days in DAYS}
    with ExitStack() as stack:
        loads = {}
        for days in DAYS:
            of_server = folder / str(days)
            of_server.mkdir(parents=True)
            url = stack.enter_context(STORES[store](of_server))
            server = stack.enter_context(running_server_on(url, of_server / "server.log", history_days=days))
            loads[days] = (server, create_project(server).service_key)
        for server, key in loads.values():
            server.load(key, warm_up_seconds)
        for number in range(pairs):
            for locks in LOCKS:
                for days in rotated(DAYS, number):
                    server, key = loads[days]
                    results[locks, days].append(server.load(key, seconds, locks=locks))
    return results


def _share(of_store: Rounds, locks: int) -> float:
    pairs = zip(of_store[locks, DAYS[0]], of_store[locks, DAYS[1]], strict=True)
    return statistics.median(on.per_second / off.per_second for off, on in pairs)


def _report(results: Mapping[str, Rounds], machine: list[tuple[str, str]], length: str) -> Report:
    shares = {store: _share(of_store, 0) for store, of_store in results.items()}
    again = ", ".join(f"{store} {_share(of_store, LOCKS[1]):.2f}" for store, of_store in results.items())
    named = [
        (f"{store}, {f'{locks:,} locks, ' if locks else ''}history {'on' if days else 'off'}", rounds)
        for store, of_store in results.items()
        for (locks, days), rounds in of_store.items()
    ]
    return Report(
        name="history-cost",
        title=f"Cost of the history, {CONNECTIONS} connections, {length}",
        header=("", *RATE_HEADER, *LATENCY_HEADER),
        rows=[(name, *one.rate_cells(), *one.latency_cells()) for name, rounds in named for one in [summary(rounds)]],
        facts=machine,
        goals=[
            Goal(
                f"{store} with history at least {SHARE_MIN[store]} times without",
                f"{share:.2f}",
                share >= SHARE_MIN[store],
            )
            for store, share in shares.items()
        ],
        notes=[f"With {LOCKS[1]:,} locks that are used again and again, history on / off: {again}."],
        problems=[problem for name, rounds in named for problem in problems_of(name, rounds)],
    )
