"""Latency of an uncontended acquire and release with each client, compared with Redis clients of the same language.

Each client is a process of its own (`drivers/acquire_release_*`). It reads from stdin how many cycles to run and prints
the duration of each. The clients are interleaved, and each is compared with its baseline within the round, so that a
slow minute of the machine affects both.
"""

import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

from .baselines import running_redis
from .interleaved_rounds import rotated
from .lock_server import create_project, running_server
from .machine import machine_facts, redis_versions
from .processes import BenchError, program, run, running_driver, send_command
from .report import LATENCY_HEADER, Goal, Report, p50_and_p99
from .source_tree import ROOT

DRIVERS: Final = ROOT / "bench" / "drivers"
WITH_LOCK_TIMES_MAX: Final = 1.15
JAVASCRIPT_P99_TIMES_MAX: Final = 3.0
WARM_UP_CYCLES: Final = 50


class ClientSpec(NamedTuple):
    """One client: the command that starts its driver, and the name of its baseline (its own name if it has none).

    `times_max`: the goal for its p50, in p50s of the baseline.
    """

    name: str
    command: tuple[str, ...]
    baseline: str
    times_max: float | None = None


@dataclass
class RunningClient:
    """A running driver, and the durations in microseconds of each round so far."""

    spec: ClientSpec
    process: "subprocess.Popen[str]"
    rounds: list[list[float]] = field(default_factory=list)

    def cycles(self, count: int) -> list[float]:
        """Run that many cycles; return the duration of each in microseconds."""
        return [nanoseconds / 1_000 for nanoseconds in send_command(self.process, str(count))]


def measure(folder: Path, *, rounds: int, cycles: int) -> Report:
    """The report on clients. In a round, each client acquires and releases `cycles` times."""
    machine = machine_facts(folder)
    specs, missing = _available_clients()
    with ExitStack() as stack:
        server = stack.enter_context(running_server(folder / "locks.db"))
        redis = stack.enter_context(running_redis(folder))
        environment = {
            "BENCH_URL": server.url,
            "BENCH_SERVICE_KEY": create_project(server).service_key,
            "BENCH_REDIS_PORT": str(redis.port),
        }
        clients = [stack.enter_context(_running_client(spec, environment)) for spec in specs]
        for client in clients:
            client.cycles(WARM_UP_CYCLES)
        for number in range(rounds):
            for client in rotated(clients, number):
                client.rounds.append(client.cycles(cycles))
    return _report(clients, missing, machine, f"{rounds} rounds of {cycles}")


def _report(clients: list[RunningClient], missing: list[str], machine: list[tuple[str, str]], length: str) -> Report:
    by_name = {client.spec.name: client for client in clients}
    times = {client.spec.name: _times(client, by_name[client.spec.baseline]) for client in clients}
    goals = [
        Goal(
            f"{client.spec.name} at most {client.spec.times_max} times {client.spec.baseline} (p50)",
            f"{times[client.spec.name]:.2f}",
            times[client.spec.name] <= client.spec.times_max,
        )
        for client in clients
        if client.spec.times_max is not None
    ]
    block = _times(by_name["Python, with_lock"], by_name["Python"])
    goals.append(
        Goal(
            f"with_lock at most {WITH_LOCK_TIMES_MAX} times the pair (p50)",
            f"{block:.2f}",
            block <= WITH_LOCK_TIMES_MAX,
        )
    )
    if "JavaScript" in by_name:
        p50, p99 = p50_and_p99(list(chain(*by_name["JavaScript"].rounds)))
        goal = f"JavaScript's p99 at most {JAVASCRIPT_P99_TIMES_MAX:g} times its p50"
        goals.append(Goal(goal, f"{p99 / p50:.2f}", p99 / p50 <= JAVASCRIPT_P99_TIMES_MAX))
    goals += [Goal(reason, "not measured", False) for reason in missing]
    return Report(
        name="client-latency",
        title=f"An uncontended acquire and release, one at a time, {length}",
        header=("", *LATENCY_HEADER, "times Redis (p50)"),
        rows=[
            (
                client.spec.name,
                *(f"{microseconds / 1_000:.2f}" for microseconds in p50_and_p99(list(chain(*client.rounds)))),
                "" if client.spec.baseline == client.spec.name else f"{times[client.spec.name]:.2f}",
            )
            for client in clients
        ],
        facts=machine + redis_versions(),
        goals=goals,
    )


def _times(client: RunningClient, baseline: RunningClient) -> float:
    """The ratio of the two medians of a round; the median of it over all rounds."""
    pairs = zip(client.rounds, baseline.rounds, strict=True)
    return statistics.median(statistics.median(one) / statistics.median(other) for one, other in pairs)


def _available_clients() -> tuple[list[ClientSpec], list[str]]:
    """The clients that can run here, and for each language that cannot, the reason."""
    python = (sys.executable, str(DRIVERS / "acquire_release_volcano_locks.py"))
    redis_py = (sys.executable, str(DRIVERS / "acquire_release_redis.py"))
    specs = [
        ClientSpec("Python", (*python, "sync"), "redis-py", times_max=2.0),
        ClientSpec("Python, with_lock", (*python, "block"), "redis-py"),
        ClientSpec("redis-py", (*redis_py, "sync"), "redis-py"),
        ClientSpec("Python, asyncio", (*python, "async"), "redis-py, asyncio", times_max=2.0),
        ClientSpec("redis-py, asyncio", (*redis_py, "async"), "redis-py, asyncio"),
    ]
    missing = []
    for language in (_javascript, _ruby):
        try:
            specs += language()
        except BenchError as error:
            missing.append(str(error))
    return specs, missing


def _javascript() -> list[ClientSpec]:
    """Builds the client and installs its baseline at the pinned version, if that was not done yet."""
    node, npm = program("node", "nodejs"), program("npm", "npm")
    client = ROOT / "sdks" / "javascript"
    if not (client / "dist" / "node" / "index.mjs").exists():
        if not (client / "node_modules").exists():
            run([npm, "--prefix", str(client), "ci", "--silent"])
        run([npm, "--prefix", str(client), "run", "--silent", "build"])
    if not (DRIVERS / "node_modules").exists():
        run([npm, "--prefix", str(DRIVERS), "ci", "--silent"])
    return [
        ClientSpec(
            "JavaScript", (node, str(DRIVERS / "acquire_release_volcano_locks.mjs")), "node-redis", times_max=2.2
        ),
        ClientSpec("node-redis", (node, str(DRIVERS / "acquire_release_redis.mjs")), "node-redis"),
    ]


def _ruby() -> list[ClientSpec]:
    ruby, client = program("ruby", "ruby"), ROOT / "sdks" / "ruby" / "lib"
    try:
        run([ruby, "-e", "require 'redis'"])
    except BenchError:
        raise BenchError("Ruby's Redis client is not installed: apt-get install ruby-redis") from None
    return [
        ClientSpec(
            "Ruby", (ruby, "-I", str(client), str(DRIVERS / "acquire_release_volcano_locks.rb")), "redis-rb", 2.5
        ),
        ClientSpec("redis-rb", (ruby, str(DRIVERS / "acquire_release_redis.rb")), "redis-rb"),
    ]


@contextmanager
def _running_client(spec: ClientSpec, environment: Mapping[str, str]) -> Iterator[RunningClient]:
    """The client's driver, with a lock of its own."""
    key = "".join(character if character.isalnum() else "-" for character in spec.name)
    with running_driver(spec.command, environment={**environment, "BENCH_KEY": key}) as process:
        yield RunningClient(spec, process)
