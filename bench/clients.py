"""What one holder waits for: an uncontended acquire and its release by each client, beside Redis' clients.

Each client is a process of its own (`drivers/`), which is told on stdin how often to do it, and prints how long
each took. They take turns, in an order that moves by one each round, and each is compared with Redis' client of its
language within the round, so that a slow minute of the machine falls on both.
"""

import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from .machine import ROOT, facts, version_of
from .ours import new_tenant, serving
from .peers import redis_serving
from .processes import BenchError, asked, program, run, running_driver
from .report import Goal, Report

DRIVERS: Final = ROOT / "bench" / "drivers"
TIMES_REDIS_MAX: Final = 2.0
WARM_UP_CYCLES: Final = 50


class Kind(NamedTuple):
    """One client: how it is started, and which kind of Redis' it is compared with (its own name: none)."""

    name: str
    command: tuple[str, ...]
    beside: str
    has_goal: bool = False


@dataclass
class Driven:
    """A client that runs, and what its rounds told."""

    kind: Kind
    process: "subprocess.Popen[str]"
    rounds: list[list[float]] = field(default_factory=list)

    def cycles(self, count: int) -> list[float]:
        """Do it that often; microseconds each."""
        return [nanoseconds / 1_000 for nanoseconds in asked(self.process, str(count))]


def measure(folder: Path, *, rounds: int, cycles: int) -> Report:
    """The report on clients; in a round each does `cycles` acquires and releases."""
    machine = facts(folder)
    kinds, lacking = _kinds()
    with ExitStack() as stack:
        server = stack.enter_context(serving(folder / "locks.db"))
        port = stack.enter_context(redis_serving(folder)).port
        reach = {
            "BENCH_URL": server.url,
            "BENCH_SERVICE_KEY": new_tenant(server).service_key,
            "BENCH_REDIS_PORT": str(port),
        }
        driven = [stack.enter_context(_driven(kind, reach)) for kind in kinds]
        for one in driven:
            one.cycles(WARM_UP_CYCLES)
        for number in range(rounds):
            first = number % len(driven)
            for one in driven[first:] + driven[:first]:
                one.rounds.append(one.cycles(cycles))
    return _report(driven, lacking, machine, f"{rounds} rounds of {cycles}")


def _report(driven: list[Driven], lacking: list[str], machine: list[tuple[str, str]], length: str) -> Report:
    by_name = {one.kind.name: one for one in driven}
    times = {one.kind.name: _times(one, by_name[one.kind.beside]) for one in driven}
    goals = [
        Goal(
            f"{one.kind.name} at most {TIMES_REDIS_MAX:.0f} times {one.kind.beside} (p50)",
            f"{times[one.kind.name]:.2f}",
            times[one.kind.name] <= TIMES_REDIS_MAX,
        )
        for one in driven
        if one.kind.has_goal
    ]
    goals += [Goal(what, "not measured", False) for what in lacking]
    return Report(
        name="clients",
        title=f"An uncontended acquire and its release, one at a time, {length}",
        header=("", "p50 ms", "p99 ms", "times Redis' (p50)"),
        rows=[
            (
                one.kind.name,
                *(f"{milliseconds:.2f}" for milliseconds in _p50_and_p99(one)),
                "" if one.kind.beside == one.kind.name else f"{times[one.kind.name]:.2f}",
            )
            for one in driven
        ],
        facts=machine + _versions(),
        goals=goals,
    )


def _p50_and_p99(one: Driven) -> tuple[float, float]:
    taken = sorted(each / 1_000 for cycles in one.rounds for each in cycles)
    return statistics.median(taken), taken[int(len(taken) * 0.99)]


def _times(one: Driven, beside: Driven) -> float:
    """The median over the rounds of how many times as long as the other it took."""
    pairs = zip(one.rounds, beside.rounds, strict=True)
    return statistics.median(statistics.median(ours) / statistics.median(theirs) for ours, theirs in pairs)


def _kinds() -> tuple[list[Kind], list[str]]:
    """The clients that can be measured here, and a sentence for each language that lacks something."""
    python = (sys.executable, str(DRIVERS / "volcano_locks_python.py"))
    redis_py = (sys.executable, str(DRIVERS / "redis_python.py"))
    kinds = [
        Kind("Python", (*python, "sync"), "redis-py", has_goal=True),
        Kind("Python, with_lock", (*python, "block"), "redis-py"),
        Kind("redis-py", (*redis_py, "sync"), "redis-py"),
        Kind("Python, asyncio", (*python, "async"), "redis-py, asyncio", has_goal=True),
        Kind("redis-py, asyncio", (*redis_py, "async"), "redis-py, asyncio"),
    ]
    lacking = []
    for more in (_javascript, _ruby):
        try:
            kinds += more()
        except BenchError as error:
            lacking.append(str(error))
    return kinds, lacking


def _javascript() -> list[Kind]:
    """Built where it is not, and its peer installed at the pinned version."""
    node, npm = program("node", "nodejs"), program("npm", "npm")
    client = ROOT / "sdks" / "javascript"
    if not (client / "dist" / "index.mjs").exists():
        if not (client / "node_modules").exists():
            run([npm, "--prefix", str(client), "ci", "--silent"])
        run([npm, "--prefix", str(client), "run", "--silent", "build"])
    if not (DRIVERS / "node_modules").exists():
        run([npm, "--prefix", str(DRIVERS), "ci", "--silent"])
    return [
        Kind("JavaScript", (node, str(DRIVERS / "volcano_locks_javascript.mjs")), "node-redis", has_goal=True),
        Kind("node-redis", (node, str(DRIVERS / "redis_javascript.mjs")), "node-redis"),
    ]


def _ruby() -> list[Kind]:
    ruby, client = program("ruby", "ruby"), ROOT / "sdks" / "ruby" / "lib"
    try:
        run([ruby, "-e", "require 'redis'"])
    except BenchError:
        raise BenchError("Ruby's Redis client is not installed: apt-get install ruby-redis") from None
    return [
        Kind("Ruby", (ruby, "-I", str(client), str(DRIVERS / "volcano_locks_ruby.rb")), "redis-rb"),
        Kind("redis-rb", (ruby, str(DRIVERS / "redis_ruby.rb")), "redis-rb"),
    ]


@contextmanager
def _driven(kind: Kind, reach: Mapping[str, str]) -> Iterator[Driven]:
    """The client, each with a lock of its own."""
    key = "".join(character if character.isalnum() else "-" for character in kind.name)
    with running_driver(kind.command, environment={**reach, "BENCH_KEY": key}) as process:
        yield Driven(kind, process)


def _versions() -> list[tuple[str, str]]:
    return [
        ("Redis", version_of("redis-server", "redis-server")),
        ("redis-py", run([sys.executable, "-c", "import redis; print(redis.__version__)"]).strip()),
    ]
