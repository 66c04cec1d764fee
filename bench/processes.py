"""Starts and stops the programs under test, and measures their memory and CPU time."""

import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

START_SECONDS_MAX: Final = 60.0
STOP_SECONDS_MAX: Final = 20.0


class BenchError(Exception):
    """A benchmark cannot run. The message says what to do."""


def program(name: str, debian_package: str) -> str:
    """The program's path. If it is missing, raises BenchError with the name of its Debian package."""
    found = shutil.which(name)
    if found is None:
        raise BenchError(f"{name} is not installed: apt-get install {debian_package}")
    return found


def volcano_locks_program() -> str:
    """The path of `volcano-locks` in the environment of this Python."""
    path = Path(sys.executable).with_name("volcano-locks")
    if not path.exists():
        raise BenchError("volcano-locks is not installed in this Python environment: run make setup")
    return str(path)


def allow_many_files() -> None:
    """Raise the limit of open files of this process, and so of the programs it starts, as far as it may."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def free_port() -> int:
    """A TCP port of 127.0.0.1 that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def running(
    command: Sequence[str],
    *,
    log: Path,
    environment: Mapping[str, str] | None = None,
    stop: signal.Signals = signal.SIGTERM,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run the program while the block runs, with its output in `log`. Then send `stop`, and SIGKILL after a while."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
        )
    try:
        yield process
    finally:
        process.send_signal(stop)
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def running_driver(command: Sequence[str], *, environment: Mapping[str, str]) -> Iterator["subprocess.Popen[str]"]:
    """Run a driver while the block runs. It reads commands from stdin, writes to stdout, and exits when stdin ends."""
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}
    )
    try:
        yield process
    finally:
        try:
            process.communicate(timeout=STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def send_command(process: "subprocess.Popen[str]", line: str) -> Any:
    """Write one line to the driver and return its response, one line of JSON. Raises BenchError if it exited."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(f"{line}\n")
        process.stdin.flush()
        response = process.stdout.readline()
    except BrokenPipeError:
        response = ""
    if not response:
        raise BenchError(f"the driver exited: {process.args!r}")
    return json.loads(response)


def wait_until(is_ready: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> float:
    """Seconds until `is_ready()`. If the program exits or is too slow, raises BenchError with the end of its log."""
    began = time.perf_counter()
    while not is_ready():
        waited = time.perf_counter() - began
        if process.poll() is not None or waited > START_SECONDS_MAX:
            state = "was not ready in time" if process.returncode is None else f"exited with {process.returncode}"
            raise BenchError(f"{Path(str(process.args[0])).name} {state}:\n{_tail(log)}")  # type: ignore[index]
        time.sleep(0.002)
    return time.perf_counter() - began


def resident_megabytes(pid: int, *, peak: bool = False) -> float:
    """The process's resident memory (VmRSS), or the most that it ever was (VmHWM), in units of 10^6 bytes."""
    name = "VmHWM:" if peak else "VmRSS:"
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024 / 1e6
    raise BenchError(f"process {pid} has no resident memory: it has exited")


def cpu_seconds(pid: int) -> float:
    """The CPU time of the process and its threads so far, in user and in system mode."""
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")


def run(command: Sequence[str], *, environment: Mapping[str, str] | None = None) -> str:
    """The output of the program. If it fails, raises BenchError with its messages."""
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **(environment or {})}
    )
    if done.returncode != 0:
        raise BenchError(f"{Path(command[0]).name} exited with {done.returncode}: {done.stderr or done.stdout}")
    return done.stdout


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-20:])
