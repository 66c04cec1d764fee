"""The load of 2,000 waiters for 200 locks, and the delay until a waiter gets the lock of a holder that died.

Each round starts a server without waiters and one with all of them, alternately, and loads both with other locks. The
waiters wait in slices, as the clients do, so a share of them always sends a new request, even in the time that counts
as idle. The deaths come last, on a server of their own.
"""

import json
import shutil
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from .interleaved_rounds import rotated
from .lock_server import LockServer, Project, create_project, running_server
from .machine import machine_facts
from .processes import BenchError, cpu_seconds, running_driver, send_command
from .report import LATENCY_HEADER, RATE_HEADER, Goal, Report, p50_and_p99, problems_of, summary, thousands
from .wrk import CONNECTIONS, RoundResult

WAITERS: Final = 2_000
LOCKS: Final = 200
DYING_LOCKS: Final = 100
SETTLE_SECONDS: Final = 1.0
WAITING_SHARE_MIN: Final = 0.98  # the others are between two requests
MEGABYTES_MAX: Final = 250.0
IDLE_SHARE_MAX: Final = 0.03
SHARE_OF_QUIET_MIN: Final = 0.80
TAKEOVER_MS_MAX: Final = 50.0
CLOCK_RESOLUTION_MS: Final = 1  # the server counts whole milliseconds, so a lease may begin up to 1 ms early
DRIVER: Final = (sys.executable, "-m", "bench.drivers.waiters")


@dataclass
class _WaiterRounds:
    """A number of waiters, and the results of the rounds with them. `idle` is a share of one core."""

    name: str
    waiters: int
    results: list[RoundResult] = field(default_factory=list)
    idle: list[float] = field(default_factory=list)
    idle_megabytes: list[float] = field(default_factory=list)
    loaded_megabytes: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def measure(
    folder: Path, *, rounds: int, seconds: float, warm_up_seconds: float, idle_seconds: float, deaths: int
) -> Report:
    """The report on waiters. DYING_LOCKS holders die at once, `deaths` times."""
    machine = machine_facts(folder)
    seed = folder / "seed.db"
    with running_server(seed) as server:
        project = create_project(server)
    variants = [_WaiterRounds("no waiters", 0), _WaiterRounds(f"{WAITERS:,} waiters for {LOCKS} locks", WAITERS)]
    for number in range(rounds):
        for variant in rotated(variants, number):
            copy = folder / f"round-{number}-{variant.waiters}.db"
            shutil.copyfile(seed, copy)
            with running_server(copy) as server, _waiters(server, project, variant):
                variant.idle.append(_idle_share(server, idle_seconds))
                variant.idle_megabytes.append(server.resident_megabytes)
                server.load(project.service_key, warm_up_seconds)
                variant.results.append(server.load(project.service_key, seconds))
                variant.loaded_megabytes.append(server.resident_megabytes)
    with running_server(seed) as server:
        takeovers_ms = _takeovers_ms(server, project, deaths)
    return _report(variants, takeovers_ms, machine, f"medians of {rounds} rounds of {seconds:.0f} s")


@contextmanager
def _waiters(server: LockServer, project: Project, variant: _WaiterRounds) -> Iterator[None]:
    """The waiters of this variant, queued while the block runs."""
    with running_driver(DRIVER, environment=_driver_environment(server, project)) as process:
        if variant.waiters:
            send_command(process, json.dumps({"wait": {"locks": LOCKS, "waiters": variant.waiters}}))
        time.sleep(SETTLE_SECONDS)
        _check_waiters(server, variant)
        yield
        _check_waiters(server, variant)
        ended = send_command(process, json.dumps({"ended": True}))
        if ended:
            variant.problems.append(f"{len(ended)} waiters stopped waiting, the first one with {ended[0]}")


def _check_waiters(server: LockServer, variant: _WaiterRounds) -> None:
    waiting = server.waiters
    if not variant.waiters * WAITING_SHARE_MIN <= waiting <= variant.waiters:
        variant.problems.append(f"{waiting} clients waited instead of {variant.waiters}")


def _idle_share(server: LockServer, seconds: float) -> float:
    """The share of a core that the server uses without a load."""
    cpu, began = cpu_seconds(server.pid), time.perf_counter()
    time.sleep(seconds)
    return (cpu_seconds(server.pid) - cpu) / (time.perf_counter() - began)


def _takeovers_ms(server: LockServer, project: Project, deaths: int) -> list[float]:
    """The delay of each waiter's grant after the end of lease and grace, in ascending order."""
    from volcano_locks_server.rules.lease import GRACE_MS

    delays: list[float] = []
    with running_driver(DRIVER, environment=_driver_environment(server, project)) as process:
        for _ in range(deaths):
            after_ttl_ms = send_command(process, json.dumps({"take_over": {"locks": DYING_LOCKS}}))
            delays += [delay - GRACE_MS for delay in after_ttl_ms]
    if not delays:
        raise BenchError("no holder died")
    return sorted(delays)


def _report(
    variants: list[_WaiterRounds], takeovers_ms: list[float], machine: list[tuple[str, str]], length: str
) -> Report:
    with_waiters = variants[1]
    summaries = [summary(variant.results) for variant in variants]
    share = summaries[1].per_second / summaries[0].per_second
    megabytes = max(with_waiters.idle_megabytes + with_waiters.loaded_megabytes)
    idle = statistics.median(with_waiters.idle)
    return Report(
        name="waiter-load",
        title=f"Load of waiters, {CONNECTIONS} connections that use other locks, {length}",
        header=("", *RATE_HEADER, *LATENCY_HEADER, "idle CPU", "MB idle", "MB loaded"),
        rows=[
            (
                variant.name,
                *(*one.rate_cells(), *one.latency_cells(), f"{statistics.median(variant.idle):.1%}"),
                *(thousands(max(variant.idle_megabytes)), thousands(max(variant.loaded_megabytes))),
            )
            for variant, one in zip(variants, summaries, strict=True)
        ],
        facts=machine,
        goals=[
            Goal(f"resident memory under {MEGABYTES_MAX:.0f} MB", f"{megabytes:.0f} MB", megabytes < MEGABYTES_MAX),
            Goal(f"idle CPU under {IDLE_SHARE_MAX:.0%} of a core", f"{idle:.1%}", idle < IDLE_SHARE_MAX),
            Goal(
                f"throughput of other locks at least {SHARE_OF_QUIET_MIN:.0%} of that without waiters",
                f"{share:.0%}",
                share >= SHARE_OF_QUIET_MIN,
            ),
            Goal(
                f"slowest takeover within {TAKEOVER_MS_MAX:.0f} ms after lease and grace",
                f"{takeovers_ms[-1]:.1f} ms",
                takeovers_ms[-1] <= TAKEOVER_MS_MAX,
            ),
        ],
        problems=[
            problem for variant in variants for problem in problems_of(variant.name, variant.results) + variant.problems
        ]
        + _early_takeovers(takeovers_ms),
        notes=[_takeover_note(takeovers_ms)],
    )


def _takeover_note(takeovers_ms: list[float]) -> str:
    p50, p99 = p50_and_p99(takeovers_ms)
    return (
        f"Locks of {len(takeovers_ms)} dead holders, from the end of lease and grace to the waiter's grant: "
        f"p50 {p50:.1f} ms, p99 {p99:.1f} ms, slowest {takeovers_ms[-1]:.1f} ms."
    )


def _early_takeovers(takeovers_ms: list[float]) -> list[str]:
    early = [delay for delay in takeovers_ms if delay < -CLOCK_RESOLUTION_MS]
    return [f"{len(early)} locks were granted before lease and grace were over"] if early else []


def _driver_environment(server: LockServer, project: Project) -> dict[str, str]:
    return {"BENCH_PORT": server.url.rpartition(":")[2], "BENCH_SERVICE_KEY": project.service_key}
