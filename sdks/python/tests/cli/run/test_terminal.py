"""CLI-7 on a terminal: the command reads it and gets Ctrl-C and Ctrl-Z; stopped past its lease, it never
continues (case 38).
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from volcano_locks import Client

from ..terminal_session import WAIT_SECONDS, Session, Until

pytestmark = pytest.mark.real_time

CTRL_C, CTRL_D, CTRL_Z = b"\x03", b"\x04", b"\x1a"


def test_command_reads_the_terminal(open_terminal: Callable[..., Session], key: str) -> None:
    terminal = open_terminal("run", key, "--", "sh", "-c", "echo ready; read line; echo got $line; exit 6")
    terminal.read_until(b"ready")
    terminal.press(b"words\n")
    terminal.read_until(b"got words")
    assert terminal.process.wait(WAIT_SECONDS) == 6


def test_command_is_the_foreground_job_from_the_start(open_terminal: Callable[..., Session], key: str) -> None:
    """Some programs check this at their start and print less otherwise."""
    look = "import os, sys; sys.exit(6 if os.tcgetpgrp(0) == os.getpgrp() else 7)"
    assert open_terminal("run", key, "--", sys.executable, "-c", look).process.wait(WAIT_SECONDS) == 6


def test_ctrl_c_reaches_the_command(open_terminal: Callable[..., Session], key: str, client: Client) -> None:
    """Case 39: 128 + 2 if the command dies of it; the lock is released."""
    terminal = open_terminal("run", key, "--", "sh", "-c", "echo ready; exec sleep 600")
    terminal.read_until(b"ready")
    terminal.press(CTRL_C)
    assert terminal.process.wait(WAIT_SECONDS) == 130
    assert not client.locks.get(key).held


def test_ctrl_d_at_a_confirmation_changes_nothing(
    open_terminal: Callable[..., Session], key: str, client: Client
) -> None:
    """CLI-11."""
    client.locks.acquire(key, ttl=30)
    terminal = open_terminal("force-release", key)
    terminal.read_until(b"[y/N]: ")
    terminal.press(CTRL_D)
    terminal.read_until(b"\r\n")
    assert terminal.process.wait() == 130
    assert client.locks.get(key).held


def test_command_gets_the_terminal_on_demand_with_piped_stdout(open_terminal: Callable[..., Session], key: str) -> None:
    """`run … -- cmd | less`: the command is stopped when it reads the terminal, then becomes the foreground job."""
    terminal = open_terminal(
        "run", key, "--", "sh", "-c", "echo ready >&2; read line; echo got $line >&2; exit 6", piped=True
    )
    terminal.read_until(b"ready")
    terminal.press(b"words\n")
    terminal.read_until(b"got words")
    assert terminal.process.wait(WAIT_SECONDS) == 6


def test_ctrl_z_stops_run_and_command_and_both_continue(
    open_terminal: Callable[..., Session], key: str, until: Until
) -> None:
    terminal = open_terminal(
        "run", key, "--ttl", "1h", "--", "sh", "-c", "echo ready; read line; echo got $line; exit 6"
    )
    terminal.read_until(b"ready")
    terminal.press(CTRL_Z)
    terminal.wait_stopped(until)
    assert os.tcgetpgrp(terminal.keyboard) == terminal.process.pid
    terminal.process.send_signal(signal.SIGCONT)
    terminal.press(b"words\n")
    terminal.read_until(b"got words")
    assert terminal.process.wait(WAIT_SECONDS) == 6


def test_command_stopped_past_its_lease_does_not_continue(
    open_terminal: Callable[..., Session], key: str, client: Client, until: Until, tmp_path: Path
) -> None:
    """Case 38: a stopped job renews nothing. If its lease has expired when it continues, the command is ended."""
    terminal = open_terminal(
        "run", key, "--ttl", "5s", "--", "sh", "-c", f"echo ready; read line; touch {tmp_path}/went-on"
    )
    terminal.read_until(b"ready")
    terminal.press(CTRL_Z)
    terminal.wait_stopped(until)
    until(lambda: not client.locks.get(key).held)
    terminal.press(b"words\n")
    terminal.process.send_signal(signal.SIGCONT)
    assert terminal.process.wait(WAIT_SECONDS) == 76
    assert not (tmp_path / "went-on").exists()
