"""CLI-1, CLI-4, CLI-11: looking at a lock, and freeing it whoever holds it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from volcano_locks import Client
from volcano_locks.cli.connection import Connection
from volcano_locks.cli.error_messages import explain
from volcano_locks.errors import error_for

Invoke = Callable[..., Result]


def test_get_says_held_or_free(invoke: Invoke, key: str, client: Client) -> None:
    """CLI-1: exit code 0 either way; JSON has the wire's names."""
    assert invoke("get", key).stdout == f"{key} is free\n"
    assert json.loads(invoke("get", key, "--json").stdout) == {"held": False}
    lease = client.locks.acquire(key, ttl=30)
    held = invoke("get", key)
    assert held.exit_code == 0
    assert held.stdout.splitlines() == [
        f"{key} is held",
        f"until          {lease.expires_at:%Y-%m-%dT%H:%M:%SZ} unless renewed",
        f"fencing token  {lease.fencing_token}",
    ]
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


@pytest.mark.parametrize("command", [("get", "k"), ("project", "list")])
def test_unusable_address_is_64_and_named_by_where_it_came_from(invoke: Invoke, command: tuple[str, ...]) -> None:
    """CLI-2."""
    result = invoke(*command, VOLCANO_API_URL="ftp://example.com")
    assert result.exit_code == 64
    assert "volcano-locks: VOLCANO_API_URL must be like https://" in result.stderr
    assert "ftp://example.com" in result.stderr
    result = invoke(*command, "--api-url", "locks.example.com")
    assert result.exit_code == 64
    assert "volcano-locks: --api-url must be like https://" in result.stderr


def test_unusable_secret_is_64_and_named_by_where_it_came_from(invoke: Invoke, tmp_path: Path) -> None:
    """CLI-2: and not shown."""
    file = tmp_path / "worker.key"
    file.write_text("sk two words")
    from_variable = invoke("get", "k", VOLCANO_SERVICE_KEY="sk two words")
    from_file = invoke("get", "k", "--service-key-file", str(file))
    admin = invoke("project", "list", "--admin-token-file", str(file))
    assert [result.exit_code for result in (from_variable, from_file, admin)] == [64, 64, 64]
    assert "the service key in VOLCANO_SERVICE_KEY must be visible ASCII" in from_variable.stderr
    assert f"the service key in {file} must be visible ASCII" in from_file.stderr
    assert f"the admin token in {file} must be visible ASCII" in admin.stderr
    assert "two words" not in from_variable.output + from_file.output + admin.output


def test_refused_service_key_is_77_and_says_where_it_was_and_what_makes_another(invoke: Invoke, tmp_path: Path) -> None:
    """CLI-2, CLI-4."""
    file = tmp_path / "worker.key"
    file.write_text("sk-unknown")
    advice = (
        "volcano-locks key create PROJECT NAME",
        "volcano-locks key rotate PROJECT KEY",
        "`volcano-locks dev` shows a new one at each start",
    )
    for result, origin in (
        (invoke("get", "k", VOLCANO_SERVICE_KEY="sk-unknown"), "VOLCANO_SERVICE_KEY"),
        (invoke("get", "k", "--service-key-file", str(file)), str(file)),
    ):
        assert result.exit_code == 77
        assert f"does not accept the service key in {origin}: " in result.stderr
        assert all(step in result.stderr for step in advice)
        assert "sk-unknown" not in result.output
    missing = invoke("get", "k", VOLCANO_SERVICE_KEY=None)
    assert missing.exit_code == 77
    assert advice[0] in missing.stderr


def test_where_something_else_listens_its_address_is_told() -> None:
    """CLI-4: what answers there is no lock service, and what named it is to be looked at."""
    error = error_for(404, None, "HTTP 404 without a reason")
    stop = explain(error, Connection("https://example.com", "sk-1", "the service key in a file"))
    assert stop.exit_code == 64
    assert str(stop.message).startswith("https://example.com knows no such address: HTTP 404 without a reason\n")
    assert "VOLCANO_API_URL or --api-url names another one" in str(stop.message)


def test_messages_have_no_colour_when_nobody_sees_it(invoke: Invoke) -> None:
    """CLI-1: not a terminal."""
    assert "\x1b" not in invoke("get", "not a key").output


def test_every_help_fits_a_terminal_and_gives_an_example(invoke: Invoke) -> None:
    """80 columns, and something to copy."""
    single = ["run", "acquire", "renew", "release", "get", "force-release", "verify"]
    projects = [f"project {name}" for name in ("create", "list", "show", "set", "delete")]
    keys = [f"key {name}" for name in ("create", "list", "revoke", "rotate")]
    for command in [*single, "project", *projects, "key", *keys]:
        text = invoke(*command.split(), "--help", COLUMNS="80").stdout
        assert max(map(len, text.splitlines())) <= 80, command
        assert f"\n    volcano-locks {command} " in text, command
