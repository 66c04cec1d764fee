"""Programs under measurement: started on free ports, awaited, ended by their own process and no other."""

import json
import os
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
    """A measurement that could not be made; the message says what to do."""


def program(name: str, debian_package: str) -> str:
    """The program's path. Raises BenchError that names its Debian package where it is missing."""
    found = shutil.which(name)
    if found is None:
        raise BenchError(f"{name} is not installed: apt-get install {debian_package}")
    return found


def our_program() -> str:
    """`volcano-locks` as installed beside the Python that runs the bench."""
    beside = Path(sys.executable).with_name("volcano-locks")
    if not beside.exists():
        raise BenchError("volcano-locks is not installed beside this Python: run make setup")
    return str(beside)


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listened on a moment ago."""
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
    """The program while the block runs, its output in `log`; then `stop`, and SIGKILL if that is not enough."""
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
    """The program while the block runs, to be spoken with over stdin and stdout; its stdin's end is its own."""
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


def asked(process: "subprocess.Popen[str]", line: str) -> Any:
    """What the driver answers to one line: one line of JSON. Raises BenchError if it ended instead."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(f"{line}\n")
        process.stdin.flush()
        answer = process.stdout.readline()
    except BrokenPipeError:
        answer = ""
    if not answer:
        raise BenchError(f"the driver ended: {process.args!r}")
    return json.loads(answer)


def wait_until(answers: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> float:
    """Seconds until `answers()` is true. Raises BenchError with the log's end if the program stops or is too slow."""
    began = time.perf_counter()
    while not answers():
        waited = time.perf_counter() - began
        if process.poll() is not None or waited > START_SECONDS_MAX:
            state = "did not answer" if process.returncode is None else f"ended with {process.returncode}"
            raise BenchError(f"{Path(str(process.args[0])).name} {state}:\n{_end_of(log)}")  # type: ignore[index]
        time.sleep(0.002)
    return time.perf_counter() - began


def resident_megabytes(pid: int) -> float:
    """The process's resident memory (VmRSS), in units of 10^6 bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise BenchError(f"process {pid} has no resident memory: it has ended")


def cpu_seconds(pid: int) -> float:
    """What the process and its threads used of all cores so far, in user and in system mode."""
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")


def run(command: Sequence[str], *, environment: Mapping[str, str] | None = None) -> str:
    """What the program printed. Raises BenchError with its messages if it failed."""
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **(environment or {})}
    )
    if done.returncode != 0:
        raise BenchError(f"{Path(command[0]).name} ended with {done.returncode}: {done.stderr or done.stdout}")
    return done.stdout


def _end_of(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-20:])
