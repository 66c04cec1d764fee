"""Servers that tests start: found as Debian packages them, run as a user who is not root, ended with the tests.

Database servers refuse to run as root, so then they run as the user that their package made. If the tests die, the
kernel ends the servers too.
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

READY_SECONDS = 60
BUSY_SECONDS = 20  # how much longer than promised what is measured may take where others use the machine, too
END_SECONDS = 60  # writing out what is not on the disk yet can take long
PORTS = range(20_000, 32_000)  # below those that connections get: else one that retries may take a server's port
Word = str | Path
_given: set[int] = set()


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


def user_of(package_user: str) -> str | None:
    """The user that a server has to run as: the package's if we are root, else None, who we are."""
    return package_user if os.geteuid() == 0 else None


@contextmanager
def folder_for(user: str | None, prefix: str) -> Iterator[Path]:
    """A folder with a short path (a socket's may have 107 bytes) that `user` owns."""
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir="/tmp"))
    try:
        if user is not None:
            shutil.chown(folder, user, user)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def done(command: Sequence[Word], user: str | None) -> str:
    """Run a program to its end; what it said on stdout."""
    made = subprocess.run(command, **run_as(user), capture_output=True, text=True, timeout=READY_SECONDS, check=False)
    if made.returncode != 0:
        raise CannotStartError(f"{command[0]} ended with {made.returncode}:\n{made.stdout}{made.stderr}")
    return str(made.stdout)


def run_as(user: str | None) -> dict[str, Any]:
    """How a process of that user is started; None is who we are."""
    return {"cwd": "/"} if user is None else {"cwd": "/", "user": user, "group": user, "extra_groups": []}


def started(
    command: Sequence[Word], user: str | None, log: IO[bytes], end: str = "SIGINT"
) -> "subprocess.Popen[bytes]":
    """A server in the background, which the kernel ends with `end` when we die."""
    return subprocess.Popen(
        ["setpriv", f"--pdeathsig={end}", *command],  # of util-linux, which every Debian has
        **run_as(user),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
    )


def wait_until(answers: Callable[[], bool], server: "subprocess.Popen[bytes]", log: Path) -> None:
    """Return when it answers; CannotStartError with its log if it ends or takes too long."""
    gives_up_at = time.monotonic() + READY_SECONDS
    while not answers():
        if server.poll() is not None or time.monotonic() > gives_up_at:
            raise CannotStartError(f"{server.args!r} does not answer:\n{log.read_text(errors='replace')}")
        time.sleep(0.02)


def killed(processes: Sequence[int]) -> None:
    """Kill processes that need not be our children; returns when nothing of them is left but their exit codes."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    for process in processes:
        while state_of(process) not in "ZX":
            time.sleep(0.01)


def state_of(process: int) -> str:
    """The letter of proc(5) for what a process does: `T` is stopped, `Z` and `X` are dead."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def ended(server: "subprocess.Popen[bytes]") -> None:
    """Wait for a server that was told to end; kill it if it does not."""
    try:
        server.wait(END_SECONDS)
    finally:
        server.kill()
        server.wait()


def free_port() -> int:
    """A loopback port that nobody listens on now, and that this gave to nobody before."""
    for port in random.sample(PORTS, 100):
        if port in _given:
            continue
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            _given.add(port)
            return port
    raise AssertionError("no port is free")
