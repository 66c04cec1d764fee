"""CLI-33: `force-release` frees the lock from the holder that it showed, and from no other one (case 66)."""

import json
import re
from collections.abc import Callable

import httpx2
import pytest
from click.testing import Result

from volcano_locks import Client
from volcano_locks.cli.output import local_text
from volcano_locks.config import default_holder
from volcano_locks_server.testing import RunningServer

from ..terminal_session import WAIT_SECONDS, Session

Invoke = Callable[..., Result]
OpenTerminal = Callable[..., Session]


def ended(terminal: Session, answer: bytes) -> tuple[int, str]:
    """The exit code and the whole output after the answer."""
    terminal.press(answer)
    output = terminal.read_to_end().decode()
    return terminal.process.wait(WAIT_SECONDS), " ".join(output.split())


@pytest.mark.real_time
def test_it_shows_the_holder_and_asks(open_terminal: OpenTerminal, key: str, client: Client) -> None:
    lease = client.locks.acquire(key, ttl=30)
    terminal = open_terminal("force-release", key, "--reason", "it hangs")
    terminal.read_until(b"[y/N]: ")
    shown = " ".join(terminal.output.decode().split())
    held = (
        rf"{key} is held by {re.escape(default_holder())}, for \d+ s, until {re.escape(local_text(lease.expires_at))}"
    )
    assert re.search(held, shown)
    assert f"with fencing token {lease.fencing_token}; 0 waiters" in shown
    assert client.locks.get(key).held
    code, output = ended(terminal, b"y\n")
    assert code == 0
    assert f"{key} was freed from {default_holder()}, which may go on working until" in output
    assert local_text(lease.expires_at) in output.partition("was freed")[2]
    assert not client.locks.get(key).held


@pytest.mark.real_time
def test_a_change_of_holder_during_the_question_frees_nothing(
    open_terminal: OpenTerminal, key: str, client: Client
) -> None:
    """Case 66: the innocent holder keeps the lock."""
    lease = client.locks.acquire(key, ttl=30)
    terminal = open_terminal("force-release", key)
    terminal.read_until(b"[y/N]: ")
    client.locks.release(key, lease)
    innocent = client.locks.acquire(key, ttl=30)
    code, output = ended(terminal, b"y\n")
    assert code == 1
    assert f"{key} was not freed" in output
    assert str(innocent.fencing_token) in output
    assert client.locks.renew(key, innocent).fencing_token == innocent.fencing_token


@pytest.mark.real_time
def test_the_expiry_of_a_renewal_during_the_question_is_printed(
    open_terminal: OpenTerminal, key: str, client: Client
) -> None:
    lease = client.locks.acquire(key, ttl=30)
    terminal = open_terminal("force-release", key)
    terminal.read_until(b"[y/N]: ")
    renewed = client.locks.renew(key, lease, ttl=3600)
    _, output = ended(terminal, b"y\n")
    assert f"may go on working until {local_text(renewed.expires_at)}" in output


@pytest.mark.real_time
def test_a_no_and_a_free_lock_change_nothing(open_terminal: OpenTerminal, key: str, client: Client) -> None:
    free = open_terminal("force-release", key)
    assert free.process.wait(WAIT_SECONDS) == 0
    client.locks.acquire(key, ttl=30)
    terminal = open_terminal("force-release", key)
    terminal.read_until(b"[y/N]: ")
    assert ended(terminal, b"n\n")[0] == 1
    assert client.locks.get(key).held


def test_without_a_terminal_nothing_is_done(invoke: Invoke, key: str, client: Client) -> None:
    """CLI-11: whether or not the lock is held."""
    for _ in range(2):
        result = invoke("force-release", key)
        assert result.exit_code == 64
        assert "--fencing-token N or --yes" in result.stderr
        client.locks.acquire(key, ttl=30)
        assert client.locks.get(key).held
        client.locks.force_release(key)


def test_scripts_pass_the_fencing_token_that_they_saw(invoke: Invoke, key: str, client: Client) -> None:
    lease = client.locks.acquire(key, ttl=30)
    token = json.loads(invoke("get", key, "--json").stdout)["fencing_token"]
    wrong = invoke("force-release", key, "--fencing-token", str(token - 1), "--yes")
    assert wrong.exit_code == 1
    assert f"is held under fencing token {token}" in wrong.stderr
    assert client.locks.get(key).held
    freed = invoke("force-release", key, "--fencing-token", str(token))
    assert (freed.exit_code, freed.stdout) == (0, "")
    assert f"may go on working until {local_text(lease.expires_at)}" in freed.stderr
    assert "was free already" in invoke("force-release", key, "--fencing-token", str(token)).stderr


def test_yes_alone_frees_it_from_any_holder(invoke: Invoke, key: str, client: Client) -> None:
    client.locks.acquire(key, ttl=30)
    assert invoke("force-release", key, "--yes").exit_code == 0
    assert not client.locks.get(key).held
    assert invoke("force-release", key, "--yes").exit_code == 0


@pytest.mark.parametrize("arguments", [("--fencing-token", "0"), ("--fencing-token", "x"), ("--reason", "r" * 201)])
def test_invalid_values_are_64_and_free_nothing(
    invoke: Invoke, key: str, client: Client, arguments: tuple[str, ...]
) -> None:
    client.locks.acquire(key, ttl=30)
    assert invoke("force-release", key, "--yes", *arguments).exit_code == 64
    assert client.locks.get(key).held


def test_a_server_that_is_too_old_frees_nothing(
    invoke: Invoke, key: str, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HTTP-34: it does not know the address of one lease."""
    lease = client.locks.acquire(key, ttl=30)
    monkeypatch.setattr(
        "volcano_locks.protocol.operations.numbered_lease_path", lambda key, token: f"/locks/{key}/unknown/{token}"
    )
    result = invoke("force-release", key, "--fencing-token", str(lease.fencing_token))
    assert result.exit_code == 64
    assert "older than this command" in result.stderr
    assert client.locks.get(key).held


def test_the_reason_is_in_the_event(invoke: Invoke, key: str, client: Client, server: RunningServer) -> None:
    """EVENT-10."""
    client.locks.acquire(key, ttl=30)
    headers = {"Authorization": f"Bearer {server.service_key}"}
    with httpx2.stream("GET", f"{server.url}/locks/{key}/events", headers=headers) as stream:
        lines = stream.iter_lines()
        assert next(lines) == "retry: 1000"
        assert invoke("force-release", key, "--yes", "--reason", "hängt, INC-4711").exit_code == 0
        data = next(line for line in lines if line.startswith("data: "))
    assert json.loads(data.removeprefix("data: "))["reason"] == "hängt, INC-4711"
