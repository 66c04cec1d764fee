"""CLI-7 on a terminal: the command reads it, Ctrl-C and Ctrl-Z reach it, and a stopped wrapper never lets it
work on without the lock (case 38)."""

import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from volcano_locks import Client

from .conftest import PROGRAM, WAIT_SECONDS

pytestmark = pytest.mark.real_time

Until = Callable[[Callable[[], object]], None]
# Makes the terminal on stdin the controlling one, as a login does.
LOGIN = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execvp(sys.argv[1], sys.argv[1:])"
CTRL_C, CTRL_D, CTRL_Z = b"\x03", b"\x04", b"\x1a"


class Screen:
    """A terminal with one program on it."""

    def __init__(self, environment: dict[str, str], *arguments: str, piped: bool = False) -> None:
        self.keyboard, screen = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", LOGIN, *PROGRAM, *arguments],
            env=environment,
            stdin=screen,
            stdout=subprocess.DEVNULL if piped else screen,
            stderr=screen,
            start_new_session=True,
        )
        os.close(screen)
        self.shown = b""

    def show(self, text: bytes) -> None:
        """Read until `text` was shown."""
        while text not in self.shown:
            assert select.select([self.keyboard], [], [], WAIT_SECONDS)[0], self.shown
            self.shown += os.read(self.keyboard, 4096)

    def press(self, keys: bytes) -> None:
        os.write(self.keyboard, keys)

    def stops(self, until: Until) -> None:
        """Wait until the program is stopped, as a shell would."""
        until(lambda: os.WIFSTOPPED(os.waitpid(self.process.pid, os.WUNTRACED | os.WNOHANG)[1]))

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(WAIT_SECONDS)
        os.close(self.keyboard)


@pytest.fixture
def screen(environment: dict[str, str]) -> Iterator[Callable[..., Screen]]:
    """Start the command line on a terminal of its own."""
    opened: list[Screen] = []

    def begin(*arguments: str, piped: bool = False) -> Screen:
        opened.append(Screen(environment, *arguments, piped=piped))
        return opened[-1]

    yield begin
    for each in opened:
        each.close()


def test_command_reads_the_terminal(screen: Callable[..., Screen], key: str) -> None:
    seen = screen("run", key, "--", "sh", "-c", "echo ready; read line; echo got $line; exit 6")
    seen.show(b"ready")
    seen.press(b"words\n")
    seen.show(b"got words")
    assert seen.process.wait(WAIT_SECONDS) == 6


def test_command_is_the_foreground_job_from_the_start(screen: Callable[..., Screen], key: str) -> None:
    """Some programs only look whether they are, and then say less."""
    look = "import os, sys; sys.exit(6 if os.tcgetpgrp(0) == os.getpgrp() else 7)"
    assert screen("run", key, "--", sys.executable, "-c", look).process.wait(WAIT_SECONDS) == 6


def test_ctrl_c_reaches_the_command(screen: Callable[..., Screen], key: str, client: Client) -> None:
    """Case 39: 128 + 2 when it dies of it; the lock is released."""
    seen = screen("run", key, "--", "sh", "-c", "echo ready; exec sleep 600")
    seen.show(b"ready")
    seen.press(CTRL_C)
    assert seen.process.wait(WAIT_SECONDS) == 130
    assert not client.locks.get(key).held


def test_no_answer_to_a_question_changes_nothing_and_ends_the_line(
    screen: Callable[..., Screen], key: str, client: Client
) -> None:
    """CLI-11."""
    client.locks.acquire(key, ttl=30)
    terminal = screen("force-release", key)
    terminal.show(b"[y/N]: ")
    terminal.press(CTRL_D)
    terminal.show(b"\r\n")
    assert terminal.process.wait() == 130
    assert client.locks.get(key).held


def test_terminal_is_lent_on_demand_when_stdout_is_a_pipe(screen: Callable[..., Screen], key: str) -> None:
    """`run … -- cmd | less`: the command is stopped for reaching for the terminal, and is lent it then."""
    seen = screen("run", key, "--", "sh", "-c", "echo ready >&2; read line; echo got $line >&2; exit 6", piped=True)
    seen.show(b"ready")
    seen.press(b"words\n")
    seen.show(b"got words")
    assert seen.process.wait(WAIT_SECONDS) == 6


def test_ctrl_z_stops_wrapper_and_command_and_both_go_on(screen: Callable[..., Screen], key: str, until: Until) -> None:
    seen = screen("run", key, "--ttl", "1h", "--", "sh", "-c", "echo ready; read line; echo got $line; exit 6")
    seen.show(b"ready")
    seen.press(CTRL_Z)
    seen.stops(until)
    assert os.tcgetpgrp(seen.keyboard) == seen.process.pid
    seen.process.send_signal(signal.SIGCONT)
    seen.press(b"words\n")
    seen.show(b"got words")
    assert seen.process.wait(WAIT_SECONDS) == 6


def test_command_stopped_past_its_lease_does_not_go_on(
    screen: Callable[..., Screen], key: str, client: Client, until: Until, tmp_path: Path
) -> None:
    """Case 38: nobody renews while the job is stopped; when it goes on and the lease has lapsed, the command ends."""
    seen = screen("run", key, "--ttl", "5s", "--", "sh", "-c", f"echo ready; read line; touch {tmp_path}/went-on")
    seen.show(b"ready")
    seen.press(CTRL_Z)
    seen.stops(until)
    until(lambda: not client.locks.get(key).held)
    seen.press(b"words\n")
    seen.process.send_signal(signal.SIGCONT)
    assert seen.process.wait(WAIT_SECONDS) == 76
    assert not (tmp_path / "went-on").exists()
