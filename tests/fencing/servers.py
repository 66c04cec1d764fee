"""PostgreSQL and MariaDB as Debian packages them, each started for the tests in a folder of its own, and ended.

Neither listens on the network: clients come by a socket in that folder, so nothing else on the machine is in the
way. Both refuse to run as root, so then they run as the user that their package made. If the tests die, the
kernel ends the servers too.
"""

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

READY_SECONDS = 60
END_SECONDS = 20


class CannotStartError(AssertionError):
    """A server or its programs are not there, or it ended at once."""


def program(name: str, package: str) -> str:
    """The path of a program, also where Debian keeps it away from PATH."""
    versions = Path("/usr/lib/postgresql").glob(f"*/bin/{name}")
    newest = sorted(versions, key=lambda path: int(re.sub(r"\D", "", path.parts[4]) or 0))
    found = str(newest[-1]) if newest else shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    if found is None:
        raise CannotStartError(f"the tests need {name}: apt-get install {package}")
    return found


@contextmanager
def postgresql() -> Iterator[Path]:
    """A PostgreSQL server; the folder of its socket. Its superuser is `postgres`, without a password."""
    with _folder("postgres") as (folder, user):
        cluster = folder / "cluster"
        initdb = [program("initdb", "postgresql"), "-D", cluster, "-U", "postgres", "-A", "trust", "-E", "UTF8", "-N"]
        _done([*initdb, "--locale=C.UTF-8"], user)
        serve = [program("postgres", "postgresql"), "-D", cluster, "-k", folder, "-c", "listen_addresses="]
        ready = [program("pg_isready", "postgresql"), "-h", folder, "-q"]
        # SIGINT does not wait for clients to leave.
        with _serving([*serve, "-c", "fsync=off"], user, ready, signal.SIGINT):
            yield folder


@contextmanager
def mariadb() -> Iterator[Path]:
    """A MariaDB server; its socket. Its superuser is `root`, without a password."""
    with _folder("mysql") as (folder, user):
        cluster, socket = folder / "cluster", folder / "socket"
        install = [program("mariadb-install-db", "mariadb-server"), "--no-defaults", f"--datadir={cluster}"]
        _done([*install, "--auth-root-authentication-method=normal", "--skip-test-db"], user)
        serve = [program("mariadbd", "mariadb-server"), "--no-defaults", f"--datadir={cluster}", f"--socket={socket}"]
        lean = ["--skip-networking", f"--pid-file={folder / 'pid'}", "--innodb-flush-log-at-trx-commit=0"]
        ready = [program("mariadb-admin", "mariadb-client"), "--no-defaults", f"--socket={socket}", "-uroot", "ping"]
        with _serving([*serve, *lean], user, ready, signal.SIGTERM):
            yield socket


@contextmanager
def _folder(package_user: str) -> Iterator[tuple[Path, str | None]]:
    """A folder with a short path (a socket's may have 107 bytes), and the user who must own it, if not we."""
    user = package_user if os.geteuid() == 0 else None
    folder = Path(tempfile.mkdtemp(prefix="fencing-", dir="/tmp"))
    try:
        if user is not None:
            shutil.chown(folder, user, user)
        yield folder, user
    finally:
        shutil.rmtree(folder)


def _done(command: list[str | Path], user: str | None) -> None:
    made = subprocess.run(command, **_as(user), capture_output=True, text=True, timeout=READY_SECONDS, check=False)
    if made.returncode != 0:
        raise CannotStartError(f"{command[0]} ended with {made.returncode}:\n{made.stdout}{made.stderr}")


def _as(user: str | None) -> dict[str, Any]:
    """How a process of that user is started; None is who we are."""
    return {"cwd": "/"} if user is None else {"cwd": "/", "user": user, "group": user, "extra_groups": []}


@contextmanager
def _serving(
    command: list[str | Path], user: str | None, ready: list[str | Path], end: signal.Signals
) -> Iterator[None]:
    """While inside, the server runs and answers `ready`; then it gets the signal `end`, and is gone."""
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen(
            ["setpriv", f"--pdeathsig={end.name}", *command],  # of util-linux, which every Debian has
            **_as(user),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        try:
            gives_up_at = time.monotonic() + READY_SECONDS
            while subprocess.run(ready, capture_output=True, check=False).returncode != 0:
                if server.poll() is not None or time.monotonic() > gives_up_at:
                    log.seek(0)
                    raise CannotStartError(f"{command[0]} does not answer:\n{log.read().decode()}")
                time.sleep(0.05)
            yield
        finally:
            server.send_signal(end)
            try:
                server.wait(END_SECONDS)
            finally:
                server.kill()
                server.wait()
