"""PostgreSQL and PgBouncer as Debian packages them, each in a folder of its own, on loopback ports.

`shared` is one server for all tests that only need a database. A test that disturbs a server starts its own `primary`,
with a `standby` if it needs one.
"""

import atexit
import itertools
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import psycopg

from ..fault_proxy import FaultProxy
from .processes import (
    READY_SECONDS,
    Word,
    done,
    ended,
    folder_for,
    free_port,
    killed,
    program,
    started,
    state_of,
    user_of,
    wait_until,
)

_USER = "postgres"
_numbers = itertools.count(1)


class Postgres:
    """A server and its cluster. Its superuser is `postgres`, without a password."""

    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None, *, fsync: bool) -> None:
        self.folder = folder
        self.cluster = folder / "cluster"
        self.port = free_port()
        self.environment: Mapping[str, str] = environment or {}
        """Added to ours at the next start."""
        self._fsync = fsync
        self._user = user_of(_USER)
        self._log = folder / "log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        assert self._process is not None
        return self._process.pid

    def url(self, database: str = "postgres") -> str:
        """The URL of a database on this server."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def log(self) -> str:
        """The server's log."""
        return self._log.read_text(errors="replace")

    def initialise(self) -> None:
        """Make an empty cluster."""
        initdb: list[Word] = [
            program("initdb", "postgresql"),
            "-D",
            self.cluster,
            "-U",
            "postgres",
            "-A",
            "trust",
            "-E",
            "UTF8",
        ]
        done([*initdb, "--locale=C.UTF-8", "-N"], self._user)

    def start(self, **settings: str) -> None:
        """Start the server and wait until it responds."""
        defaults = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": str(self.folder),
            "fsync": "on" if self._fsync else "off",
            "max_connections": "100",
        }
        words = itertools.chain.from_iterable(
            ("-c", f"{name}={value}") for name, value in (defaults | settings).items()
        )
        with self._log.open("ab") as log:
            command: list[Word] = [program("postgres", "postgresql"), "-D", self.cluster, *words]
            self._process = started(command, self._user, log, environment=self.environment)
        wait_until(self._responds, self._process, self._log)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """End the server: SIGINT disconnects its clients, SIGQUIT is a crash."""
        if self._process is not None:
            self._process.send_signal(how)
            ended(self._process)
            self._process = None

    def crash(self) -> None:
        """Kill all its processes at once, as a machine failure does."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)  # else it could start others meanwhile
        while state_of(self.pid) != "T":
            time.sleep(0.001)
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        killed([self.pid, *map(int, children)])  # a survivor would block the next start
        ended(self._process)
        self._process = None

    def promote(self) -> None:
        """Make a standby the primary. Returns when it accepts writes."""
        self.execute("SELECT pg_promote(true, 30)")

    def connect(self, database: str = "postgres") -> "psycopg.Connection[Any]":
        """A new connection; each statement is a transaction of its own."""
        return psycopg.connect(self.url(database), autocommit=True)

    def execute(self, sql: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Run one statement and return its rows."""
        with self.connect(database) as connection:
            ran = connection.execute(sql)
            return list(ran.fetchall()) if ran.description is not None else []

    def new_database(self, template: str = "template1") -> str:
        """Create a database and return its name."""
        name = f"locks_{next(_numbers)}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return name

    def _responds(self) -> bool:
        try:
            self.connect().close()
        except psycopg.OperationalError:
            return False
        return True


@contextmanager
def primary(*, fsync: bool = True, environment: Mapping[str, str] | None = None, **settings: str) -> Iterator[Postgres]:
    """A new server."""
    with folder_for(user_of(_USER), "locks-postgres-") as folder:
        server = Postgres(folder, environment, fsync=fsync)
        server.initialise()
        server.start(**settings)
        try:
            yield server
        finally:
            server.stop()


@contextmanager
def standby(of: Postgres, by: int | None = None, *, environment: Mapping[str, str] | None = None) -> Iterator[Postgres]:
    """A synchronous streaming standby of the server `of`. `by` is the port of a proxy to that server."""
    user = user_of(_USER)
    with folder_for(user, "locks-standby-") as folder:
        server = Postgres(folder, environment, fsync=True)
        source = f"host=127.0.0.1 port={by or of.port} user=postgres application_name=standby"
        copy: list[Word] = [
            program("pg_basebackup", "postgresql"),
            "-D",
            server.cluster,
            "-d",
            source,
            "-R",
            "-X",
            "stream",
        ]
        done([*copy, "-c", "fast"], user)
        server.start()
        try:
            of.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            of.execute("SELECT pg_reload_conf()")
            deadline = time.monotonic() + READY_SECONDS
            while of.execute("SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'") == []:
                assert time.monotonic() < deadline, server.log()
                time.sleep(0.02)
            yield server
        finally:
            server.stop()


@contextmanager
def pgbouncer(of: Postgres | FaultProxy) -> Iterator[int]:
    """The port of a PgBouncer in transaction mode in front of a server, with a pool of three."""
    user = user_of(_USER)
    port = free_port()
    with folder_for(user, "locks-pgbouncer-") as folder:
        settings = folder / "pgbouncer.ini"
        settings.write_text(
            f"[databases]\n* = host=127.0.0.1 port={of.port}\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
            f"auth_type = trust\nauth_file = {folder / 'users'}\npool_mode = transaction\ndefault_pool_size = 3\n"
            "server_login_retry = 1\n"
        )
        (folder / "users").write_text('"postgres" ""\n')
        for path in (settings, folder / "users"):
            path.chmod(0o644)
        log = folder / "log"
        with log.open("wb") as opened:
            process = started([program("pgbouncer", "pgbouncer"), settings], user, opened)
        try:
            wait_until(lambda: _responds(port), process, log)
            yield port
        finally:
            process.send_signal(signal.SIGINT)
            ended(process)


def _responds(port: int) -> bool:
    try:
        psycopg.connect(f"postgresql://postgres@127.0.0.1:{port}/postgres").close()
    except psycopg.OperationalError:
        return False
    return True


@cache
def shared() -> Postgres:
    """One server for all tests that do not disturb it. It does not sync: no such test crashes it."""
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(primary(fsync=False))
