"""CLI-26: progress on stderr while a command waits for a lock, and a wait that ends leaves nothing behind."""

import os
import pty
import select
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest

from volcano_locks import Client
from volcano_locks.cli.wait_progress import QueuePosition, WaitStatus
from volcano_locks.errors import RateLimitedError, TransportError, UnavailableError
from volcano_locks.protocol.lock_view import LockView

from .conftest import Start
from .terminal_session import PROGRAM, WAIT_SECONDS

NOW = datetime(2026, 7, 20, 14, tzinfo=UTC)


def view(waiters: int, fencing_token: int = 7, *, held: bool = True, holder: str | None = "host/4121") -> LockView:
    """A lock's state at NOW."""
    expires_at = NOW + timedelta(seconds=12) if held else None
    return LockView("deploy", held, holder, NOW, NOW, expires_at, 30, fencing_token, waiters)


def status_after(*views: LockView) -> WaitStatus:
    found = WaitStatus("deploy")
    for each in views:
        found.update(each)
    return found


def test_text_has_the_holder_the_expiry_and_the_number_ahead() -> None:
    """CLI-26."""
    text = status_after(view(waiters=3)).text(NOW, None)
    assert text == "waiting for deploy: held by host/4121, expires in 12 s, 2 ahead of you"
    assert status_after(view(waiters=1)).text(NOW, None).endswith(", you are next")
    assert "held by another client," in status_after(view(waiters=1, holder=None)).text(NOW, None)


def test_unknown_values_are_omitted() -> None:
    assert status_after().text(NOW, None) == "waiting for deploy"
    assert status_after(view(waiters=0, held=False)).text(NOW, None) == "waiting for deploy"
    assert (
        status_after(view(waiters=0)).text(NOW + timedelta(seconds=13), None) == "waiting for deploy: held by host/4121"
    )


def test_the_summary_does_not_change_with_the_time() -> None:
    known = status_after(view(waiters=3))
    before = known.summary()
    known.update(view(waiters=3))
    assert known.summary() == before
    known.update(view(waiters=2, fencing_token=8))
    assert known.summary() != before


@pytest.mark.parametrize(
    ("polls", "ahead"),
    [
        ([(3, 7)], 2),
        ([(3, 7), (5, 7)], 2),  # two queued later
        ([(3, 7), (2, 7)], 1),  # one of those ahead left the queue
        ([(3, 7), (5, 8)], 1),  # one of those ahead acquired the lock, and three queued later
        ([(3, 7), (0, 7)], 2),  # our own request is not queued at this moment
        ([(1, 7), (1, 8)], 0),
    ],
)
def test_later_waiters_are_not_ahead(polls: list[tuple[int, int]], ahead: int) -> None:
    """CLI-26: the number ahead only falls."""
    position = QueuePosition()
    for waiters, fencing_token in polls:
        position.update(view(waiters, fencing_token))
    assert position.ahead == ahead


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (TransportError("broken"), "no response"),
        (RateLimitedError("spent"), "too many requests"),
        (UnavailableError("stopping"), "unavailable"),
    ],
)
def test_a_failed_poll_is_reported_until_the_next_success(error: TransportError, text: str) -> None:
    known = status_after(view(waiters=1))
    known.poll_failed(error)
    assert text in known.text(NOW, None)
    known.update(view(waiters=1))
    assert text not in known.text(NOW, None)


def test_text_fits_the_terminal() -> None:
    known = WaitStatus("a-long-name-for-a-lock" * 3)
    known.update(view(waiters=3, holder="a-host-with-a-long-name.example.com/4121"))
    text = known.text(NOW, 79)
    assert len(text) == 79
    assert text.endswith(", expires in 12 s, 2 ahead of you")


@pytest.mark.real_time
def test_without_a_terminal_progress_is_one_line_and_quiet_prints_none(
    start: Start, key: str, client: Client, until: Callable[..., None]
) -> None:
    """CLI-26."""
    lease = client.locks.acquire(key, ttl=60)
    verbose = start("run", key, "--wait", "--", "true")
    assert verbose.stderr is not None
    assert verbose.stderr.readline().startswith(f"volcano-locks: waiting for {key}: held by ")
    quiet = start("run", key, "--wait", "-q", "--", "true")
    until(lambda: client.locks.view(key).waiters == 2)
    client.locks.release(key, lease)
    assert verbose.communicate() == ("", "")
    assert quiet.communicate() == ("", "")
    assert (verbose.returncode, quiet.returncode) == (0, 0)


@pytest.mark.real_time
def test_on_a_terminal_the_line_is_cleared_before_the_command_starts(
    key: str, client: Client, environment: dict[str, str], until: Callable[..., None]
) -> None:
    """CLI-26: progress is not mixed with the command's output."""
    lease = client.locks.acquire(key, ttl=60)
    our_end, process_end = pty.openpty()
    process = subprocess.Popen(
        [*PROGRAM, "run", key, "--wait", "--", "echo", "mine"],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=process_end,
        stderr=process_end,
        start_new_session=True,
    )
    os.close(process_end)
    try:
        shown = read_from(our_end, lambda text: "you are next" in text)
        client.locks.release(key, lease)
        shown += read_from(our_end, lambda text: "mine" in text)
        assert process.wait(WAIT_SECONDS) == 0
    finally:
        process.kill()
        process.wait()
        os.close(our_end)
    *_, erased, mine = shown.replace("\r\n", "").split("\r")
    assert erased.strip() == ""
    assert mine == "mine"


def read_from(terminal: int, enough: Callable[[str], bool]) -> str:
    """What a process writes to its terminal, until `enough`."""
    text, end = "", time.monotonic() + WAIT_SECONDS
    while not enough(text) and time.monotonic() < end:
        if select.select([terminal], [], [], 0.1)[0]:
            with suppress(OSError):
                text += os.read(terminal, 65_536).decode()
    assert enough(text), text
    return text


@pytest.mark.real_time
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_removes_the_waiter(
    start: Start, key: str, client: Client, until: Callable[..., None], number: signal.Signals
) -> None:
    """CLI-26: at once, without a message, and nothing stays held."""
    lease = client.locks.acquire(key, ttl=60)
    process = start("run", key, "--wait", "-q", "--", "echo", "mine")
    until(lambda: client.locks.view(key).waiters == 1)
    process.send_signal(number)
    assert process.communicate() == ("", "")
    assert process.returncode == 128 + number
    assert client.locks.view(key).waiters == 0
    client.locks.release(key, lease)
    assert not client.locks.get(key).held


@pytest.mark.real_time
def test_acquire_waits_and_ctrl_c_removes_its_waiter(
    start: Start, key: str, client: Client, until: Callable[..., None]
) -> None:
    """CLI-10, CLI-4."""
    lease = client.locks.acquire(key, ttl=60)
    waiting = start("acquire", key, "-q", "-w", "10m")
    until(lambda: client.locks.view(key).waiters == 1)
    leaving = start("acquire", key, "-q", "--wait")
    until(lambda: client.locks.view(key).waiters == 2)
    leaving.send_signal(signal.SIGINT)
    out, err = leaving.communicate()
    assert (out, err.strip()) == ("", "")
    assert leaving.returncode == 130
    client.locks.release(key, lease)
    out, err = waiting.communicate()
    assert (waiting.returncode, err) == (0, "")
    assert '"fencing_token"' in out


@pytest.mark.parametrize(
    "choices", [("-n", "-w", "5"), ("-n", "--wait"), ("-w", "5", "--wait"), ("-w", "5", "--wait", "-n")]
)
def test_wait_options_exclude_each_other(start: Start, choices: tuple[str, ...]) -> None:
    """CLI-5, CLI-10."""
    for arguments in (("run", "k", *choices, "--", "true"), ("acquire", "k", *choices)):
        process = start(*arguments)
        _, err = process.communicate()
        assert process.returncode == 64
        assert "use only one of -n, -w and --wait" in err


@pytest.mark.parametrize("given", [("--wait", "30s"), ("--wait=30s",)])
def test_wait_with_a_duration_suggests_w(start: Start, given: tuple[str, ...]) -> None:
    """CLI-5: `--wait` has no limit."""
    for arguments in (("run", *given, "k", "--", "true"), ("run", "k", *given, "--", "true"), ("acquire", *given, "k")):
        process = start(*arguments)
        _, err = process.communicate()
        assert process.returncode == 64
        assert "for a limit use -w 30s" in err
