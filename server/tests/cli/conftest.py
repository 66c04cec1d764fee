"""The commands as people run them: in this process where they end by themselves, else as processes of their own."""

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


class Ended(NamedTuple):
    """What a command that ended by itself left behind."""

    exit_code: int
    stdout: str
    stderr: str


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No setting from outside, and a working directory of the test's own."""
    for name in os.environ:
        if "VOLCANO" in name:
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """Runs `volcano-locks ARGUMENTS` in this process."""

    def run(*arguments: str) -> Ended:
        with pytest.raises(SystemExit) as caught:
            app.main(list(arguments))
        assert isinstance(caught.value.code, int)
        return Ended(caught.value.code, *capfd.readouterr())

    return run


class Running:
    """A server process, and what it has said so far on the stream it announces itself on."""

    def __init__(self, process: subprocess.Popen[str], said: IO[str]) -> None:
        self.process = process
        self._said = said
        self.text = ""

    def read_until(self, pattern: str) -> str:
        """What the pattern's group matches in what it says."""
        while (found := re.search(pattern, self.text)) is None:
            line = self._said.readline()
            assert line, f"it ended early, having said:\n{self.text}"
            self.text += line
        return found.group(1)

    def stop(self, signal_number: int) -> int:
        """Send the signal; the exit code."""
        self.process.send_signal(signal_number)
        return self.process.wait(WAIT_SECONDS)


@pytest.fixture
def start() -> Iterator[Callable[..., Running]]:
    """Starts `volcano-locks ARGUMENTS` as a process that is gone after the test."""
    started: list[subprocess.Popen[str]] = []

    def run(*arguments: str, announces_on: str = "both", **environment: str) -> Running:
        process = subprocess.Popen(
            [PROGRAM, *arguments],
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            stdout=None if announces_on == "stderr" else subprocess.PIPE,
            stderr={"stderr": subprocess.PIPE, "stdout": None, "both": subprocess.STDOUT}[announces_on],
            text=True,
        )
        started.append(process)
        said = process.stderr if announces_on == "stderr" else process.stdout
        assert said is not None
        return Running(process, said)

    yield run
    for process in started:
        process.kill()
        process.communicate()


def status_of(url: str, *, bearer: str = "", body: bytes | None = None) -> int:
    """The HTTP status of a GET, or of a POST of `body`."""
    request = urllib.request.Request(url, data=body, headers={"Authorization": f"Bearer {bearer}"} if bearer else {})
    try:
        with urllib.request.urlopen(request, timeout=WAIT_SECONDS) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
