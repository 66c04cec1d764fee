"""Hand-off latency: the time from one client's release to the next one's grant, and what a hand-off costs.

All systems run the same contest (`drivers/handoff_rounds.py`): one lock and a fixed number of waiters. All servers run
for the whole time and idle between their rounds; the rounds are interleaved. The clients of one system share a process,
which favors clients that poll: fifty processes would cost more.
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

from .baselines import running_etcd, running_redis
from .interleaved_rounds import rotated
from .lock_server import create_project, running_server
from .machine import etcd_version, machine_facts, redis_versions
from .processes import running_driver, send_command
from .report import LATENCY_HEADER, Goal, Report, p50_and_p99, thousands

WAITERS: Final = (1, 2, 50)
P50_MS_MAX: Final = 2.0
P99_MS_MAX: Final = 10.0


class LockSystem(NamedTuple):
    """A lock service with its client: the driver's name for it, and the environment in which the driver finds it."""

    name: str
    driver_name: str
    environment: dict[str, str]
    has_goal: bool = False


class HandoffRound(NamedTuple):
    """What the driver measured in one round."""

    hand_offs_ms: list[float]
    longest_wait_seconds: float
    free_lock_ms: float
    requests: int
    server_cpu_seconds: float
    clients_cpu_seconds: float
    seconds: float


@dataclass
class RunningSystem:
    """A running driver, and its rounds by the number of waiters."""

    system: LockSystem
    process: "subprocess.Popen[str]"
    rounds: dict[int, list[HandoffRound]] = field(default_factory=lambda: {waiters: [] for waiters in WAITERS})

    def run(self, waiters: int, seconds: float) -> None:
        result: dict[str, Any] = send_command(self.process, json.dumps({"waiters": waiters, "seconds": seconds}))
        self.rounds[waiters].append(HandoffRound(**result))

    def hand_offs_ms(self, waiters: int) -> list[float]:
        """All rounds with that many waiters together; 0 if there was no hand-off."""
        return [each for one in self.rounds[waiters] for each in one.hand_offs_ms] or [0.0]


def measure(folder: Path, *, rounds: int, seconds: float) -> Report:
    """The report on hand-offs. `seconds` is the length of one round of one system with one number of waiters."""
    machine = machine_facts(folder)
    with ExitStack() as stack:
        systems = [stack.enter_context(_running_system(system)) for system in _systems(stack, folder)]
        for waiters in WAITERS:
            for number in range(rounds):
                for one in rotated(systems, number):
                    one.run(waiters, seconds)
    return _report(systems, machine, f"{rounds} rounds of {seconds:.0f} s each")


def _systems(stack: ExitStack, folder: Path) -> list[LockSystem]:
    """All systems; their servers run until the stack is closed."""
    server = stack.enter_context(running_server(folder / "locks.db"))
    etcd = stack.enter_context(running_etcd(folder))
    redis = stack.enter_context(running_redis(folder))
    volcano_locks = {
        "BENCH_PORT": server.url.rpartition(":")[2],
        "BENCH_SERVER_PID": str(server.pid),
        "BENCH_SERVICE_KEY": create_project(server).service_key,
    }
    return [
        LockSystem("volcano-locks", "http", volcano_locks, has_goal=True),
        LockSystem("etcd's lock service", "etcd", {"BENCH_PORT": str(etcd.port), "BENCH_SERVER_PID": str(etcd.pid)}),
        LockSystem("volcano-locks' Python client", "python", volcano_locks),
        LockSystem("redis-py's Lock", "redis", {"BENCH_PORT": str(redis.port), "BENCH_SERVER_PID": str(redis.pid)}),
    ]


@contextmanager
def _running_system(system: LockSystem) -> Iterator[RunningSystem]:
    command = (sys.executable, "-m", "bench.drivers.handoff_rounds", system.driver_name)
    with running_driver(command, environment=system.environment) as process:
        yield RunningSystem(system, process)


def _report(systems: list[RunningSystem], machine: list[tuple[str, str]], length: str) -> Report:
    return Report(
        name="handoff-latency",
        title=f"From one client's release to the next one's grant, {length}",
        header=(
            *("", "waiters", "hand-offs", *LATENCY_HEADER, "free lock ms", "longest wait s"),
            *("requests", "server CPU ms", "clients CPU ms", "both, of a core"),
        ),
        rows=[_row(one, waiters) for waiters in WAITERS for one in systems],
        facts=[*machine, etcd_version(), *redis_versions()],
        goals=[goal for one in systems if one.system.has_goal for waiters in WAITERS for goal in _goals(one, waiters)],
        problems=[
            f"{one.system.name}, {waiters} waiters, round {number}: no hand-off"
            for one in systems
            for waiters in WAITERS
            for number, result in enumerate(one.rounds[waiters], 1)
            if not result.hand_offs_ms
        ],
        notes=[
            "Requests and CPU time are per hand-off and include what all waiters use meanwhile.",
            "Free lock: the median time to acquire a lock without other clients, in the same rounds.",
        ],
    )


def _row(one: RunningSystem, waiters: int) -> Sequence[str]:
    rounds = one.rounds[waiters]
    hand_offs = max(1, sum(len(result.hand_offs_ms) for result in rounds))
    server = sum(result.server_cpu_seconds for result in rounds)
    clients = sum(result.clients_cpu_seconds for result in rounds)
    p50, p99 = p50_and_p99(one.hand_offs_ms(waiters))
    return (
        *(one.system.name, str(waiters), thousands(hand_offs), f"{p50:.2f}", f"{p99:.2f}"),
        f"{statistics.median(result.free_lock_ms for result in rounds):.2f}",
        f"{max(result.longest_wait_seconds for result in rounds):.2f}",
        f"{sum(result.requests for result in rounds) / hand_offs:.1f}",
        *(f"{server * 1_000 / hand_offs:.2f}", f"{clients * 1_000 / hand_offs:.2f}"),
        f"{(server + clients) / sum(result.seconds for result in rounds):.1%}",
    )


def _goals(one: RunningSystem, waiters: int) -> list[Goal]:
    label = f"{one.system.name}, {waiters} {'waiter' if waiters == 1 else 'waiters'}"
    p50, p99 = p50_and_p99(one.hand_offs_ms(waiters))
    return [
        Goal(f"{label}: p50 at most {P50_MS_MAX:.0f} ms", f"{p50:.2f} ms", p50 <= P50_MS_MAX),
        Goal(f"{label}: p99 at most {P99_MS_MAX:.0f} ms", f"{p99:.2f} ms", p99 <= P99_MS_MAX),
    ]
