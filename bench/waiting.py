"""What 2,000 who wait for 200 locks cost, and how soon a waiter has the lock of a holder that died.

Each round starts a server without anybody who waits and one with all of them, in turns, and loads both with other
locks. Those who wait do it as the clients do, in slices, so a share of them always asks again: also in the time that is
called idle. The deaths come last, on a server of their own.
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

from .machine import facts
from .ours import Ours, Tenant, new_tenant, serving
from .processes import BenchError, asked, cpu_seconds, running_driver
from .report import Goal, Report, problems_of, summary, whole
from .wrk import CONNECTIONS, Measured

WAITERS: Final = 2_000
LOCKS: Final = 200
DYING_LOCKS: Final = 100
SETTLE_SECONDS: Final = 1.0
WAITING_SHARE_MIN: Final = 0.98  # the others are about to ask again
MEGABYTES_MAX: Final = 250.0
IDLE_SHARE_MAX: Final = 0.03
SHARE_OF_QUIET_MIN: Final = 0.80
TAKE_OVER_MS_MAX: Final = 50.0
CLOCK_STEP_MS: Final = 1  # the server counts whole milliseconds, so a lease may begin up to so much before its instant


@dataclass
class _Kind:
    """A server with so many who wait, and what its rounds told. `idle` is of one core."""

    name: str
    waiters: int
    measured: list[Measured] = field(default_factory=list)
    idle: list[float] = field(default_factory=list)
    idle_megabytes: list[float] = field(default_factory=list)
    loaded_megabytes: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def measure(
    folder: Path, *, rounds: int, seconds: float, warm_up_seconds: float, idle_seconds: float, deaths: int
) -> Report:
    """The report on waiting. `deaths`: how often all of DYING_LOCKS holders die at once."""
    machine = facts(folder)
    seed = folder / "seed.db"
    with serving(seed) as server:
        tenant = new_tenant(server)
    kinds = [_Kind("nobody waits", 0), _Kind(f"{WAITERS:,} wait for {LOCKS} locks", WAITERS)]
    for number in range(rounds):
        for kind in kinds if number % 2 == 0 else reversed(kinds):
            copy = folder / f"round-{number}-{kind.waiters}.db"
            shutil.copyfile(seed, copy)
            with serving(copy) as server, _crowd(server, tenant, kind):
                kind.idle.append(_idle(server, idle_seconds))
                kind.idle_megabytes.append(server.resident_megabytes)
                server.load(tenant.service_key, warm_up_seconds)
                kind.measured.append(server.load(tenant.service_key, seconds))
                kind.loaded_megabytes.append(server.resident_megabytes)
    with serving(seed) as server:
        late_ms = _late_ms(server, tenant, deaths)
    return _report(kinds, late_ms, machine, f"medians of {rounds} rounds of {seconds:.0f} s")


@contextmanager
def _crowd(server: Ours, tenant: Tenant, kind: _Kind) -> Iterator[None]:
    """Those of this kind wait while the block runs."""
    with running_driver(_COMMAND, environment=_reach(server, tenant)) as process:
        if kind.waiters:
            asked(process, json.dumps({"wait": {"locks": LOCKS, "waiters": kind.waiters}}))
        time.sleep(SETTLE_SECONDS)
        _see_that_they_wait(server, kind)
        yield
        _see_that_they_wait(server, kind)
        answers = asked(process, json.dumps({"told": True}))
        if answers:
            kind.problems.append(f"{len(answers)} stopped waiting, the first by {answers[0]}")


def _see_that_they_wait(server: Ours, kind: _Kind) -> None:
    waiting = server.waiters
    if not kind.waiters * WAITING_SHARE_MIN <= waiting <= kind.waiters:
        kind.problems.append(f"{waiting} waited, not {kind.waiters}")


def _idle(server: Ours, seconds: float) -> float:
    """The share of a core that the server uses while nobody loads it."""
    cpu, began = cpu_seconds(server.pid), time.perf_counter()
    time.sleep(seconds)
    return (cpu_seconds(server.pid) - cpu) / (time.perf_counter() - began)


def _late_ms(server: Ours, tenant: Tenant, deaths: int) -> list[float]:
    """How long after the end of lease and grace each waiter had its grant, in order of size."""
    from volcano_locks_server.rules.lease import GRACE_MS

    late: list[float] = []
    with running_driver(_COMMAND, environment=_reach(server, tenant)) as process:
        for _ in range(deaths):
            told = asked(process, json.dumps({"take_over": {"locks": DYING_LOCKS}}))
            late += [after_ttl_ms - GRACE_MS for after_ttl_ms in told]
    if not late:
        raise BenchError("no holder died")
    return sorted(late)


def _report(kinds: list[_Kind], late_ms: list[float], machine: list[tuple[str, str]], length: str) -> Report:
    crowded = kinds[1]
    summaries = [summary(kind.measured) for kind in kinds]
    share = summaries[1].per_second / summaries[0].per_second
    megabytes = max(crowded.idle_megabytes + crowded.loaded_megabytes)
    idle = statistics.median(crowded.idle)
    return Report(
        name="waiting",
        title=f"What those who wait cost others, {CONNECTIONS} connections that load other locks, {length}",
        header=("", "operations/s", "slowest", "fastest", "p50 ms", "p99 ms", "idle CPU", "MB idle", "MB loaded"),
        rows=[
            (
                kind.name,
                *(whole(one.per_second), whole(one.slowest_per_second), whole(one.fastest_per_second)),
                *(f"{one.p50_ms:.2f}", f"{one.p99_ms:.2f}", f"{statistics.median(kind.idle):.1%}"),
                *(whole(max(kind.idle_megabytes)), whole(max(kind.loaded_megabytes))),
            )
            for kind, one in zip(kinds, summaries, strict=True)
        ],
        facts=machine,
        goals=[
            Goal(f"resident memory under {MEGABYTES_MAX:.0f} MB", f"{megabytes:.0f} MB", megabytes < MEGABYTES_MAX),
            Goal(f"idle CPU under {IDLE_SHARE_MAX:.0%} of a core", f"{idle:.1%}", idle < IDLE_SHARE_MAX),
            Goal(
                f"throughput of other locks at least {SHARE_OF_QUIET_MIN:.0%} of that without",
                f"{share:.0%}",
                share >= SHARE_OF_QUIET_MIN,
            ),
            Goal(
                f"a dead holder's lock granted within {TAKE_OVER_MS_MAX:.0f} ms of lease and grace, the slowest",
                f"{late_ms[-1]:.1f} ms",
                late_ms[-1] <= TAKE_OVER_MS_MAX,
            ),
        ],
        problems=[problem for kind in kinds for problem in problems_of(kind.name, kind.measured) + kind.problems]
        + _too_early(late_ms),
        notes=[_about_deaths(late_ms)],
    )


def _about_deaths(late_ms: list[float]) -> str:
    return (
        f"Locks of {len(late_ms)} dead holders, from the end of lease and grace to the waiter's grant: "
        f"p50 {statistics.median(late_ms):.1f} ms, p99 {late_ms[int(len(late_ms) * 0.99)]:.1f} ms, "
        f"slowest {late_ms[-1]:.1f} ms."
    )


def _too_early(late_ms: list[float]) -> list[str]:
    early = [one for one in late_ms if one < -CLOCK_STEP_MS]
    return [f"{len(early)} locks were granted before lease and grace were over"] if early else []


def _reach(server: Ours, tenant: Tenant) -> dict[str, str]:
    return {"BENCH_PORT": server.url.rpartition(":")[2], "BENCH_SERVICE_KEY": tenant.service_key}


_COMMAND: Final = (sys.executable, "-m", "bench.drivers.waiting_crowd")
