"""The server's memory over held leases, waiters and connections, and what hostile connections cost other clients."""

import json
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from subprocess import Popen
from typing import Final, NamedTuple
from uuid import uuid4

from .held_leases import create_files
from .line_chart import LineChart
from .lock_server import LockServer, Project, create_project, running_server
from .machine import machine_facts
from .processes import running_driver, send_command
from .progress import progress
from .report import Goal, Report, p50_and_p99
from .wrk import RoundResult

LOCKS_WITH_WAITERS: Final = 1_000
HOSTILE_MEGABYTES_MAX: Final = 1_000.0
OTHER_CLIENT_MS_MAX: Final = 1_000.0
SCRAPE_MS_MAX: Final = 1.0
SCRAPES: Final = 200
SETTLE_SECONDS: Final = 1.0
OTHER_CLIENT_PAUSE_SECONDS: Final = 0.02
WAITERS_DRIVER: Final = (sys.executable, "-m", "bench.drivers.waiters")
CONNECTIONS_DRIVER: Final = (sys.executable, "-m", "bench.drivers.open_connections")


class Sizes(NamedTuple):
    """What the server is measured with. The server admits 10,000 connections, and the measurement needs some."""

    leases: Sequence[int]
    waiters: Sequence[int]
    connections: int


class _Row(NamedTuple):
    """The memory with one content: without a load, and after one (or the peak under hostile connections)."""

    name: str
    idle: float
    loaded: float
    problem: str = ""


def measure(folder: Path, *, sizes: Sizes, seconds: float) -> Report:
    """The report on memory. `seconds` is the length of each load."""
    facts = machine_facts(folder)
    seed = folder / "seed.db"
    with running_server(seed) as server:
        project = create_project(server)
    leases, scrapes_ms = _leases(folder, sizes.leases, seconds)
    waiters = [_waiters(folder, seed, project, count, seconds) for count in sizes.waiters]
    idle = _idle_connections(folder, seed, project, sizes.connections)
    hostile, other_client_ms = _hostile_connections(folder, seed, project, sizes.connections, seconds)
    per_connection_kib = (idle.idle - waiters[0].idle) * 1e6 / 1024 / sizes.connections
    other_p99 = p50_and_p99(other_client_ms)[1]
    scrape_p50 = p50_and_p99(scrapes_ms)[0]
    rows = [*leases, *waiters, idle, hostile]
    many = f"{sizes.connections:,} hostile connections"
    return Report(
        name="memory",
        title=f"The server's resident memory, loads of {seconds:.0f} s",
        header=("", "MB idle", "MB loaded or peak"),
        rows=[(row.name, f"{row.idle:.0f}", f"{row.loaded:.0f}") for row in rows],
        facts=facts,
        goals=[
            Goal(
                f"{many} cost under {HOSTILE_MEGABYTES_MAX:.0f} MB",
                f"{hostile.loaded:.0f} MB",
                hostile.loaded < HOSTILE_MEGABYTES_MAX,
            ),
            Goal(
                f"p99 of another client beside {many} under {OTHER_CLIENT_MS_MAX:.0f} ms",
                f"{other_p99:.0f} ms",
                other_p99 < OTHER_CLIENT_MS_MAX,
            ),
            Goal(
                f"a scrape of /metrics with {sizes.leases[-1]:,} leases under {SCRAPE_MS_MAX:.0f} ms, p50",
                f"{scrape_p50:.2f} ms",
                scrape_p50 < SCRAPE_MS_MAX,
            ),
        ],
        problems=[f"{row.name}: {row.problem}" for row in rows if row.problem],
        notes=[f"An idle connection takes {per_connection_kib:.1f} KiB."],
        charts=[
            _chart("leases", "held leases", sizes.leases, leases),
            _chart("waiters", "waiters", sizes.waiters, waiters),
        ],
    )


def _leases(folder: Path, counts: Sequence[int], seconds: float) -> tuple[list[_Row], list[float]]:
    """The rows by number of held leases, and the times of scrapes with the last number."""
    rows, scrapes_ms = [], [0.0]
    for count in counts:
        own = folder / f"leases-{count}"
        own.mkdir()
        project, _empty, database = create_files(own, count)
        with running_server(database) as server:
            idle = server.resident_megabytes
            scrapes_ms = _scrapes_ms(server)
            result = server.load(project.service_key, seconds)
            rows.append(_row(f"{count:,} held leases", idle, server.resident_megabytes, result))
        shutil.rmtree(own)
    return rows, scrapes_ms


def _waiters(folder: Path, seed: Path, project: Project, count: int, seconds: float) -> _Row:
    with _copy_running(folder, seed, f"waiters-{count}") as server, _driver(WAITERS_DRIVER, server, project) as driver:
        if count:
            send_command(driver, json.dumps({"wait": {"locks": LOCKS_WITH_WAITERS, "waiters": count}}))
        time.sleep(SETTLE_SECONDS)
        idle = server.resident_megabytes
        result = server.load(project.service_key, seconds)
        ended = send_command(driver, json.dumps({"ended": True}))
        problem = f"{len(ended)} waiters stopped waiting, the first one with {ended[0]}" if ended else ""
        return _row(f"{count:,} waiters", idle, server.resident_megabytes, result, problem)


def _idle_connections(folder: Path, seed: Path, project: Project, count: int) -> _Row:
    with _copy_running(folder, seed, "idle") as server, _driver(CONNECTIONS_DRIVER, server, project) as driver:
        opened = send_command(driver, json.dumps({"idle": count}))
        time.sleep(SETTLE_SECONDS)
        problem = "" if opened == count else f"only {opened:,} connections could be opened"
        name = f"{count:,} idle connections"
        row = _Row(name, server.resident_megabytes, server.peak_megabytes, problem)
        progress(f"{name}: {row.idle:.0f} MB")
        return row


def _hostile_connections(
    folder: Path, seed: Path, project: Project, count: int, seconds: float
) -> tuple[_Row, list[float]]:
    """The row, and the times of another client's requests meanwhile."""
    with _copy_running(folder, seed, "hostile") as server, _driver(CONNECTIONS_DRIVER, server, project) as driver:
        idle = server.resident_megabytes
        opened = send_command(driver, json.dumps({"hostile": count}))
        times_ms = _other_client_ms(server, project, seconds)
        name = f"{count:,} hostile connections"
        row = _Row(name, idle, server.peak_megabytes)
        p50, p99 = p50_and_p99(times_ms)
        progress(f"{name} ({opened:,} at once): {row.loaded:.0f} MB, another client p50 {p50:.1f} ms, p99 {p99:.1f} ms")
        return row, times_ms


def _other_client_ms(server: LockServer, project: Project, seconds: float) -> list[float]:
    """The times of a client that acquires and releases a lock, and connects again if its connection is closed."""
    times_ms = []
    connection = HTTPConnection("127.0.0.1", int(_port(server)), timeout=OTHER_CLIENT_MS_MAX / 100)
    end = time.monotonic() + seconds
    number = 0
    while time.monotonic() < end:
        number += 1
        headers = {"Authorization": f"Bearer {project.service_key}", "X-Volcano-Lock-Token": str(uuid4())}
        for method, body in (("POST", '{"ttl_seconds":60}'), ("DELETE", None)):
            began = time.perf_counter()
            while True:
                try:
                    connection.request(method, f"/locks/other-{number}/lease", body, headers)
                    connection.getresponse().read()
                    break
                except (OSError, HTTPException):
                    connection.close()
                    if time.perf_counter() - began > OTHER_CLIENT_MS_MAX / 50:
                        break
            times_ms.append((time.perf_counter() - began) * 1_000)
        time.sleep(OTHER_CLIENT_PAUSE_SECONDS)
    connection.close()
    return times_ms


def _scrapes_ms(server: LockServer) -> list[float]:
    """The times of scrapes on one connection, after one that waits for the first count."""
    connection = HTTPConnection("127.0.0.1", int(_port(server)), timeout=30)
    times_ms = []
    for _ in range(SCRAPES + 1):
        began = time.perf_counter()
        connection.request("GET", "/metrics")
        connection.getresponse().read()
        times_ms.append((time.perf_counter() - began) * 1_000)
    connection.close()
    return times_ms[1:]


@contextmanager
def _copy_running(folder: Path, seed: Path, name: str) -> Iterator[LockServer]:
    """A server on a copy of the seed file."""
    database = folder / f"{name}.db"
    shutil.copyfile(seed, database)
    with running_server(database) as server:
        yield server


@contextmanager
def _driver(command: Sequence[str], server: LockServer, project: Project) -> Iterator["Popen[str]"]:
    environment: Mapping[str, str] = {"BENCH_PORT": _port(server), "BENCH_SERVICE_KEY": project.service_key}
    with running_driver(command, environment=environment) as process:
        yield process


def _port(server: LockServer) -> str:
    return server.url.rpartition(":")[2]


def _row(name: str, idle: float, loaded: float, result: RoundResult, problem: str = "") -> _Row:
    progress(f"{name}: {idle:.0f} MB, after a load {loaded:.0f} MB")
    return _Row(name, idle, loaded, problem or result.problem)


def _chart(what: str, names_are: str, counts: Sequence[int], rows: Sequence[_Row]) -> LineChart:
    series: dict[str, Sequence[float | None]] = {
        "without a load": [row.idle for row in rows],
        "after a load of 64 connections": [row.loaded for row in rows],
    }
    names = [f"{count:,}" for count in counts]
    return LineChart(
        f"memory-over-{what}.svg", f"Resident memory of the server over {names_are}", names, names_are, "MB", series
    )
