"""What 100,000 held leases cost: memory, the time to start, and throughput beside a server that holds none.

Two files are made once, one without leases and one with them. Each round copies a file, starts the server on the
copy, loads it, and reads its memory, so that no round inherits what the one before wrote.
"""

import asyncio
import shutil
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from .machine import facts
from .ours import Tenant, new_tenant, serving
from .report import Goal, Report, problems_of, summary, whole
from .wrk import CONNECTIONS, Measured

HELD: Final = 100_000
HELD_TTL_SECONDS: Final = 24 * 3600
SEED_BATCH: Final = 500
MEGABYTES_MAX: Final = 300.0
START_SECONDS_MAX: Final = 5.0
SHARE_OF_EMPTY_MIN: Final = 0.80


@dataclass
class _Kind:
    """A server with so many held leases in its file, and what its rounds told."""

    name: str
    database: Path
    measured: list[Measured] = field(default_factory=list)
    start_seconds: list[float] = field(default_factory=list)
    idle_megabytes: list[float] = field(default_factory=list)
    loaded_megabytes: list[float] = field(default_factory=list)


def measure(folder: Path, *, rounds: int, seconds: float, warm_up_seconds: float, held: int = HELD) -> Report:
    """The report on held leases; `held` is how many."""
    machine = facts(folder)
    tenant, empty, full = _files(folder, held)
    kinds = [_Kind("no held leases", empty), _Kind(f"{held:,} held leases", full)]
    for number in range(rounds):
        for kind in kinds if number % 2 == 0 else reversed(kinds):
            copy = folder / f"round-{number}-{kind.database.name}"
            shutil.copyfile(kind.database, copy)
            with serving(copy) as server:
                kind.start_seconds.append(server.start_seconds)
                kind.idle_megabytes.append(server.resident_megabytes)
                server.load(tenant.service_key, warm_up_seconds)
                kind.measured.append(server.load(tenant.service_key, seconds))
                kind.loaded_megabytes.append(server.resident_megabytes)
    return _report(kinds, machine, f"medians of {rounds} rounds of {seconds:.0f} s")


def _report(kinds: list[_Kind], machine: list[tuple[str, str]], length: str) -> Report:
    without, with_leases = kinds
    summaries = [summary(kind.measured) for kind in kinds]
    share = summaries[1].per_second / summaries[0].per_second
    megabytes = max(with_leases.loaded_megabytes)
    start = statistics.median(with_leases.start_seconds)
    return Report(
        name="held",
        title=f"What held leases cost, {CONNECTIONS} connections, {length}",
        header=("", "operations/s", "slowest", "fastest", "p50 ms", "p99 ms", "ready after s", "MB idle", "MB loaded"),
        rows=[
            (
                kind.name,
                *(whole(one.per_second), whole(one.slowest_per_second), whole(one.fastest_per_second)),
                *(f"{one.p50_ms:.2f}", f"{one.p99_ms:.2f}", f"{statistics.median(kind.start_seconds):.2f}"),
                *(whole(max(kind.idle_megabytes)), whole(max(kind.loaded_megabytes))),
            )
            for kind, one in zip(kinds, summaries, strict=True)
        ],
        facts=machine,
        goals=[
            Goal(f"resident memory under {MEGABYTES_MAX:.0f} MB", f"{megabytes:.0f} MB", megabytes < MEGABYTES_MAX),
            Goal(f"ready in under {START_SECONDS_MAX:.0f} s", f"{start:.2f} s", start < START_SECONDS_MAX),
            Goal(
                f"throughput at least {SHARE_OF_EMPTY_MIN:.0%} of that without",
                f"{share:.0%}",
                share >= SHARE_OF_EMPTY_MIN,
            ),
        ],
        problems=[problem for kind in (without, with_leases) for problem in problems_of(kind.name, kind.measured)],
    )


def _files(folder: Path, held: int) -> tuple[Tenant, Path, Path]:
    """A project, a file that knows it, and a file that knows it and its held leases."""
    empty, full = folder / "empty.db", folder / "full.db"
    with serving(empty) as server:
        tenant = new_tenant(server)
    shutil.copyfile(empty, full)
    asyncio.run(_hold(full, tenant, held))
    return tenant, empty, full


async def _hold(database: Path, tenant: Tenant, held: int) -> None:
    """Write the leases by the service's own rule through its own store, many to a commit."""
    from volcano_locks_server.ports.clock import SystemClock
    from volcano_locks_server.ports.lock_store import RecordKey, Records, Stepped
    from volcano_locks_server.rules.lease import Acquire, acquire
    from volcano_locks_server.rules.values import LockKey
    from volcano_locks_server.stores import open_store

    def step(records: Records, now_ms: int) -> Stepped:
        decisions = {
            key: acquire(record, Acquire(key.key.encode().ljust(32, b"."), HELD_TTL_SECONDS, "bench/1"), now_ms)
            for key, record in records.items()
        }
        return Stepped({key: one.record for key, one in decisions.items() if one.record is not None}, [])

    store = await open_store(f"sqlite:///{database}", SystemClock())
    try:
        for first in range(0, held, SEED_BATCH):
            numbers = range(first, min(held, first + SEED_BATCH))
            keys = [RecordKey(tenant.project_id, LockKey.parse(_scattered(number))) for number in numbers]
            await store.locks.update(keys, step)
    finally:
        await store.close()


def _scattered(number: int) -> str:
    """A key with the same scattered beginning that the load's keys have."""
    return f"{number * 2654435761 % 2**32:08x}-held"
