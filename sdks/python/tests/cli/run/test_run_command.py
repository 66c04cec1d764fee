"""CLI-5, CLI-6, CLI-8: the command runs under the lock, gets the lease, and its exit code is kept."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from volcano_locks import Client
from volcano_locks.config import default_holder
from volcano_locks_server.testing import RunningServer

from ..conftest import Start
from ..terminal_session import PROGRAM

SHOW = "import json, os; print(json.dumps(dict(os.environ)))"


def test_command_gets_the_lease_and_no_secret(start: Start, key: str, environment: dict[str, str]) -> None:
    """CLI-6."""
    out, _ = start("run", key, "--", sys.executable, "-c", SHOW, env=environment | {"MINE": "a=b\nc"}).communicate()
    variables = json.loads(out)
    assert variables["VOLCANO_LOCK_KEY"] == key
    assert int(variables["VOLCANO_LOCK_FENCING_TOKEN"]) > 0
    assert variables["VOLCANO_LOCK_EXPIRES_AT"].endswith("Z")
    assert variables["MINE"] == "a=b\nc"
    assert "VOLCANO_SERVICE_KEY" not in variables
    assert "VOLCANO_LOCKS_ADMIN_TOKEN" not in variables


def test_lock_is_held_while_it_runs_and_free_after(
    start: Start, key: str, client: Client, tmp_path: Path, until: Callable[..., None]
) -> None:
    """CLI-5, CLI-8."""
    process = start("run", key, "--", "sh", "-c", f"touch {tmp_path}/up; read line; echo got $line")
    until((tmp_path / "up").exists)
    assert client.locks.get(key).held
    out, err = process.communicate("a line\n")
    assert (out, err, process.returncode) == ("got a line\n", "", 0)
    assert not client.locks.get(key).held


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 7", 7), ("exit 75", 75), ("exit 255", 255), ("kill -KILL $$", 137)]
)
def test_exit_code_is_the_commands_own(start: Start, key: str, script: str, code: int) -> None:
    """CLI-8, case 39."""
    process = start("run", key, "--", "sh", "-c", script)
    process.communicate()
    assert process.returncode == code


def test_held_lock_is_75_and_nothing_is_run(start: Start, key: str, client: Client, tmp_path: Path) -> None:
    """CLI-5: case 39, case 18."""
    lease = client.locks.acquire(key, ttl=30)
    process = start("run", key, "--", "touch", str(tmp_path / "ran"))
    _, err = process.communicate()
    assert process.returncode == 75
    assert f"until {lease.expires_at:%Y-%m-%dT%H:%M:%SZ} unless renewed; nothing was run" in err
    assert f"{key} is held by {default_holder()} " in err
    assert "-w DURATION waits for the lock" in err
    assert not (tmp_path / "ran").exists()
    quiet = start("run", key, "-q", "-n", "-E", "0", "--", "touch", str(tmp_path / "ran"))
    assert quiet.communicate() == ("", "")
    assert quiet.returncode == 0
    assert not (tmp_path / "ran").exists()


def test_waiting_gets_the_lock_when_it_is_released(start: Start, key: str, client: Client) -> None:
    """CLI-5: `-w`."""
    lease = client.locks.acquire(key, ttl=60)
    process = start("run", key, "-w", "60", "--", "echo", "mine")
    assert process.poll() is None
    client.locks.release(key, lease)
    assert process.communicate()[0] == "mine\n"
    assert process.returncode == 0


def test_waiting_that_ends_without_the_lock_is_75(start: Start, key: str, client: Client) -> None:
    client.locks.acquire(key, ttl=60)
    process = start("run", key, "-w", "1", "--", "echo", "mine")
    out, err = process.communicate()
    assert (process.returncode, out) == (75, "")
    assert "waits for the lock" not in err


def test_signal_while_waiting_ends_it_and_runs_nothing(start: Start, key: str, client: Client) -> None:
    """A signal before the lock is held ends `run` with 128 + n."""
    client.locks.acquire(key, ttl=60)
    process = start("run", key, "-w", "60", "--", "echo", "mine")
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while not children.read_text():  # the watchdog: from here on `run` handles signals
        os.sched_yield()
    process.send_signal(signal.SIGTERM)
    assert process.communicate()[0] == ""
    assert process.returncode in (128 + signal.SIGTERM, -signal.SIGTERM)


@pytest.mark.parametrize(("mode", "code"), [(None, 127), (0o644, 126), ("folder", 126)])
def test_unrunnable_program_is_found_before_the_acquire(
    start: Start, client: Client, tmp_path: Path, mode: object, code: int
) -> None:
    """CLI-4."""
    program = tmp_path / "program"
    if isinstance(mode, int):
        program.touch(mode)
    elif mode == "folder":
        program.mkdir()
    key = f"cannot-be-run-{mode}"
    client.locks.acquire(key, ttl=30)
    process = start("run", key, "--", str(program))
    _, err = process.communicate()
    assert process.returncode == code
    assert str(program) in err


def test_failing_exec_releases_the_lock(start: Start, key: str, client: Client, tmp_path: Path) -> None:
    """CLI-8: a missing interpreter is detected only by the exec."""
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    process = start("run", key, "--", str(script))
    _, err = process.communicate()
    assert process.returncode == 127
    assert "No such file or directory" in err
    assert not client.locks.get(key).held


@pytest.mark.parametrize(
    "arguments",
    [("k",), ("k", "--"), ("k", "true"), ("--", "true"), ("k", "-n", "-w", "5", "--", "true"), ("a b", "--", "true")],
)
def test_usage_errors_are_64(start: Start, arguments: tuple[str, ...]) -> None:
    """CLI-4."""
    process = start("run", *arguments)
    out, err = process.communicate()
    assert (process.returncode, out) == (64, "")
    assert err


@pytest.mark.parametrize("arguments", [("k", "true"), ("k", "ls", "-l")])
def test_a_command_without_dashes_is_refused_with_advice(start: Start, arguments: tuple[str, ...]) -> None:
    process = start("run", *arguments)
    _, err = process.communicate()
    assert process.returncode == 64
    assert "put `--` between the lock's key and the command" in err


def test_server_that_cannot_be_reached_is_69(start: Start, environment: dict[str, str]) -> None:
    """CLI-4: the message has the address and what to do."""
    process = start("run", "k", "--", "true", env=environment | {"VOLCANO_API_URL": "http://127.0.0.1:9"})
    _, err = process.communicate()
    assert process.returncode == 69
    assert "cannot connect to http://127.0.0.1:9: Connection refused\n" in err
    assert "volcano-locks dev" in err


@pytest.mark.parametrize("secret", ["", "sk-" + "A" * 43, "ak-anonymous"])
def test_credentials_are_77(start: Start, environment: dict[str, str], secret: str) -> None:
    """CLI-4, CLI-2: the message names the variable and not its value."""
    process = start("run", "k", "--", "true", env=environment | {"VOLCANO_SERVICE_KEY": secret})
    _, err = process.communicate()
    assert process.returncode == 77
    assert "VOLCANO_SERVICE_KEY" in err
    assert not secret or secret not in err


def test_service_key_can_come_from_a_file(
    start: Start, key: str, environment: dict[str, str], server: RunningServer, tmp_path: Path
) -> None:
    """CLI-2."""
    (tmp_path / "key").write_text(server.service_key + "\n")
    del environment["VOLCANO_SERVICE_KEY"]
    process = start("run", key, "--service-key-file", str(tmp_path / "key"), "--", "echo", "ran", env=environment)
    assert process.communicate()[0] == "ran\n"
    missing = start("run", key, "--service-key-file", str(tmp_path / "none"), "--", "true", env=environment)
    missing.communicate()
    assert missing.returncode == 77


def test_ignored_signals_stay_ignored_and_others_do_not(key: str, environment: dict[str, str]) -> None:
    """CLI-7: `nohup volcano-locks run …` works. SIGPIPE, which Python ignores, is reset for the command."""
    nohup = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh", *PROGRAM]
    found = subprocess.run(
        [*nohup, "run", key, "--", "grep", "SigIgn", "/proc/self/status"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    ignored = int(found.stdout.split()[1], 16)
    assert ignored & 1 << (signal.SIGHUP - 1)
    for number in (signal.SIGPIPE, signal.SIGTERM, signal.SIGINT, signal.SIGTTOU):
        assert not ignored & 1 << (number - 1)
