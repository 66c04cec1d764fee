"""PostgreSQL and MariaDB as Debian packages them, each started in a folder of its own.

Neither listens on the network: clients connect through a socket in that folder.
"""

import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from testsupport.engines.processes import (
    END_SECONDS,
    READY_SECONDS,
    CannotStartError,
    done,
    folder_for,
    program,
    run_as,
    user_of,
)


@contextmanager
def postgresql() -> Iterator[Path]:
    """A PostgreSQL server; the folder of its socket. Its superuser is `postgres`, without a password."""
    user = user_of("postgres")
    with folder_for(user, "fencing-") as folder:
        cluster = folder / "cluster"
        initdb = [program("initdb", "postgresql"), "-D", cluster, "-U", "postgres", "-A", "trust", "-E", "UTF8", "-N"]
        done([*initdb, "--locale=C.UTF-8"], user)
        serve = [program("postgres", "postgresql"), "-D", cluster, "-k", folder, "-c", "listen_addresses="]
        ready = [program("pg_isready", "postgresql"), "-h", folder, "-q"]
        # SIGINT does not wait for clients to disconnect.
        with _serving([*serve, "-c", "fsync=off"], user, ready, signal.SIGINT):
            yield folder


@contextmanager
def mariadb() -> Iterator[Path]:
    """A MariaDB server; its socket. Its superuser is `root`, without a password."""
    user = user_of("mysql")
    with folder_for(user, "fencing-") as folder:
        cluster, socket = folder / "cluster", folder / "socket"
        # A starting server deletes the temporary tables of all servers in its --tmpdir, so each has its own.
        own = ["--no-defaults", f"--datadir={cluster}", f"--tmpdir={folder}"]
        install = [program("mariadb-install-db", "mariadb-server"), *own]
        done([*install, "--auth-root-authentication-method=normal", "--skip-test-db"], user)
        serve = [program("mariadbd", "mariadb-server"), *own, f"--socket={socket}"]
        lean = ["--skip-networking", f"--pid-file={folder / 'pid'}", "--innodb-flush-log-at-trx-commit=0"]
        ready = [program("mariadb-admin", "mariadb-client"), "--no-defaults", f"--socket={socket}", "-uroot", "ping"]
        with _serving([*serve, *lean], user, ready, signal.SIGTERM):
            yield socket


@contextmanager
def _serving(
    command: list[str | Path], user: str | None, ready: list[str | Path], end: signal.Signals
) -> Iterator[None]:
    """Run the server until it answers `ready`; end it with the signal `end` on leaving."""
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen(
            ["setpriv", f"--pdeathsig={end.name}", *command],  # of util-linux, which every Debian has
            **run_as(user),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        try:
            deadline = time.monotonic() + READY_SECONDS
            while subprocess.run(ready, capture_output=True, check=False).returncode != 0:
                if server.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    raise CannotStartError(f"{command[0]} does not respond:\n{log.read().decode()}")
                time.sleep(0.05)
            yield
        finally:
            server.send_signal(end)
            try:
                server.wait(END_SECONDS)
            finally:
                server.kill()
                server.wait()
