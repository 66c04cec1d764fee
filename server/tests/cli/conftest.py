"""Runs the server's commands: in this process if they end by themselves, else as processes."""

import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, NamedTuple

import pytest

from volcano_locks.cli.app import app

PROGRAM = Path(sys.executable).with_name("volcano-locks")
WAIT_SECONDS = 60


class Completed(NamedTuple):
    """The exit code and output of a command that ended by itself."""

    exit_code: int
    stdout: str
    stderr: str


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No settings from outside, and a working directory for the test alone."""
    for name in os.environ:
        if "VOLCANO" in name:
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str]) -> Callable[..., Completed]:
    """Runs `volcano-locks ARGUMENTS` in this process."""

    def run(*arguments: str) -> Completed:
        with pytest.raises(SystemExit) as caught:
            app.main(list(arguments))
        assert isinstance(caught.value.code, int)
        return Completed(caught.value.code, *capfd.readouterr())

    return run


class ServerProcess:
    """A server process, and its output so far on the stream with its announcement."""

    def __init__(self, process: subprocess.Popen[str], output: IO[str]) -> None:
        self.process = process
        self._output = output
        self.text = ""

    def read_until(self, pattern: str) -> str:
        """The pattern's group as matched in the output."""
        while (found := re.search(pattern, self.text)) is None:
            line = self._output.readline()
            assert line, f"it ended early; its output:\n{self.text}"
            self.text += line
        return found.group(1)

    def stop(self, signal_number: int) -> int:
        """Sends the signal. Returns the exit code."""
        self.process.send_signal(signal_number)
        return self.process.wait(WAIT_SECONDS)


@pytest.fixture
def start() -> Iterator[Callable[..., ServerProcess]]:
    """Starts `volcano-locks ARGUMENTS` as a process that is killed after the test."""
    started: list[subprocess.Popen[str]] = []

    def run(*arguments: str, announces_on: str = "both", **environment: str) -> ServerProcess:
        process = subprocess.Popen(
            [PROGRAM, *arguments],
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            stdout=None if announces_on == "stderr" else subprocess.PIPE,
            stderr={"stderr": subprocess.PIPE, "stdout": None, "both": subprocess.STDOUT}[announces_on],
            text=True,
        )
        started.append(process)
        output = process.stderr if announces_on == "stderr" else process.stdout
        assert output is not None
        return ServerProcess(process, output)

    yield run
    for process in started:
        process.kill()
        process.communicate()


def status_of(url: str, *, bearer: str = "", body: bytes | None = None) -> int:
    """The HTTP status of a GET, or of a POST of `body`."""
    request = urllib.request.Request(url, data=body, headers={"Authorization": f"Bearer {bearer}"} if bearer else {})
    try:
        with urllib.request.urlopen(request, timeout=WAIT_SECONDS) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
