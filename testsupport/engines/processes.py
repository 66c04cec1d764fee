"""Starts engines for tests: finds the programs of Debian's packages, runs them as an unprivileged user, ends them.

Database servers refuse to run as root, so for root they run as their package's user. If the test process dies, the
kernel ends the servers.
"""

import contextlib
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

READY_SECONDS = 60
BUSY_SECONDS = 20  # allowance on top of a promised time, for a machine that is busy with other work
END_SECONDS = 60  # flushing to disk can take long
PORTS = range(20_000, 32_000)  # below the ephemeral ports, which a retrying connection could take from a server
WORKERS_MAX = 16
WITHOUT_ENGINES = "VOLCANO_TESTS_WITHOUT_ENGINES"
Word = str | Path
_used: set[int] = set()


class CannotStartError(AssertionError):
    """A server's program is missing, or the server ended while it started."""


def program(name: str, package: str) -> str:
    """The path of a program, even if Debian installs it outside PATH."""
    if WITHOUT_ENGINES in os.environ:
        raise CannotStartError(f"this test starts {name}: name the engine in the test's id, or mark it `engines`")
    versions = Path("/usr/lib/postgresql").glob(f"*/bin/{name}")
    newest = sorted(versions, key=lambda path: int(re.sub(r"\D", "", path.parts[4]) or 0))
    found = str(newest[-1]) if newest else shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    if found is None:
        raise CannotStartError(f"the tests need {name}: apt-get install {package}")
    return found


def user_of(package_user: str) -> str | None:
    """The user for a server: the package's if we are root, else None for the current user."""
    return package_user if os.geteuid() == 0 else None


@contextmanager
def folder_for(user: str | None, prefix: str) -> Iterator[Path]:
    """A folder owned by `user`. Its path is short: a socket's may have at most 107 bytes."""
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir="/tmp"))
    try:
        if user is not None:
            shutil.chown(folder, user, user)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def done(command: Sequence[Word], user: str | None) -> str:
    """Run a program to its end and return its stdout."""
    made = subprocess.run(command, **run_as(user), capture_output=True, text=True, timeout=READY_SECONDS, check=False)
    if made.returncode != 0:
        raise CannotStartError(f"{command[0]} ended with {made.returncode}:\n{made.stdout}{made.stderr}")
    return str(made.stdout)


def run_as(user: str | None) -> dict[str, Any]:
    """The arguments of Popen for a process of that user; None is the current user."""
    return {"cwd": "/"} if user is None else {"cwd": "/", "user": user, "group": user, "extra_groups": []}


def started(
    command: Sequence[Word],
    user: str | None,
    log: IO[bytes],
    end: str = "SIGINT",
    environment: Mapping[str, str] | None = None,
) -> "subprocess.Popen[bytes]":
    """Start a server in the background. The kernel sends it the signal `end` if this process dies.

    `environment` is added to ours.
    """
    return subprocess.Popen(
        ["setpriv", f"--pdeathsig={end}", *command],  # of util-linux, which every Debian has
        **run_as(user),
        env=os.environ | (environment or {}),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
    )


def wait_until(responds: Callable[[], bool], server: "subprocess.Popen[bytes]", log: Path) -> None:
    """Return when the server responds. CannotStartError with its log if it ends or takes too long."""
    deadline = time.monotonic() + READY_SECONDS
    while not responds():
        if server.poll() is not None or time.monotonic() > deadline:
            raise CannotStartError(f"{server.args!r} does not respond:\n{log.read_text(errors='replace')}")
        time.sleep(0.02)


def killed(processes: Sequence[int]) -> None:
    """Kill processes, children or not. Returns when they have exited."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    for process in processes:
        while state_of(process) not in "ZX":
            time.sleep(0.01)


def state_of(process: int) -> str:
    """The state letter of proc(5): `T` is stopped, `Z` and `X` are dead."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def ended(server: "subprocess.Popen[bytes]") -> None:
    """Wait for a server that got its end signal, and kill it if it does not end."""
    try:
        server.wait(END_SECONDS)
    finally:
        server.kill()
        server.wait()


def free_port() -> int:
    """A free loopback port that was not returned before, neither here nor in another worker of pytest-xdist."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % WORKERS_MAX
    for port in random.sample(PORTS[worker::WORKERS_MAX], 100):
        if port in _used:
            continue
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            _used.add(port)
            return port
    raise AssertionError("no port is free")
