"""The cost of 100,000 held leases: memory, startup time, and throughput compared with a server that holds none.

Two database files are made once, one without leases and one with them. Each round copies a file, starts the server on
the copy, loads it and reads its memory, so that no round inherits writes of an earlier one.
"""

import asyncio
import shutil
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from .interleaved_rounds import rotated
from .lock_server import Project, create_project, running_server
from .machine import machine_facts
from .report import LATENCY_HEADER, RATE_HEADER, Goal, Report, problems_of, summary, thousands
from .wrk import CONNECTIONS, KeyOrder, RoundResult

HELD: Final = 100_000
HELD_TTL_SECONDS: Final = 24 * 3600
PAGE_LEASES: Final = 500
RANDOM_FACTOR: Final = 2654435761  # odd, so it maps no two numbers to one
MEGABYTES_MAX: Final = 300.0
STARTUP_SECONDS_MAX: Final = 5.0
SHARE_OF_EMPTY_MIN: Final = 0.80


@dataclass
class _FileRounds:
    """One of the two database files, and the results of its rounds."""

    name: str
    database: Path
    results: list[RoundResult] = field(default_factory=list)
    startup_seconds: list[float] = field(default_factory=list)
    idle_megabytes: list[float] = field(default_factory=list)
    loaded_megabytes: list[float] = field(default_factory=list)


def measure(folder: Path, *, rounds: int, seconds: float, warm_up_seconds: float, held: int = HELD) -> Report:
    """The report on `held` held leases."""
    machine = machine_facts(folder)
    project, empty, full = create_files(folder, held)
    files = [_FileRounds("no held leases", empty), _FileRounds(f"{held:,} held leases", full)]
    for number in range(rounds):
        for file in rotated(files, number):
            copy = folder / f"round-{number}-{file.database.name}"
            shutil.copyfile(file.database, copy)
            with running_server(copy) as server:
                file.startup_seconds.append(server.startup_seconds)
                file.idle_megabytes.append(server.resident_megabytes)
                server.load(project.service_key, warm_up_seconds)
                file.results.append(server.load(project.service_key, seconds))
                file.loaded_megabytes.append(server.resident_megabytes)
    return _report(files, machine, f"medians of {rounds} rounds of {seconds:.0f} s")


def _report(files: list[_FileRounds], machine: list[tuple[str, str]], length: str) -> Report:
    full = files[1]
    summaries = [summary(file.results) for file in files]
    share = summaries[1].per_second / summaries[0].per_second
    megabytes = max(full.loaded_megabytes)
    startup = statistics.median(full.startup_seconds)
    return Report(
        name="held-leases",
        title=f"Cost of held leases, {CONNECTIONS} connections, {length}",
        header=("", *RATE_HEADER, *LATENCY_HEADER, "ready after s", "MB idle", "MB loaded"),
        rows=[
            (
                file.name,
                *(*one.rate_cells(), *one.latency_cells(), f"{statistics.median(file.startup_seconds):.2f}"),
                *(thousands(max(file.idle_megabytes)), thousands(max(file.loaded_megabytes))),
            )
            for file, one in zip(files, summaries, strict=True)
        ],
        facts=machine,
        goals=[
            Goal(f"resident memory under {MEGABYTES_MAX:.0f} MB", f"{megabytes:.0f} MB", megabytes < MEGABYTES_MAX),
            Goal(f"ready in under {STARTUP_SECONDS_MAX:.0f} s", f"{startup:.2f} s", startup < STARTUP_SECONDS_MAX),
            Goal(
                f"throughput at least {SHARE_OF_EMPTY_MIN:.0%} of that without held leases",
                f"{share:.0%}",
                share >= SHARE_OF_EMPTY_MIN,
            ),
        ],
        problems=[problem for file in files for problem in problems_of(file.name, file.results)],
    )


def create_files(folder: Path, held: int) -> tuple[Project, Path, Path]:
    """A project, a database file with only that project, and one with its held leases too."""
    empty, full = folder / "empty.db", folder / "full.db"
    with running_server(empty) as server:
        project = create_project(server)
    asyncio.run(load_leases(full, held, project_id=project.project_id, source=empty))
    return project, empty, full


async def load_leases(
    database: Path, leases: int, *, keys: KeyOrder = "random", project_id: str = "bench", source: Path | None = None
) -> float:
    """Write leases to a new file in one transaction, after what `source` contains. Returns the seconds it took.

    Keys in random order begin with the same digits as those of the load.
    """
    from volcano_locks_server.ports.clock import SystemClock
    from volcano_locks_server.ports.lock_store import RecordKey
    from volcano_locks_server.ports.snapshot import Entry, StoredLock
    from volcano_locks_server.rules.lease import Acquire, acquire
    from volcano_locks_server.rules.values import LockKey
    from volcano_locks_server.stores import open_store

    clock = SystemClock()
    record = acquire(None, Acquire(b"." * 32, HELD_TTL_SECONDS, "bench/1"), clock.now_ms()).record
    assert record is not None
    factor = 1 if keys == "ascending" else RANDOM_FACTOR

    async def pages() -> AsyncIterator[Sequence[Entry]]:
        if source is not None:
            original = await open_store(f"sqlite:///{source}", clock)
            assert original.snapshot is not None
            async for page in original.snapshot.pages():
                yield page
            await original.close()
        for first in range(0, leases, PAGE_LEASES):
            numbers = range(first, min(leases, first + PAGE_LEASES))
            names = (LockKey.parse(f"{number * factor % 2**32:08x}-held") for number in numbers)
            yield [StoredLock(RecordKey(project_id, name), record) for name in names]

    store = await open_store(f"sqlite:///{database}", clock)
    try:
        assert store.snapshot is not None
        began = time.perf_counter()
        await store.snapshot.load(pages(), clock.now_ms())
        return time.perf_counter() - began
    finally:
        await store.close()
