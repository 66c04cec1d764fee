"""CLI-36: named admin tokens, in the store and over the admin API."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from testsupport.engines import etcd, postgres

from volcano_locks_server.testing import RunningServer, running_server

from .conftest import Completed, ServerProcess, status_of

Command = Callable[..., Completed]
NAME = "VOLCANO_LOCKS_ADMIN_TOKEN"


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningServer]:
    with running_server() as one:
        monkeypatch.setenv("VOLCANO_API_URL", one.url)
        monkeypatch.setenv(NAME, one.admin_token)
        yield one


@pytest.fixture(params=["sqlite", "postgres", "etcd"])
def store(request: pytest.FixtureRequest, command: Command) -> str:
    """The URL of an empty store that exists."""
    match request.param:
        case "postgres":
            url = postgres.shared().url(postgres.shared().new_database())
        case "etcd":
            url = etcd.shared().url()
        case _:
            url = "sqlite:///locks.db"
    assert command("migrate", "--store", url).exit_code == 0
    return url


def names(command: Command, *where: str) -> list[str]:
    listed = command("admin-token", "list", "--json", *where)
    assert listed.exit_code == 0, listed
    return [item["name"] for item in json.loads(listed.stdout)["items"]]


def test_a_token_is_made_over_the_api_and_revoked(
    command: Command, running: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    created = command("admin-token", "create", "ann")
    assert created.exit_code == 0, created
    token = created.stdout.strip()
    assert token.startswith("admin-")
    assert token not in created.stderr
    assert "only this once" in created.stderr
    monkeypatch.setenv(NAME, token)
    assert names(command) == ["ann"]
    table = command("admin-token", "list").stdout
    assert token not in table
    assert table.splitlines()[1].split()[:2] == ["ann", token[:14]]
    assert command("admin-token", "revoke", "ann").exit_code == 64, "asks, and there is no terminal"
    assert command("admin-token", "revoke", "ann", "--yes").exit_code == 0
    refused = command("admin-token", "list")
    assert refused.exit_code == 77
    assert token not in refused.stderr
    assert status_of(f"{running.url}/projects", bearer=running.admin_token) == 200


def test_the_first_token_is_made_in_the_store(
    command: Command, start: Callable[..., ServerProcess], store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a server and without a token."""
    created = command("admin-token", "create", "first", "--store", store, "--json")
    assert created.exit_code == 0, created
    token = json.loads(created.stdout)["token_value"]
    assert command("admin-token", "create", "second", "--store", store).exit_code == 0
    again = command("admin-token", "create", "first", "--store", store)
    assert (again.exit_code, again.stdout) == (64, "")
    assert "exists already" in again.stderr
    assert command("admin-token", "create", "a b", "--store", store).exit_code == 64
    assert names(command, "--store", store) == ["first", "second"]
    assert command("admin-token", "revoke", "second", "--yes", "--store", store).exit_code == 0
    assert command("admin-token", "revoke", "second", "--yes", "--store", store).exit_code == 64
    server = start("serve", "--store", store, "--port", "0")
    url = server.read_until(r"listening on (\S+),")
    monkeypatch.setenv("VOLCANO_API_URL", url)
    monkeypatch.setenv(NAME, token)
    assert names(command) == ["first"]
    if store.startswith("sqlite"):
        in_use = command("admin-token", "list", "--store", store)
        assert in_use.exit_code == 69
        assert "in use" in in_use.stderr
    assert server.stop(15) == 0


def test_a_file_that_does_not_exist_is_not_made(command: Command) -> None:
    for arguments in (["list"], ["create", "ann"], ["revoke", "ann"]):
        result = command("admin-token", *arguments, "--store", "sqlite:///typo.db")
        assert (result.exit_code, result.stdout) == (64, "")
        assert "no file typo.db" in result.stderr
    assert list(Path().iterdir()) == []


def test_a_server_and_a_store_are_not_given_both(command: Command) -> None:
    result = command("admin-token", "list", "--store", "sqlite:///locks.db", "--api-url", "http://127.0.0.1:1")
    assert result.exit_code == 64
    assert "not both" in result.stderr


def test_offline_is_the_store_of_the_variables(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOLCANO_LOCKS_STORE", "sqlite:///other.db")
    command("migrate")
    assert command("admin-token", "create", "ann", "--offline").exit_code == 0
    assert names(command, "--store", "sqlite:///other.db") == ["ann"]


def test_memory_has_no_tokens_to_manage(command: Command) -> None:
    assert command("admin-token", "list", "--store", "memory://").exit_code == 64
