"""The PostgreSQL baseline: a fresh cluster, loaded by `pgbench` with one statement per lease.

The server has default settings with `fsync` and `synchronous_commit` on, and listens on 127.0.0.1. PostgreSQL does not
run as root. If the benchmark does, the server runs as Debian's user `postgres`, who needs access to this checkout.
"""

import os
import re
import shutil
import signal
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from .baselines import Load, checked
from .processes import BenchError, free_port, program, run, running, wait_until
from .wrk import CONNECTIONS, SCRIPTS, RoundResult

USER: Final = "postgres"
PACKAGE: Final = "postgresql"
SYNCED: Final = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}


@contextmanager
def running_postgres(folder: Path) -> Iterator[int]:
    """The port of one PostgreSQL server whose superuser `postgres` needs no password."""
    port, log, cluster = free_port(), folder / "postgres.log", folder / "cluster"
    as_user: list[str] = []
    if os.geteuid() == 0:
        as_user = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
        try:
            shutil.chown(folder, USER, USER)
        except LookupError:
            raise BenchError(f"the user {USER} does not exist: apt-get install {PACKAGE}") from None
    initdb = [*as_user, postgres_program("initdb"), "-D", str(cluster), "-U", USER, "-A", "trust"]
    run([*initdb, "-E", "UTF8", "--locale=C.UTF-8"])
    settings = {"listen_addresses": "127.0.0.1", "port": str(port), "unix_socket_directories": "", **SYNCED}
    command = [*as_user, postgres_program("postgres"), "-D", str(cluster)]
    for name, value in settings.items():
        command += ["-c", f"{name}={value}"]
    with running(command, log=log, stop=signal.SIGINT) as process:
        wait_until(lambda: _accepts_queries(port), process, log)
        yield port


@contextmanager
def pgbench_load(folder: Path) -> Iterator[Load]:
    """A PostgreSQL server, loaded with lease upserts: one statement and one transaction each."""
    granted_before = 0

    def load(seconds: float) -> RoundResult:
        nonlocal granted_before
        result = _run_pgbench(port, folder, seconds)
        granted = int(_query(port, "SELECT coalesce(sum(fencing_token), 0) FROM lease"))
        result = checked(result, granted - granted_before)
        granted_before = granted
        return result

    with running_postgres(folder) as port:
        _query(port, (SCRIPTS / "lease_table.sql").read_text())
        yield load


def postgres_program(name: str) -> str:
    """The path of a PostgreSQL program in the newest installed version. Debian does not put them on PATH."""
    found = Path("/usr/lib/postgresql").glob(f"*/bin/{name}")
    newest = sorted(found, key=lambda path: int(re.sub(r"\D", "", path.parts[4]) or 0))
    return str(newest[-1]) if newest else program(name, PACKAGE)


def _run_pgbench(port: int, folder: Path, seconds: float) -> RoundResult:
    printed = run(
        [
            *(postgres_program("pgbench"), *_connection_options(port), "--client", str(CONNECTIONS)),
            *("--jobs", "1", "--no-vacuum"),
            *("--protocol", "prepared", "--time", str(max(1, round(seconds)))),
            *("--log", "--log-prefix", str(folder / "pgbench")),
            *("--file", str(SCRIPTS / "lease_upsert.sql"), "postgres"),
        ]
    )
    processed = re.search(r"transactions actually processed: (\d+)", printed)
    rate = re.search(r"^tps = ([\d.]+) \(without initial", printed, re.MULTILINE)
    latencies = _latencies_ms(folder)
    if processed is None or rate is None or len(latencies) < 2:
        raise BenchError(f"pgbench printed no result:\n{printed}")
    operations = int(processed[1])
    cuts = statistics.quantiles(latencies, n=100, method="inclusive")
    failed = re.search(r"failed transactions: ([1-9]\d*)", printed)
    return RoundResult(
        operations=operations,
        seconds=operations / float(rate[1]),
        p50_ms=cuts[49],
        p99_ms=cuts[98],
        problem=f"{failed[1]} transactions failed" if failed else "",
    )


def _latencies_ms(folder: Path) -> list[float]:
    """The duration of each transaction from the log of pgbench, which is then deleted."""
    latencies = []
    for log in folder.glob("pgbench.*"):
        latencies += [int(line.split()[2]) / 1e3 for line in log.read_text().splitlines()]
        log.unlink()
    return latencies


def _query(port: int, sql: str) -> str:
    options = ("-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1")
    return run([postgres_program("psql"), *_connection_options(port), *options, "-c", sql, "postgres"]).strip()


def _accepts_queries(port: int) -> bool:
    try:
        return _query(port, "SELECT 1") == "1"
    except BenchError:
        return False


def _connection_options(port: int) -> list[str]:
    return ["-h", "127.0.0.1", "-p", str(port), "-U", USER]
