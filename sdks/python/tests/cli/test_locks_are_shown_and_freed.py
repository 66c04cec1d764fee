"""CLI-1, CLI-4, CLI-11: looking at a lock, and freeing it whoever holds it."""

import json
from collections.abc import Callable

from click.testing import Result

from volcano_locks import Client

Invoke = Callable[..., Result]


def test_get_says_held_or_free(invoke: Invoke, key: str, client: Client) -> None:
    """CLI-1: exit code 0 either way; JSON has the wire's names."""
    assert invoke("get", key).stdout == f"{key} is free\n"
    assert json.loads(invoke("get", key, "--json").stdout) == {"held": False}
    lease = client.locks.acquire(key, ttl=30)
    held = invoke("get", key)
    assert held.exit_code == 0
    assert f"{key} is held until {lease.expires_at:%Y-%m-%dT%H:%M:%SZ}" in held.stdout
    state = json.loads(invoke("get", key, "--json").stdout)
    assert state["held"] is True
    assert state["fencing_token"] == lease.fencing_token
    assert held.stderr == ""


def test_force_release_without_an_answer_changes_nothing(invoke: Invoke, key: str, client: Client) -> None:
    """CLI-11: nobody is at the terminal."""
    client.locks.acquire(key, ttl=30)
    result = invoke("force-release", key)
    assert result.exit_code == 64
    assert "--yes" in result.stderr
    assert client.locks.get(key).held


def test_force_release_with_yes_frees_it(invoke: Invoke, key: str, client: Client) -> None:
    """CLI-11."""
    client.locks.acquire(key, ttl=30)
    result = invoke("force-release", key, "--yes")
    assert (result.exit_code, result.stdout) == (0, "")
    assert not client.locks.get(key).held


def test_refused_input_is_64_and_names_the_limit(invoke: Invoke) -> None:
    """CLI-4."""
    result = invoke("get", "not a key")
    assert result.exit_code == 64
    assert "1 to 128" in result.stderr


def test_unusable_address_is_64(invoke: Invoke) -> None:
    result = invoke("get", "k", VOLCANO_API_URL="ftp://example.com")
    assert result.exit_code == 64
    assert "ftp://example.com" in result.stderr


def test_messages_have_no_colour_when_nobody_sees_it(invoke: Invoke) -> None:
    """CLI-1: not a terminal."""
    assert "\x1b" not in invoke("get", "not a key").output


def test_every_help_fits_a_terminal_and_gives_an_example(invoke: Invoke) -> None:
    """80 columns, and something to copy."""
    single = ["run", "acquire", "renew", "release", "get", "force-release", "verify"]
    projects = [f"project {name}" for name in ("create", "list", "show", "set", "delete")]
    keys = [f"key {name}" for name in ("create", "list", "revoke", "rotate")]
    for command in [*single, *projects, *keys]:
        text = invoke(*command.split(), "--help", COLUMNS="80").stdout
        assert max(map(len, text.splitlines())) <= 80, command
        assert f"\n    volcano-locks {command} " in text, command
