"""CLI-26: what is told on stderr while a command waits, and that nothing is left behind by a wait that ends."""

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
from volcano_locks.cli.wait_progress import Place, Standing
from volcano_locks.errors import RateLimitedError, TransportError, UnavailableError
from volcano_locks.protocol.lock_view import LockView

from .conftest import PROGRAM, WAIT_SECONDS, Start

NOW = datetime(2026, 7, 20, 14, tzinfo=UTC)


def view(waiters: int, fencing_token: int = 7, *, held: bool = True, holder: str | None = "host/4121") -> LockView:
    """How a lock may look at NOW."""
    expires_at = NOW + timedelta(seconds=12) if held else None
    return LockView("deploy", held, holder, NOW, NOW, expires_at, 30, fencing_token, waiters)


def standing(*views: LockView) -> Standing:
    found = Standing("deploy")
    for each in views:
        found.looked(each)
    return found


def test_it_says_who_holds_until_when_and_how_many_are_ahead() -> None:
    """CLI-26."""
    line = standing(view(waiters=3)).line(NOW, None)
    assert line == "waiting for deploy: held by host/4121, expires in 12 s, 2 ahead of you"
    assert standing(view(waiters=1)).line(NOW, None).endswith(", you are next")
    assert "held by another," in standing(view(waiters=1, holder=None)).line(NOW, None)


def test_what_it_does_not_know_it_does_not_say() -> None:
    assert standing().line(NOW, None) == "waiting for deploy"
    assert standing(view(waiters=0, held=False)).line(NOW, None) == "waiting for deploy"
    assert standing(view(waiters=0)).line(NOW + timedelta(seconds=13), None) == "waiting for deploy: held by host/4121"


def test_the_time_alone_is_no_news() -> None:
    known = standing(view(waiters=3))
    before = known.told()
    known.looked(view(waiters=3))
    assert known.told() == before
    known.looked(view(waiters=2, fencing_token=8))
    assert known.told() != before


@pytest.mark.parametrize(
    ("looks", "ahead"),
    [
        ([(3, 7)], 2),
        ([(3, 7), (5, 7)], 2),  # two came after
        ([(3, 7), (2, 7)], 1),  # one of those ahead left
        ([(3, 7), (5, 8)], 1),  # one of those ahead has it now, and three came after
        ([(3, 7), (0, 7)], 2),  # our own request is on its way
        ([(1, 7), (1, 8)], 0),
    ],
)
def test_those_who_come_later_are_not_ahead(looks: list[tuple[int, int]], ahead: int) -> None:
    """CLI-26: the number only falls."""
    place = Place()
    for waiters, fencing_token in looks:
        place.looked(view(waiters, fencing_token))
    assert place.ahead == ahead


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (TransportError("broken"), "no answer"),
        (RateLimitedError("spent"), "quota"),
        (UnavailableError("stopping"), "cannot answer"),
    ],
)
def test_trouble_is_told_until_it_is_over(error: TransportError, told: str) -> None:
    known = standing(view(waiters=1))
    known.failed(error)
    assert told in known.line(NOW, None)
    known.looked(view(waiters=1))
    assert told not in known.line(NOW, None)


def test_a_line_keeps_to_the_terminal() -> None:
    known = Standing("a-long-name-for-a-lock" * 3)
    known.looked(view(waiters=3, holder="a-host-with-a-long-name.example.com/4121"))
    line = known.line(NOW, 79)
    assert len(line) == 79
    assert line.endswith(", expires in 12 s, 2 ahead of you")


@pytest.mark.real_time
def test_elsewhere_than_on_a_terminal_it_is_a_line_and_quiet_is_none(
    start: Start, key: str, client: Client, until: Callable[..., None]
) -> None:
    """CLI-26."""
    lease = client.locks.acquire(key, ttl=60)
    loud = start("run", key, "--wait", "--", "true")
    assert loud.stderr is not None
    assert loud.stderr.readline().startswith(f"volcano-locks: waiting for {key}: held by ")
    quiet = start("run", key, "--wait", "-q", "--", "true")
    until(lambda: client.locks.view(key).waiters == 2)
    client.locks.release(key, lease)
    assert loud.communicate() == ("", "")
    assert quiet.communicate() == ("", "")
    assert (loud.returncode, quiet.returncode) == (0, 0)


@pytest.mark.real_time
def test_on_a_terminal_the_line_is_gone_when_the_command_starts(
    key: str, client: Client, environment: dict[str, str], until: Callable[..., None]
) -> None:
    """CLI-26: the command's output is not mixed with it."""
    lease = client.locks.acquire(key, ttl=60)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*PROGRAM, "run", key, "--wait", "--", "echo", "mine"],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        shown = read_from(ours, lambda text: "you are next" in text)
        client.locks.release(key, lease)
        shown += read_from(ours, lambda text: "mine" in text)
        assert process.wait(WAIT_SECONDS) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    *_, erased, mine = shown.replace("\r\n", "").split("\r")
    assert erased.strip() == ""
    assert mine == "mine"


def read_from(terminal: int, enough: Callable[[str], bool]) -> str:
    """What a process writes to its terminal."""
    text, end = "", time.monotonic() + WAIT_SECONDS
    while not enough(text) and time.monotonic() < end:
        if select.select([terminal], [], [], 0.1)[0]:
            with suppress(OSError):
                text += os.read(terminal, 65_536).decode()
    assert enough(text), text
    return text


@pytest.mark.real_time
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_gives_the_place_back(
    start: Start, key: str, client: Client, until: Callable[..., None], number: signal.Signals
) -> None:
    """CLI-26: at once, with no words but the one told before, and nothing is held then."""
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
def test_acquire_waits_and_ctrl_c_ends_it_without_a_trace(
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
def test_waiting_is_said_once(start: Start, choices: tuple[str, ...]) -> None:
    """CLI-5, CLI-10."""
    for arguments in (("run", "k", *choices, "--", "true"), ("acquire", "k", *choices)):
        process = start(*arguments)
        _, err = process.communicate()
        assert process.returncode == 64
        assert "-n, -w and --wait exclude each other" in err


@pytest.mark.parametrize("given", [("--wait", "30s"), ("--wait=30s",)])
def test_whoever_gives_wait_a_time_is_told_of_w(start: Start, given: tuple[str, ...]) -> None:
    """CLI-5: `--wait` is for ever."""
    for arguments in (("run", *given, "k", "--", "true"), ("run", "k", *given, "--", "true"), ("acquire", *given, "k")):
        process = start(*arguments)
        _, err = process.communicate()
        assert process.returncode == 64
        assert "write -w 30s to wait at most so long" in err
