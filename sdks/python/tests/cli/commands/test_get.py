"""CLI-1, CLI-2, CLI-4: `get`, and refused addresses and credentials."""

import json
import threading
import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import httpx2
import pytest
from click.testing import Result

from volcano_locks import Client
from volcano_locks.cli.commands.locks import waiting_text
from volcano_locks.cli.connection import Connection
from volcano_locks.cli.error_messages import exit_for
from volcano_locks.cli.output import local_text
from volcano_locks.config import default_holder
from volcano_locks.errors import error_for
from volcano_locks_server.testing import RunningServer

Invoke = Callable[..., Result]


def test_get_prints_held_or_free(invoke: Invoke, key: str, client: Client) -> None:
    """CLI-1, CLI-10: exit code 0 either way; JSON has the field names of the API."""
    assert invoke("get", key).stdout == f"{key} is free; it was never held, or not in the last 24 hours\n"
    assert json.loads(invoke("get", key, "--json").stdout) == {"held": False}
    lease = client.locks.acquire(key, ttl=30)
    held = invoke("get", key)
    assert held.exit_code == 0
    first, since, *rest = held.stdout.splitlines()
    assert first == f"{key} is held by {default_holder()}"
    assert since.startswith(f"since          {local_text(lease.expires_at - timedelta(seconds=30))}, ")
    assert since.endswith(" s ago")
    assert rest == [
        "renewed        never",
        f"until          {local_text(lease.expires_at)} unless renewed",
        f"fencing token  {lease.fencing_token}",
    ]
    state = json.loads(invoke("get", key, "--json").stdout)
    assert state["held"] is True
    assert (state["holder"], state["fencing_token"]) == (default_holder(), lease.fencing_token)
    assert state["acquired_at"] == state["renewed_at"] < state["expires_at"]
    assert held.stderr == ""


@pytest.mark.real_time
def test_get_names_who_is_next(invoke: Invoke, key: str, client: Client, server: RunningServer) -> None:
    """CLI-10, LIST-9."""
    lease = client.locks.acquire(key, ttl=30)
    headers = {"Authorization": f"Bearer {server.service_key}", "X-Volcano-Lock-Holder": "worker-2"}
    body = {"ttl_seconds": 30, "wait_seconds": 20}

    def wait() -> None:
        token = {"X-Volcano-Lock-Token": str(uuid.uuid4())}
        httpx2.post(f"{server.url}/locks/{key}/lease", headers={**headers, **token}, json=body, timeout=30)

    waiting = threading.Thread(target=wait)
    waiting.start()
    ends_at = time.monotonic() + 10
    while "waiting" not in (shown := invoke("get", key).stdout) and time.monotonic() < ends_at:
        time.sleep(0.05)
    assert shown.splitlines()[-1] == "waiting        1; next is worker-2"
    state = json.loads(invoke("get", key, "--json").stdout)
    assert (state["waiters"], state["queue"]) == (1, ["worker-2"])
    client.locks.release(key, lease)
    waiting.join(20)


def test_refused_input_is_64_and_names_the_limit(invoke: Invoke) -> None:
    """CLI-4."""
    result = invoke("get", "not a key")
    assert result.exit_code == 64
    assert "1 to 128" in result.stderr


def test_get_from_a_service_without_views_prints_the_state(
    invoke: Invoke, key: str, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CLI-10: a service with only the public API ignores the view's parameter and sends the plain state."""
    monkeypatch.setattr("volcano_locks.protocol.lock_view.lock_path", lambda key: f"/locks/{key}?plain=1&")
    assert invoke("get", key).stdout == f"{key} is free\n"
    client.locks.acquire(key, ttl=30)
    assert invoke("get", key).stdout.startswith(f"{key} is held\nuntil ")
    state = json.loads(invoke("get", key, "--json").stdout)
    assert state["holder"] is state["acquired_at"] is None


@pytest.mark.parametrize("command", [("get", "k"), ("project", "list")])
def test_invalid_address_is_64_and_names_its_source(invoke: Invoke, command: tuple[str, ...]) -> None:
    """CLI-2."""
    result = invoke(*command, VOLCANO_API_URL="ftp://example.com")
    assert result.exit_code == 64
    assert "volcano-locks: VOLCANO_API_URL must be like https://" in result.stderr
    assert "ftp://example.com" in result.stderr
    result = invoke(*command, "--api-url", "locks.example.com")
    assert result.exit_code == 64
    assert "volcano-locks: --api-url must be like https://" in result.stderr


def test_invalid_secret_is_64_and_names_its_source(invoke: Invoke, tmp_path: Path) -> None:
    """CLI-2: the secret is not shown."""
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


def test_refused_service_key_is_77_with_its_source_and_advice(invoke: Invoke, tmp_path: Path) -> None:
    """CLI-2, CLI-4."""
    file = tmp_path / "worker.key"
    file.write_text("sk-unknown")
    advice = (
        "`volcano-locks key create` and `key rotate` make a new one",
        "`dev` prints one",
    )
    for result, origin in (
        (invoke("get", "k", VOLCANO_SERVICE_KEY="sk-unknown"), "VOLCANO_SERVICE_KEY"),
        (invoke("get", "k", "--service-key-file", str(file)), str(file)),
    ):
        assert result.exit_code == 77
        assert f"does not accept the service key in {origin}:\n" in result.stderr
        assert all(step in result.stderr for step in advice)
        assert "sk-unknown" not in result.output
    missing = invoke("get", "k", VOLCANO_SERVICE_KEY=None)
    assert missing.exit_code == 77
    assert advice[0] in missing.stderr


def test_a_server_that_is_not_a_lock_service_is_named() -> None:
    """CLI-4."""
    error = error_for(404, None, "HTTP 404 without a reason")
    stop = exit_for(error, Connection("https://example.com", "sk-1", "the service key in a file"))
    assert stop.exit_code == 64
    assert str(stop.message).startswith("not found at https://example.com: HTTP 404 without a reason\n")
    assert "Set its address in VOLCANO_API_URL or --api-url" in str(stop.message)


def test_a_wrong_path_in_the_address_is_named(invoke: Invoke, server: RunningServer) -> None:
    """CLI-2, CLI-4."""
    result = invoke("ls", "--api-url", f"{server.url}/v1")
    assert result.exit_code == 64
    assert f"not found at {server.url}/v1: there is no such address" in result.stderr


def test_messages_have_no_colour_without_a_terminal(invoke: Invoke) -> None:
    """CLI-1."""
    assert "\x1b" not in invoke("get", "not a key").output


def test_every_help_fits_80_columns_and_has_an_example(invoke: Invoke) -> None:
    """Checked for every command."""
    single = ["run", "acquire", "renew", "release", "get", "force-release", "verify"]
    projects = [f"project {name}" for name in ("create", "list", "show", "set", "delete")]
    keys = [f"key {name}" for name in ("create", "list", "revoke", "rotate")]
    for command in [*single, "project", *projects, "key", *keys]:
        text = invoke(*command.split(), "--help", COLUMNS="80").stdout
        assert max(map(len, text.splitlines())) <= 80, command
        assert f"\n    volcano-locks {command} " in text, command


def test_the_order_of_waiters_is_named() -> None:
    """CLI-10."""
    assert waiting_text(2, ("a", None)) == "2; next is a, then (no label)"
    assert waiting_text(5, ("a", "b", "c", "d")) == "5; next is a, then b, then c, …"
