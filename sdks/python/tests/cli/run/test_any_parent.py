"""`run` under any parent: blocked signals, closed and full streams, and the deaths of `run` and its watchdog.

These tests are about processes and the kernel, so they run in real time; each waits for an event, not for a duration.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from volcano_locks import Client
from volcano_locks.cli.run.watchdog import DEADLINE_SLACK_SECONDS, KILL_AFTER_SECONDS, PROCESS_NAME

from ..conftest import Start
from ..terminal_session import PROGRAM, WAIT_SECONDS, Until

pytestmark = pytest.mark.real_time

PidIn = Callable[[Path], int]
Running = Callable[[int], bool]


class StubbornCommand:
    """A command that ignores every signal that can be ignored, and notes when it last ran."""

    def __init__(self, folder: Path, pid_in: PidIn, running: Running, until: Until) -> None:
        self._pid, self._last = folder / "pid", folder / "last"
        self._pid_in, self._running, self._until = pid_in, running, until
        note = f"date +%s.%N > {folder}/now; mv {folder}/now {self._last}"
        ignored = "trap '' TERM INT HUP QUIT USR1 USR2"
        self.command = ("sh", "-c", f"{ignored}; echo $$ > {self._pid}; while :; do {note}; sleep 0.05; done")

    def wait_started(self) -> int:
        """Its process id."""
        self.process_id = self._pid_in(self._pid)
        self._pid.unlink()
        return self.process_id

    @property
    def running(self) -> bool:
        return self._running(self.process_id)

    @property
    def last_ran(self) -> float:
        return float(self._last.read_text())

    def wait_ended(self) -> None:
        self._until(lambda: not self.running)


@pytest.fixture
def stubborn(tmp_path: Path, pid_in: PidIn, running: Running, until: Until) -> StubbornCommand:
    return StubbornCommand(tmp_path, pid_in, running, until)


def parent_of(process_id: int) -> int:
    stat = Path(f"/proc/{process_id}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])


def is_gone(process_id: int) -> bool:
    """Whether a process does not exist, or is a zombie, which has no arguments."""
    try:
        return not Path(f"/proc/{process_id}/cmdline").read_bytes()
    except OSError:
        return True


def under_parent(environment: Mapping[str, str], prepare: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command line, exec'd by a parent that has run `prepare`."""
    code = f"import os, signal, sys; {prepare}; os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    command = [sys.executable, "-c", code, *PROGRAM[1:], *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=WAIT_SECONDS)


def in_shell(environment: Mapping[str, str], script: str) -> subprocess.CompletedProcess[str]:
    """A shell script in which `locks` is the command line."""
    locks = f"locks() {{ {sys.executable} -c 'from volcano_locks.cli import main; main()' \"$@\"; }}\n"
    return subprocess.run(
        ["bash", "-c", locks + script],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_SECONDS,
    )


# --- signals -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("blocked", ["SIGCHLD", "SIGTERM", "SIGINT", "SIGUSR1", "SIGCHLD, signal.SIGTERM"])
def test_blocked_signals_do_not_stop_run(environment: dict[str, str], key: str, client: Client, blocked: str) -> None:
    """CLI-7, case 52: it ends with its command and releases the lock."""
    prepare = f"signal.pthread_sigmask(signal.SIG_BLOCK, [signal.{blocked}])"
    ended = under_parent(environment, prepare, "run", key, "--", "sh", "-c", "exit 7")
    assert (ended.returncode, ended.stderr) == (7, "")
    assert not client.locks.get(key).held


def test_an_ignored_sigchld_does_not_stop_run(environment: dict[str, str], key: str) -> None:
    """CLI-7, case 52: the kernel would reap the command, and its exit code would be lost."""
    prepare = "signal.signal(signal.SIGCHLD, signal.SIG_IGN)"
    assert under_parent(environment, prepare, "run", key, "--", "sh", "-c", "exit 7").returncode == 7


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_that_was_blocked_is_passed_on(
    environment: dict[str, str], key: str, tmp_path: Path, pid_in: PidIn, sent: signal.Signals
) -> None:
    """CLI-7, case 52."""
    masked = "import os, signal, sys; signal.pthread_sigmask({}); os.execvp(sys.argv[1], sys.argv[1:])"
    all_blocked = masked.format("signal.SIG_BLOCK, range(1, 32)")
    inner = (sys.executable, "-c", masked.format("signal.SIG_SETMASK, []"))
    script = f"trap 'exit 9' TERM USR1; echo $$ > {tmp_path}/pid; while :; do sleep 0.02; done"
    run = (*PROGRAM, "run", key, "--", *inner, "sh", "-c", script)
    command = [sys.executable, "-c", all_blocked, *run]
    with subprocess.Popen(command, env=environment) as process:
        pid_in(tmp_path / "pid")
        process.send_signal(sent)
        assert process.wait(WAIT_SECONDS) == 9


def test_the_command_gets_the_mask_that_run_was_given(environment: dict[str, str], key: str) -> None:
    """CLI-7: and an ignored SIGCHLD."""
    prepare = (
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD, signal.SIGUSR2]); "
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)"
    )
    ended = under_parent(environment, prepare, "run", key, "--", "grep", "-E", "SigBlk|SigIgn", "/proc/self/status")
    blocked, ignored = (int(line.split()[1], 16) for line in ended.stdout.splitlines())
    child, usr2 = 1 << (signal.SIGCHLD - 1), 1 << (signal.SIGUSR2 - 1)
    assert blocked == child | usr2
    assert ignored & child


# --- streams -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "streams",
    [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-", ">/dev/full", "2>/dev/full"],
    ids=["no-stdout", "no-stderr", "no-output", "no-streams", "full-stdout", "full-stderr"],  # a key is made of the id
)
def test_the_commands_code_stays(environment: dict[str, str], key: str, client: Client, streams: str) -> None:
    """CLI-34, case 53: also if `run` has something to report, such as processes that the command left behind."""
    assert in_shell(environment, f"locks run {key} -- sh -c 'exit 7' {streams}").returncode == 7
    assert in_shell(environment, f"locks run {key} -- sh -c 'sleep 60 & exit 8' {streams}").returncode == 8
    client.locks.acquire(key, ttl=30)
    held = in_shell(environment, f"locks run {key} -- true {streams}")
    assert held.returncode == 75
    assert "Traceback" not in held.stdout + held.stderr


def test_a_closed_descriptor_is_closed_for_the_command(environment: dict[str, str], key: str, tmp_path: Path) -> None:
    """CLI-7, CLI-34: no file of `run` takes its number."""
    look = f"import os; print(sorted(os.listdir('/proc/self/fd')), file=open('{tmp_path}/fds', 'w'))"
    ended = in_shell(environment, f'locks run {key} -- {sys.executable} -c "{look}" <&- >&- 2>&-')
    assert ended.returncode == 0
    alone = in_shell(environment, f'{sys.executable} -c "{look.replace("fds", "alone")}" <&- >&- 2>&-')
    assert alone.returncode == 0
    assert (tmp_path / "fds").read_text() == (tmp_path / "alone").read_text()


@pytest.mark.parametrize(
    "command", ["get {0}", "get {0} --json", "ls {0}", "ls --json", "history {0}", "history {0} --json", "audit",
                "audit --admin --json", "project list", "--help", "run --help",
                "fencing sql --dialect sqlite --table t --id id"]
)  # fmt: skip
@pytest.mark.parametrize("stream", [">/dev/full", ">&-", "| true"])
def test_output_that_cannot_be_written_is_74(
    environment: dict[str, str], key: str, client: Client, command: str, stream: str
) -> None:
    """CLI-34, case 53: where output is the purpose; without a traceback."""
    if stream == ">&-" and "--help" in command:
        return  # click prints no help then, which is no failure
    client.locks.acquire(key, ttl=30)
    ended = in_shell(environment, f"locks {command.format(key)} {stream}; exit ${{PIPESTATUS[0]}}")
    assert ended.returncode == 74
    assert "Traceback" not in ended.stderr
    assert ("cannot write to stdout" in ended.stderr) is (stream != "| true")


@pytest.mark.parametrize("stream", [">/dev/full", ">&-", "2>&-", "2>/dev/full", ">&- 2>&- <&-"])
def test_where_output_is_not_the_purpose_it_changes_nothing(
    environment: dict[str, str], key: str, tmp_path: Path, stream: str
) -> None:
    """CLI-34, case 53: the lease was acquired, renewed, released."""
    lease = f"--lease-file {tmp_path}/lease"
    for command in (f"acquire {key} {lease}", f"renew {lease}", f"release {lease}", f"force-release {key} --yes"):
        assert in_shell(environment, f"locks {command} {stream}").returncode == 0, command


def test_a_lease_that_cannot_be_printed_is_released(environment: dict[str, str], key: str, client: Client) -> None:
    """CLI-10, CLI-34."""
    for stream in (">/dev/full", ">&-"):
        assert in_shell(environment, f"locks acquire {key} {stream}").returncode == 74
        assert not client.locks.get(key).held


def test_a_full_stderr_does_not_delay_the_end_of_a_lost_command(
    environment: dict[str, str], key: str, client: Client, stubborn: StubbornCommand
) -> None:
    """CLI-34, case 53: the pipe is full and never read, and `run` reports the loss there."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writing, b"x" * 4096)
    os.set_blocking(writing, True)
    command = [*PROGRAM, "run", key, "--ttl", "15s", "--", *stubborn.command]
    with subprocess.Popen(command, env=environment, stderr=writing, stdout=subprocess.DEVNULL) as process:
        stubborn.wait_started()
        client.locks.force_release(key)
        assert process.wait(WAIT_SECONDS) == 76
        assert not stubborn.running
    os.close(reading)
    os.close(writing)


# --- the deaths of run and its watchdog ------------------------------------------------------------------------


@pytest.mark.parametrize("run_first", [True, False])
def test_the_kernel_ends_the_command_if_run_and_its_watchdog_die(
    start: Start, key: str, stubborn: StubbornCommand, run_first: bool
) -> None:
    """CLI-7, case 74: although it ignores every signal that can be ignored."""
    process = start("run", key, "--", *stubborn.command)
    watchdog_id = parent_of(stubborn.wait_started())
    for victim in (process.pid, watchdog_id) if run_first else (watchdog_id, process.pid):
        os.kill(victim, signal.SIGKILL)
    stubborn.wait_ended()


def test_the_watchdog_has_another_name(start: Start, key: str, stubborn: StubbornCommand) -> None:
    """CLI-7, case 74: what kills `run` by its name does not find the watchdog."""
    start("run", key, "--", *stubborn.command)
    name = Path(f"/proc/{parent_of(stubborn.wait_started())}/comm").read_text().strip()
    assert name == PROCESS_NAME
    assert "volcano" not in name


def test_if_only_run_dies_the_group_gets_sigterm_and_then_sigkill(
    start: Start, key: str, tmp_path: Path, pid_in: PidIn, until: Until
) -> None:
    """CLI-7, case 38, case 74."""
    script = f"trap 'touch {tmp_path}/term' TERM; echo $$ > {tmp_path}/pid; while :; do sleep 0.02; done"
    process = start("run", key, "--", "sh", "-c", script)
    command_id = pid_in(tmp_path / "pid")
    process.kill()
    until((tmp_path / "term").exists)
    until(lambda: is_gone(command_id))


def test_if_only_the_watchdog_dies_the_command_ends_with_it(
    start: Start, key: str, client: Client, stubborn: StubbornCommand
) -> None:
    """CLI-7: `run` reports it and releases the lock."""
    process = start("run", key, "--", *stubborn.command)
    os.kill(parent_of(stubborn.wait_started()), signal.SIGKILL)
    _, err = process.communicate()
    assert process.returncode == 128 + signal.SIGKILL
    assert "the watchdog was killed" in err
    assert not client.locks.get(key).held


def test_a_watchdog_that_is_stopped_is_continued(start: Start, key: str, tmp_path: Path, pid_in: PidIn) -> None:
    """CLI-7: otherwise the end of the command would not be noticed, and the lock would stay held."""
    script = f"echo $$ > {tmp_path}/pid; while [ ! -e {tmp_path}/go ]; do sleep 0.02; done; exit 5"
    process = start("run", key, "--", "sh", "-c", script)
    os.kill(parent_of(pid_in(tmp_path / "pid")), signal.SIGSTOP)
    (tmp_path / "go").touch()
    process.communicate()
    assert process.returncode == 5


def test_a_stopped_run_does_not_outlive_its_lease(
    start: Start, key: str, client: Client, stubborn: StubbornCommand
) -> None:
    """CLI-7: the watchdog ends the command before another client can acquire the lock."""
    process = start("run", key, "--ttl", "5s", "--", *stubborn.command)
    stubborn.wait_started()
    process.send_signal(signal.SIGSTOP)
    client.locks.acquire(key, ttl=30, wait=WAIT_SECONDS)
    assert not stubborn.running
    process.send_signal(signal.SIGCONT)
    _, err = process.communicate()
    assert process.returncode == 76
    assert "was lost" in err
    assert DEADLINE_SLACK_SECONDS + KILL_AFTER_SECONDS < 1.0


def test_a_renewed_lease_is_not_ended(start: Start, key: str) -> None:
    """CLI-7: the watchdog knows each new deadline."""
    process = start("run", key, "--ttl", "5s", "--", "sh", "-c", "sleep 7; exit 3")
    process.communicate()
    assert process.returncode == 3


# --- the service key ------------------------------------------------------------------------------------------


def test_the_service_key_is_passed_on_if_the_user_wants_that(
    start: Start, environment: dict[str, str], key: str, tmp_path: Path
) -> None:
    """CLI-6, case 64: it comes from the variable or from the file; a client in the command works, or says why not."""
    inner = (*PROGRAM, "get", f"{key}-inner")
    free = f"{key}-inner is free; it was never held, or not in the last 24 hours\n"
    assert start("run", key, "--pass-service-key", "--", *inner).communicate()[0] == free
    file = tmp_path / "worker.key"
    file.write_text(environment["VOLCANO_SERVICE_KEY"])
    without = {name: value for name, value in environment.items() if name != "VOLCANO_SERVICE_KEY"}
    from_file = start("run", key, "--service-key-file", str(file), "--pass-service-key", "--", *inner, env=without)
    assert from_file.communicate()[0] == free
    missing = start("run", key, "--", *inner)
    _, err = missing.communicate()
    assert missing.returncode == 77
    assert "--pass-service-key" in err
    client = start("run", key, "--", sys.executable, "-c", "import volcano_locks; volcano_locks.Client()")
    _, err = client.communicate()
    assert client.returncode == 1
    assert "service_key is missing" in err
    assert "--pass-service-key" in err


def test_the_admin_token_is_never_passed_on(start: Start, key: str) -> None:
    """CLI-6."""
    out, _ = start("run", key, "--pass-service-key", "--", "env").communicate()
    assert "VOLCANO_LOCKS_ADMIN_TOKEN" not in out
