"""PostgreSQL on a fresh cluster, and the plainest client that it has: `pgbench` with one statement per lease.

The server has its defaults, `fsync` and `synchronous_commit` on, and is reached over TCP on 127.0.0.1. It refuses to
run as root; then it runs as the user that Debian's package made, who has to be able to reach this checkout.
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

from . import processes
from .peers import Load, checked
from .processes import BenchError, free_port, run, running, wait_until
from .wrk import CONNECTIONS, SCRIPTS, Measured

USER: Final = "postgres"
PACKAGE: Final = "postgresql"
SYNCED: Final = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}


@contextmanager
def postgres_serving(folder: Path) -> Iterator[int]:
    """The port of one PostgreSQL server whose superuser `postgres` needs no password."""
    port, log, cluster = free_port(), folder / "postgres.log", folder / "cluster"
    as_user: list[str] = []
    if os.geteuid() == 0:
        as_user = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
        try:
            shutil.chown(folder, USER, USER)
        except LookupError:
            raise BenchError(f"there is no user {USER}: apt-get install {PACKAGE}") from None
    run([*as_user, program("initdb"), "-D", str(cluster), "-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8"])
    settings = {"listen_addresses": "127.0.0.1", "port": str(port), "unix_socket_directories": "", **SYNCED}
    command = [*as_user, program("postgres"), "-D", str(cluster)]
    for name, value in settings.items():
        command += ["-c", f"{name}={value}"]
    with running(command, log=log, stop=signal.SIGINT) as process:
        wait_until(lambda: _answers(port), process, log)
        yield port


@contextmanager
def pgbench(folder: Path) -> Iterator[Load]:
    """That server, loaded with lease upserts, each one statement and one transaction."""
    granted_before = 0

    def load(seconds: float) -> Measured:
        nonlocal granted_before
        measured = _pgbench(port, folder, seconds)
        granted = int(_ask(port, "SELECT coalesce(sum(fencing_token), 0) FROM lease"))
        measured = checked(measured, granted - granted_before)
        granted_before = granted
        return measured

    with postgres_serving(folder) as port:
        _ask(port, (SCRIPTS / "lease_table.sql").read_text())
        yield load


def program(name: str) -> str:
    """The path of one of PostgreSQL's programs, of the newest version here; Debian keeps them away from PATH."""
    found = Path("/usr/lib/postgresql").glob(f"*/bin/{name}")
    newest = sorted(found, key=lambda path: int(re.sub(r"\D", "", path.parts[4]) or 0))
    return str(newest[-1]) if newest else processes.program(name, PACKAGE)


def _pgbench(port: int, folder: Path, seconds: float) -> Measured:
    printed = run(
        [
            *(program("pgbench"), *_where(port), "--client", str(CONNECTIONS), "--jobs", "1", "--no-vacuum"),
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
    return Measured(
        operations=operations,
        seconds=operations / float(rate[1]),
        p50_ms=cuts[49],
        p99_ms=cuts[98],
        problem=f"{failed[1]} transactions failed" if failed else "",
    )


def _latencies_ms(folder: Path) -> list[float]:
    """What each transaction took, of the log that pgbench just wrote, which is gone afterwards."""
    latencies = []
    for log in folder.glob("pgbench.*"):
        latencies += [int(line.split()[2]) / 1e3 for line in log.read_text().splitlines()]
        log.unlink()
    return latencies


def _ask(port: int, sql: str) -> str:
    return run(
        [program("psql"), *_where(port), "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-c", sql, "postgres"]
    ).strip()


def _answers(port: int) -> bool:
    try:
        return _ask(port, "SELECT 1") == "1"
    except BenchError:
        return False


def _where(port: int) -> list[str]:
    return ["-h", "127.0.0.1", "-p", str(port), "-U", USER]
