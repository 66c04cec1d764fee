"""Many connections at once: new ones beside a thousand busy ones, and thousands that reconnect after a restart."""

import json
import statistics
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from .interleaved_rounds import rotated
from .lock_server import LockServer, Project, create_project, running_server
from .processes import running_driver, send_command
from .progress import progress
from .report import Goal, p50_and_p99

FIRST_READ_MS_MAX: Final = 500.0
LAST_RESPONSE_SECONDS_MAX: Final = 5.0
RENEWAL_MS_MAX: Final = 1_000.0
BUSY_CONNECTIONS: Final = 1_000
RAMP_SECONDS: Final = 2.0
DRIVER: Final = (sys.executable, "-m", "bench.drivers.new_connections")


class NewConnectionLoad(NamedTuple):
    """How much to measure. Half of the clients that reconnect hold a lease and renew it; the others acquire."""

    rounds: int
    seconds: float
    new_per_second: int
    clients: int


@dataclass
class _Rounds:
    """The results of one server, of all rounds."""

    first_reads_ms: list[float] = field(default_factory=list)
    renewals_ms: list[float] = field(default_factory=list)
    last_response_seconds: list[float] = field(default_factory=list)
    failed: int = 0


class NewConnectionResults(NamedTuple):
    """The results of each server."""

    size: NewConnectionLoad
    servers: Mapping[str, _Rounds]

    def goals(self, name: str) -> list[Goal]:
        """The goals of one server."""
        one = self.servers[name]
        first, renewal = p50_and_p99(one.first_reads_ms)[1], p50_and_p99(one.renewals_ms)[1]
        last = statistics.median(one.last_response_seconds)
        first_text = f"first reads beside {BUSY_CONNECTIONS:,} busy connections, p99 under {FIRST_READ_MS_MAX:.0f} ms"
        clients = f"{self.size.clients:,} clients that reconnect at once"
        last_text = f"{clients}, last response within {LAST_RESPONSE_SECONDS_MAX:.0f} s"
        return [
            Goal(first_text, f"{first:.0f} ms", first < FIRST_READ_MS_MAX),
            Goal(last_text, f"{last:.2f} s", last <= LAST_RESPONSE_SECONDS_MAX),
            Goal(f"their renewals, p99 under {RENEWAL_MS_MAX:.0f} ms", f"{renewal:.0f} ms", renewal < RENEWAL_MS_MAX),
        ]

    def problems(self, name: str) -> list[str]:
        failed = self.servers[name].failed
        return [f"{name}: {failed} requests of new connections failed"] if failed else []

    def notes(self) -> list[str]:
        return [f"New connections of {name}: {_described(one, self.size)}." for name, one in self.servers.items()]


def measure(folder: Path, trees: Mapping[str, Path], size: NewConnectionLoad) -> NewConnectionResults:
    """Measure the servers of these source trees, alternately."""
    results = NewConnectionResults(size, {name: _Rounds() for name in trees})
    for number in range(size.rounds):
        for name in rotated(list(trees), number):
            fresh = folder / f"new_load-{number}-{list(trees).index(name)}"
            fresh.mkdir()
            _first_reads(fresh, trees[name], size, results.servers[name])
            _reconnect(fresh, trees[name], size, results.servers[name])
            described = _described(results.servers[name], size)
            progress(f"round {number + 1} of {size.rounds}, new connections, {name}: {described}")
    return results


def _described(one: _Rounds, size: NewConnectionLoad) -> str:
    first, renewals = p50_and_p99(one.first_reads_ms), p50_and_p99(one.renewals_ms)
    last = statistics.median(one.last_response_seconds)
    failed = f", {one.failed} requests failed" if one.failed else ""
    return (
        f"first read beside {BUSY_CONNECTIONS:,} busy ones p50 {first[0]:.0f} ms, p99 {first[1]:.0f} ms; "
        f"{size.clients:,} at once after a restart, last response after {last:.2f} s, "
        f"renewals p50 {renewals[0]:.0f} ms, p99 {renewals[1]:.0f} ms{failed}"
    )


def _first_reads(folder: Path, tree: Path, size: NewConnectionLoad, rounds: _Rounds) -> None:
    with running_server(folder / "busy.db", tree=tree) as server, ThreadPoolExecutor(1) as pool:
        project = create_project(server)
        busy = pool.submit(
            server.load, project.service_key, size.seconds + 2 * RAMP_SECONDS, connections=BUSY_CONNECTIONS
        )
        command = {"after_seconds": RAMP_SECONDS, "seconds": size.seconds, "per_second": size.new_per_second}
        result = _driven(server, project, {"first_reads": command})
        busy.result()
        rounds.first_reads_ms += result["ms"]
        rounds.failed += result["failed"]


def _reconnect(folder: Path, tree: Path, size: NewConnectionLoad, rounds: _Rounds) -> None:
    """The server stops and starts again on its file, and the clients connect once it is ready."""
    database = folder / "restart.db"
    leases = size.clients // 2
    with running_server(database, tree=tree) as server:
        project = create_project(server)
        rounds.failed += _driven(server, project, {"hold": {"leases": leases}})["failed"]
    with running_server(database, tree=tree) as server:
        result = _driven(server, project, {"reconnect": {"leases": leases, "acquires": size.clients - leases}})
        rounds.renewals_ms += result["renewals_ms"]
        rounds.last_response_seconds.append(result["last_response_seconds"])
        rounds.failed += result["failed"]


def _driven(server: LockServer, project: Project, command: Mapping[str, object]) -> Any:
    environment = {"BENCH_PORT": server.url.rpartition(":")[2], "BENCH_SERVICE_KEY": project.service_key}
    with running_driver(DRIVER, environment=environment) as process:
        return send_command(process, json.dumps(command))
