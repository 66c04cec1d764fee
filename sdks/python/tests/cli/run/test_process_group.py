"""Case 38: signals, a loss, and the death of `run` itself reach the command's whole process group.

These tests are about processes and the kernel, so they run in real time; each waits for an event, not for a duration.
"""

import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from volcano_locks import Client
from volcano_locks.cli.run.watchdog import KILL_AFTER_SECONDS
from volcano_locks_server.testing import running_server

from ..conftest import Start

pytestmark = pytest.mark.real_time

# A command with a grandchild. Both ignore SIGTERM and write their process ids to files.
IGNORES_SIGTERM = """
trap '' TERM
sh -c 'trap "" TERM; echo $$ > {0}/grandchild; while :; do sleep 0.1; done' &
echo $$ > {0}/child
while :; do date +%s.%N > {0}/now; mv {0}/now {0}/last; sleep 0.05; done
"""

Until = Callable[[Callable[[], object]], None]
PidIn = Callable[[Path], int]
Running = Callable[[int], bool]


class CommandAndGrandchild:
    """A command and its grandchild that both ignore SIGTERM."""

    def __init__(self, folder: Path, pid_in: PidIn, running: Running) -> None:
        self.script = IGNORES_SIGTERM.format(folder)
        self._files = (folder / "child", folder / "grandchild")
        self._pid_in = pid_in
        self._running = running
        self._ids: list[int] = []

    def wait_started(self) -> None:
        self._ids = [self._pid_in(file) for file in self._files]
        assert self.running_count() == 2

    def running_count(self) -> int:
        return sum(self._running(process_id) for process_id in self._ids)


@pytest.fixture
def pair(tmp_path: Path, pid_in: PidIn, running: Running) -> CommandAndGrandchild:
    """A command and its grandchild that both ignore SIGTERM."""
    return CommandAndGrandchild(tmp_path, pid_in, running)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGQUIT])
def test_signals_are_passed_on_to_the_group(
    start: Start, key: str, tmp_path: Path, until: Until, number: signal.Signals
) -> None:
    """CLI-7: the command decides what a signal means; its grandchild gets it too."""
    name = number.name.removeprefix("SIG")
    inner = f'trap "echo grandchild; exit 0" {name}; touch {tmp_path}/up; while :; do sleep 0.02; done'
    # A shell ignores INT and QUIT for what it starts in the background, so the grandchild is in the foreground.
    script = f"trap 'echo child; exit 9' {name}; sh -c '{inner}'; exit 1"
    process = start("run", key, "--", "sh", "-c", script)
    until((tmp_path / "up").exists)
    process.send_signal(number)
    out, _ = process.communicate()
    assert process.returncode == 9
    assert sorted(out.split()) == ["child", "grandchild"]


def test_leftover_processes_are_stopped_before_the_release(
    start: Start, client: Client, tmp_path: Path, pid_in: PidIn, running: Running
) -> None:
    """Case 38: a running grandchild still works under the lock."""
    script = (
        f"sh -c 'echo $$ > {tmp_path}/pid; exec sleep 600' & while [ ! -s {tmp_path}/pid ]; do sleep 0.01; done; exit 3"
    )
    process = start("run", "left-behind", "--", "sh", "-c", script)
    _, err = process.communicate()
    assert process.returncode == 3
    assert "left processes running" in err
    assert not running(pid_in(tmp_path / "pid"))
    assert not client.locks.get("left-behind").held


def test_sigkill_of_run_stops_the_whole_group(start: Start, key: str, pair: CommandAndGrandchild, until: Until) -> None:
    """Case 38: the command and its grandchild ignore SIGTERM."""
    process = start("run", key, "--", "sh", "-c", pair.script)
    pair.wait_started()
    process.kill()
    until(lambda: pair.running_count() == 0)
    assert process.wait() == -signal.SIGKILL


def test_a_force_release_ends_the_group_with_76(
    start: Start, key: str, client: Client, pair: CommandAndGrandchild
) -> None:
    """CLI-9, case 38: the command ignores SIGTERM and is killed."""
    process = start("run", key, "--ttl", "5s", "--", "sh", "-c", pair.script)
    pair.wait_started()
    client.locks.force_release(key)
    _, err = process.communicate()
    assert process.returncode == 76
    assert err == f"volcano-locks: the lock {key} was lost; stopping the command\n"
    assert pair.running_count() == 0


def test_command_that_exits_0_after_a_loss_is_76(
    start: Start, key: str, client: Client, tmp_path: Path, pid_in: PidIn
) -> None:
    """CLI-9, case 39: a loss is never exit code 0."""
    script = f"trap 'exit 0' TERM; echo $$ > {tmp_path}/pid; while :; do sleep 0.02; done"
    process = start("run", key, "--ttl", "5s", "--", "sh", "-c", script)
    pid_in(tmp_path / "pid")
    client.locks.force_release(key)
    process.communicate()
    assert process.returncode == 76


def test_loss_found_only_at_the_release_is_76(
    start: Start, key: str, client: Client, tmp_path: Path, until: Until
) -> None:
    """Case 39: another client took the lock while the command ran, between two renewals."""
    process = start("run", key, "--ttl", "90d", "--", "sh", "-c", f"touch {tmp_path}/up; read line")
    until((tmp_path / "up").exists)
    client.locks.force_release(key)
    client.locks.acquire(key, ttl=30)
    _, err = process.communicate("\n")
    assert process.returncode == 76
    assert err


def test_vanished_server_ends_the_group_before_the_grace_ends(
    start: Start, key: str, environment: dict[str, str], tmp_path: Path, pair: CommandAndGrandchild
) -> None:
    """CLI-9: the lease expires, and the last work is earlier than expiry + 1 s."""
    store = tmp_path / "locks.db"
    with running_server(store_url=f"sqlite:///{store}") as server:
        env = environment | {"VOLCANO_API_URL": server.url, "VOLCANO_SERVICE_KEY": server.service_key}
        process = start("run", key, "--ttl", "5s", "--", "sh", "-c", pair.script, env=env)
        pair.wait_started()
    process.communicate()
    assert process.returncode == 76
    assert pair.running_count() == 0
    with closing(sqlite3.connect(store)) as database:  # the lease may have been renewed before the server vanished
        ((expires_at_ms,),) = database.execute("SELECT expires_at_ms FROM lock").fetchall()
    last = float((tmp_path / "last").read_text())
    assert last < expires_at_ms / 1_000 + 1.0
    assert KILL_AFTER_SECONDS < 1.0


def test_release_that_fails_keeps_the_commands_code(
    start: Start, key: str, environment: dict[str, str], tmp_path: Path, until: Until
) -> None:
    """CLI-8, case 39: the failure is reported on stderr; the work was done under the lock."""
    with running_server() as server:
        env = environment | {"VOLCANO_API_URL": server.url, "VOLCANO_SERVICE_KEY": server.service_key}
        process = start("run", key, "--", "sh", "-c", f"touch {tmp_path}/up; read line; exit 4", env=env)
        until((tmp_path / "up").exists)
    _, err = process.communicate("\n")
    assert process.returncode == 4
    assert "was not released" in err
    assert "is free 1 s later" in err
