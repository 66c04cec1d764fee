"""The HTTP front over connections: CPU, rate and latency, compared with another commit of this repository.

Both servers run the same load, alternately, each alone and in a fresh folder. At CONNECTIONS connections etcd and Redis
run between them. Then, on both: how fast new connections are served beside many busy ones, and after a restart at which
thousands of clients connect at once (see `new_connections`).
"""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from . import new_connections
from .baselines import etcd_load, redis_load
from .interleaved_rounds import Target, rotated
from .line_chart import LineChart
from .lock_server import create_project, running_server
from .machine import baseline_versions, machine_facts
from .new_connections import NewConnectionLoad
from .processes import cpu_seconds
from .progress import progress
from .report import LATENCY_HEADER, RATE_HEADER, Goal, Report, problems_of, summary, thousands
from .source_tree import ROOT, commit_tree
from .wrk import CONNECTIONS, RoundResult

BEFORE: Final = "f2bd574"  # the last commit before the connection protocol and the hot path were rewritten
CONNECTION_COUNTS: Final = (1, 8, CONNECTIONS, 256, 1_000)
CPU_SHARE_MAX: Final = {CONNECTIONS: 0.65, 256: 0.55}
TIMES_ETCD_MIN: Final = 4.0
TIMES_REDIS_MIN: Final = 0.45
THIS: Final = "this tree"
ETCD: Final = "etcd: create if absent (HTTP gateway)"
REDIS: Final = "Redis: fenced acquire in Lua (RESP, AOF always)"
PEERS: Final[dict[str, Target]] = {ETCD: etcd_load, REDIS: redis_load}


class Measured(NamedTuple):
    """One round of a server. `cpu_us` is the server's CPU time for an acquire and a release, None for a peer."""

    result: RoundResult
    cpu_us: float | None = None


Rounds = dict[tuple[str, int], list[Measured]]


def measure(
    folder: Path, *, against: str, rounds: int, seconds: float, warm_up_seconds: float, new_load: NewConnectionLoad
) -> Report:
    """The report on this tree and the commit `against`. `seconds` is the length of one round of one server."""
    facts = [*machine_facts(folder), *baseline_versions(), ("compared with", f"commit {against}")]
    other = f"commit {against}"
    measured: Rounds = {}
    with commit_tree(against, folder / "tree") as tree:
        trees = {THIS: ROOT, other: tree}
        for number in range(rounds):
            for connections in CONNECTION_COUNTS:
                names = [*trees, *(PEERS if connections == CONNECTIONS else ())]
                for name in rotated(names, number):
                    fresh = folder / f"{number}-{connections}-{names.index(name)}"
                    fresh.mkdir()
                    if name in trees:
                        one = _measure_server(fresh, trees[name], connections, seconds, warm_up_seconds)
                    else:
                        one = _measure_peer(fresh, PEERS[name], seconds, warm_up_seconds)
                    measured.setdefault((name, connections), []).append(one)
                    progress(_progress_line(number, rounds, connections, name, one))
        new = new_connections.measure(folder, trees, new_load)
    return _report(measured, other, new, facts, f"medians of {rounds} rounds of {seconds:.0f} s")


def _measure_server(folder: Path, tree: Path, connections: int, seconds: float, warm_up_seconds: float) -> Measured:
    with running_server(folder / "locks.db", tree=tree) as server:
        service_key = create_project(server).service_key
        server.load(service_key, warm_up_seconds, connections=connections)
        cpu = cpu_seconds(server.pid)
        result = server.load(service_key, seconds, connections=connections)
        cpu = cpu_seconds(server.pid) - cpu
        return Measured(result, cpu * 1e6 / max(1, result.operations / 2))


def _measure_peer(folder: Path, target: Target, seconds: float, warm_up_seconds: float) -> Measured:
    with target(folder) as load:
        load(warm_up_seconds)
        return Measured(load(seconds))


def _progress_line(number: int, rounds: int, connections: int, name: str, one: Measured) -> str:
    cpu = f", {one.cpu_us:.0f} µs of CPU" if one.cpu_us is not None else ""
    rate = f"{thousands(one.result.per_second)}/s, p99 {one.result.p99_ms:.1f} ms{cpu}"
    return f"round {number + 1} of {rounds}, {connections:,} connections, {name}: {rate}"


def _report(
    measured: Rounds, other: str, new: new_connections.NewConnectionResults, facts: list[tuple[str, str]], length: str
) -> Report:
    cpu_shares = {
        connections: _median_ratio(_cpu(measured, THIS, connections), _cpu(measured, other, connections))
        for connections in CONNECTION_COUNTS
    }
    return Report(
        name="http-front",
        title=f"The HTTP front over connections, {length}",
        header=("", "connections", *RATE_HEADER, *LATENCY_HEADER, "CPU µs per acquire + release"),
        rows=[
            row
            for connections in CONNECTION_COUNTS
            for name in (THIS, other, *PEERS)
            if (name, connections) in measured
            for row in [_row(name, connections, measured[name, connections])]
        ],
        facts=facts,
        goals=[
            *(
                Goal(
                    f"CPU at {connections} connections at most {share_max} x {other}'s",
                    f"{cpu_shares[connections]:.2f}",
                    cpu_shares[connections] <= share_max,
                )
                for connections, share_max in CPU_SHARE_MAX.items()
            ),
            _times_goal(measured, ETCD, f"at least {TIMES_ETCD_MIN} times etcd's gateway", TIMES_ETCD_MIN),
            _times_goal(measured, REDIS, f"at least {TIMES_REDIS_MIN} times Redis", TIMES_REDIS_MIN),
            *new.goals(THIS),
        ],
        problems=[
            *(
                problem
                for (name, connections), ones in measured.items()
                for problem in problems_of(f"{name}, {connections} connections", [one.result for one in ones])
            ),
            *new.problems(THIS),
        ],
        notes=[
            "CPU of this tree as a share of the other commit's, the median of the rounds: "
            + ", ".join(f"{share:.2f} at {connections:,}" for connections, share in cpu_shares.items())
            + " connections.",
            *new.notes(),
        ],
        charts=[
            _chart("throughput", "Durable operations per second", "operations/s", measured, other, logarithmic=False),
            _chart("p99", "Slowest hundredth of the responses (p99)", "p99, ms", measured, other, logarithmic=True),
        ],
    )


def _row(name: str, connections: int, ones: Sequence[Measured]) -> Sequence[str]:
    medians = summary([one.result for one in ones])
    cpu = [one.cpu_us for one in ones if one.cpu_us is not None]
    cpu_cell = f"{statistics.median(cpu):.0f}" if cpu else ""
    return (name, f"{connections:,}", *medians.rate_cells(), *medians.latency_cells(), cpu_cell)


def _cpu(measured: Mapping[tuple[str, int], Sequence[Measured]], name: str, connections: int) -> list[float]:
    return [one.cpu_us or 0.0 for one in measured[name, connections]]


def _times_goal(measured: Rounds, peer: str, text: str, times_min: float) -> Goal:
    rates = [[one.result.per_second for one in measured[name, CONNECTIONS]] for name in (THIS, peer)]
    times = _median_ratio(*rates)
    return Goal(text, f"{times:.2f}", times >= times_min)


def _median_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median of the rounds' ratios: the targets of one round ran one after the other."""
    return statistics.median(one / other for one, other in zip(ours, theirs, strict=True))


def _chart(what: str, title: str, values: str, measured: Rounds, other: str, *, logarithmic: bool) -> LineChart:
    def value(name: str, connections: int) -> float | None:
        if (name, connections) not in measured:
            return None
        medians = summary([one.result for one in measured[name, connections]])
        return medians.per_second if what == "throughput" else medians.p99_ms

    series = {
        shown: [value(name, connections) for connections in CONNECTION_COUNTS]
        for name, shown in ((THIS, "this version"), (other, other), (ETCD, "etcd's HTTP gateway"), (REDIS, "Redis"))
    }
    names = [f"{connections:,}" for connections in CONNECTION_COUNTS]
    return LineChart(f"{what}-over-connections.svg", title, names, "connections", values, series, logarithmic)
