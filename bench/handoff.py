"""How a lock goes from hand to hand: the time from one client's release to the next one's grant, and what it costs.

The same course for everybody (`drivers/handing_off.py`): one lock, and so many who wait for it. All servers run for the
whole time and idle while it is not their turn; the order moves by one each round. Each kind's clients are one process,
which is kind to those who poll: fifty processes would cost more.
"""

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from .machine import facts, version_of
from .ours import new_tenant, serving
from .peers import etcd_serving, redis_serving
from .processes import asked, run, running_driver
from .report import Goal, Report, whole

WAITERS: Final = (1, 2, 50)
P50_MS_MAX: Final = 2.0
P99_MS_MAX: Final = 10.0


class Kind(NamedTuple):
    """One way to hand a lock on: what `drivers/rivals.py` calls it, and how the driver reaches its server."""

    name: str
    camp: str
    reach: dict[str, str]
    has_goal: bool = False


class Course(NamedTuple):
    """One round of one kind with so many waiters."""

    hand_offs_ms: list[float]
    longest_wait_seconds: float
    free_lock_ms: float
    requests: int
    server_cpu_seconds: float
    clients_cpu_seconds: float
    seconds: float


@dataclass
class Driven:
    """A kind that runs, and what its rounds told, by the number of waiters."""

    kind: Kind
    process: "subprocess.Popen[str]"
    courses: dict[int, list[Course]] = field(default_factory=lambda: {waiters: [] for waiters in WAITERS})

    def run(self, waiters: int, seconds: float) -> None:
        told: dict[str, Any] = asked(self.process, json.dumps({"waiters": waiters, "seconds": seconds}))
        self.courses[waiters].append(Course(**told))


def measure(folder: Path, *, rounds: int, seconds: float) -> Report:
    """The report on hand-offs; `seconds` is the length of one round of one kind with one number of waiters."""
    machine = facts(folder)
    with ExitStack() as stack:
        driven = [stack.enter_context(_driven(kind)) for kind in _kinds(stack, folder)]
        for waiters in WAITERS:
            for number in range(rounds):
                first = number % len(driven)
                for one in driven[first:] + driven[:first]:
                    one.run(waiters, seconds)
    return _report(driven, machine, f"{rounds} rounds of {seconds:.0f} s each")


def _kinds(stack: ExitStack, folder: Path) -> list[Kind]:
    """All kinds, with their servers running until the stack is left."""
    server = stack.enter_context(serving(folder / "locks.db"))
    etcd = stack.enter_context(etcd_serving(folder))
    redis = stack.enter_context(redis_serving(folder))
    ours = {
        "BENCH_PORT": server.url.rpartition(":")[2],
        "BENCH_SERVER_PID": str(server.pid),
        "BENCH_SERVICE_KEY": new_tenant(server).service_key,
    }
    return [
        Kind("volcano-locks", "http", ours, has_goal=True),
        Kind("etcd's lock service", "etcd", {"BENCH_PORT": str(etcd.port), "BENCH_SERVER_PID": str(etcd.pid)}),
        Kind("volcano-locks' Python client", "python", ours),
        Kind("redis-py's Lock", "redis", {"BENCH_PORT": str(redis.port), "BENCH_SERVER_PID": str(redis.pid)}),
    ]


@contextmanager
def _driven(kind: Kind) -> Iterator[Driven]:
    command = (sys.executable, "-m", "bench.drivers.handing_off", kind.camp)
    with running_driver(command, environment=kind.reach) as process:
        yield Driven(kind, process)


def _report(driven: list[Driven], machine: list[tuple[str, str]], length: str) -> Report:
    return Report(
        name="handoff",
        title=f"From one client's release to the next one's grant, {length}",
        header=(
            *("", "waiters", "hand-offs", "p50 ms", "p99 ms", "free lock ms", "longest wait s"),
            *("requests", "server CPU ms", "clients CPU ms", "both, of a core"),
        ),
        rows=[_row(one, waiters) for waiters in WAITERS for one in driven],
        facts=machine + _versions(),
        goals=[goal for one in driven if one.kind.has_goal for waiters in WAITERS for goal in _goals(one, waiters)],
        problems=[
            f"{one.kind.name}, {waiters} waiters, round {number}: nothing was handed on"
            for one in driven
            for waiters in WAITERS
            for number, course in enumerate(one.courses[waiters], 1)
            if not course.hand_offs_ms
        ],
        notes=[
            "Requests and CPU time are those of one hand-off, with all that those who wait do meanwhile.",
            "A free lock is one that nobody else wants: the median time of its acquire in the same rounds.",
        ],
    )


def _row(one: Driven, waiters: int) -> Sequence[str]:
    courses = one.courses[waiters]
    hand_offs = max(1, sum(len(course.hand_offs_ms) for course in courses))
    server = sum(course.server_cpu_seconds for course in courses)
    clients = sum(course.clients_cpu_seconds for course in courses)
    p50, p99 = _p50_and_p99(courses)
    return (
        *(one.kind.name, str(waiters), whole(hand_offs), f"{p50:.2f}", f"{p99:.2f}"),
        f"{statistics.median(course.free_lock_ms for course in courses):.2f}",
        f"{max(course.longest_wait_seconds for course in courses):.2f}",
        f"{sum(course.requests for course in courses) / hand_offs:.1f}",
        *(f"{server * 1_000 / hand_offs:.2f}", f"{clients * 1_000 / hand_offs:.2f}"),
        f"{(server + clients) / sum(course.seconds for course in courses):.1%}",
    )


def _goals(one: Driven, waiters: int) -> list[Goal]:
    who = f"{one.kind.name}, {waiters} {'waiter' if waiters == 1 else 'waiters'}"
    p50, p99 = _p50_and_p99(one.courses[waiters])
    return [
        Goal(f"{who}: p50 at most {P50_MS_MAX:.0f} ms", f"{p50:.2f} ms", p50 <= P50_MS_MAX),
        Goal(f"{who}: p99 at most {P99_MS_MAX:.0f} ms", f"{p99:.2f} ms", p99 <= P99_MS_MAX),
    ]


def _p50_and_p99(courses: list[Course]) -> tuple[float, float]:
    taken = sorted(each for course in courses for each in course.hand_offs_ms) or [0.0]
    return statistics.median(taken), taken[int(len(taken) * 0.99)]


def _versions() -> list[tuple[str, str]]:
    return [
        ("etcd", version_of("etcd", "etcd-server")),
        ("Redis", version_of("redis-server", "redis-server")),
        ("redis-py", run([sys.executable, "-c", "import redis; print(redis.__version__)"]).strip()),
    ]
