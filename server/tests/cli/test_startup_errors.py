"""CLI-4, CLI-14, CLI-15: a server that cannot start prints one message and no traceback."""

import socket
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from testsupport.engines import postgres

from .conftest import Completed, ServerProcess

USAGE, UNAVAILABLE = 64, 69


def assert_one_message(result: Completed, exit_code: int, *words: str) -> None:
    assert result.exit_code == exit_code, result
    assert result.stdout == ""
    messages = [line for line in result.stderr.splitlines() if line.startswith("volcano-locks: ")]
    assert len(messages) == 1, result.stderr
    assert '"event"' not in result.stderr, "a server that did not start logs no stop"
    assert "Traceback" not in result.stderr
    for word in words:
        assert word in messages[0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--port", "abc"], ["--port", "VOLCANO_LOCKS_PORT", "65535", "'abc'"]),
        (["--port", "65536"], ["--port", "65535", "65536"]),
        (["--host", "0.0.0.0"], ["not loopback", "--tls-certificate", "--behind-proxy", "0.0.0.0"]),
        (["--tls-certificate", "cert.pem"], ["--tls-key", "go together"]),
        (["--workers", "2"], ["--workers", "must be 1", "sqlite", "postgresql://", "etcd://"]),
        (["--workers", "2", "--store", "memory://"], ["--workers", "must be 1", "memory"]),
        (["--log-level", "loud"], ["--log-level", "debug, info, warning, error", "loud"]),
        (["--store", "locks.db", "--port", "0"], ["--store", "sqlite:///relative.db", "locks.db"]),
        (["--store", "postgresql://me:hunter2@127.0.0.1/d"], ["--store", "password", "--store-url-file"]),
        (["--store", "postgresql://me@db.internal/d"], ["--store", "db.internal", "--allow-plaintext-store"]),
        (["--store", "etcd://me:hunter2@127.0.0.1:2379"], ["--store", "password", "VOLCANO_LOCKS_STORE"]),
        (["--metrics-token-file", "none"], ["--metrics-token-file", "No such file"]),
        (["--store", "redis://me:hunter2@db:6379", "--port", "0"], ["--store", "redis://…", "postgresql://"]),
        (["--tls-certificate", "no.pem", "--tls-key", "no.key", "--port", "0"], ["no.pem", "No such file"]),
    ],
)
def test_an_invalid_setting_is_named(command: Callable[..., Completed], arguments: list[str], words: list[str]) -> None:
    result = command("serve", *arguments)
    assert_one_message(result, USAGE, *words)
    assert "hunter2" not in result.stderr


def test_a_variable_is_refused_like_its_flag(
    command: Callable[..., Completed], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VOLCANO_LOCKS_PORT", "seven")
    assert_one_message(command("serve"), USAGE, "VOLCANO_LOCKS_PORT", "'seven'")


def test_a_refused_admin_token_is_not_shown(command: Callable[..., Completed], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOLCANO_LOCKS_ADMIN_TOKEN", "hunter2")
    result = command("serve", "--store", "memory://")
    assert_one_message(result, USAGE, "VOLCANO_LOCKS_ADMIN_TOKEN", "7 characters")
    assert "hunter2" not in result.stderr
    assert "--admin-token" not in result.stderr, "there is no such flag"


def test_secrets_have_no_flag(command: Callable[..., Completed]) -> None:
    result = command("serve", "--admin-token", "0123456789abcdef")
    assert result.exit_code == USAGE
    assert "No such option" in result.stderr


@pytest.mark.parametrize("arguments", [["serve", "--store", "memory://"], ["dev"]])
def test_a_taken_port_is_unavailable(command: Callable[..., Completed], arguments: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = command(*arguments, "--port", port)
    assert_one_message(result, UNAVAILABLE, port, "another program listens there", "--port")
    assert "--host" not in result.stderr, "dev has no --host"


def test_a_server_that_cannot_listen_creates_no_files(command: Callable[..., Completed]) -> None:
    """CLI-15: no database and no admin token, if the port or the certificate cannot be used."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = command("serve", "--store", "sqlite:///locks.db", "--port", port)
    assert_one_message(result, UNAVAILABLE, "another program listens there")
    result = command("serve", "--store", "sqlite:///locks.db", "--tls-certificate", "no.pem", "--tls-key", "no.key")
    assert_one_message(result, USAGE, "no.pem")
    assert list(Path().iterdir()) == []


def test_a_server_that_cannot_open_its_store_frees_its_port(command: Callable[..., Completed]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    result = command("serve", "--store", "sqlite:///none/locks.db", "--port", str(port))
    assert_one_message(result, UNAVAILABLE, "directory does not exist")
    with socket.create_server(("127.0.0.1", port), reuse_port=False):
        pass


def test_a_file_in_use_is_refused_with_the_process_id(
    start: Callable[..., ServerProcess], command: Callable[..., Completed]
) -> None:
    first = start("serve", "--store", "sqlite:///locks.db", "--port", "0")
    first.read_until(r"(listening)")
    result = command("serve", "--store", "sqlite:///locks.db", "--port", "0")
    assert_one_message(result, UNAVAILABLE, "locks.db", "in use", f"process {first.process.pid}")


def test_a_missing_directory_is_named(command: Callable[..., Completed]) -> None:
    result = command("serve", "--store", "sqlite:///none/locks.db", "--port", "0")
    assert_one_message(result, UNAVAILABLE, "directory does not exist")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("PRAGMA user_version = 999", ["schema version 999", "newer release"]),
        ("UPDATE newest_instant SET now_ms = 4102444800000", ["2100-01-01", "clock right"]),
        ("PRAGMA application_id = 7", ["another program"]),
    ],
)
def test_a_file_of_another_program_or_release_is_refused(
    start: Callable[..., ServerProcess], command: Callable[..., Completed], change: str, words: list[str]
) -> None:
    made = start("serve", "--store", "sqlite:///locks.db", "--port", "0")
    made.read_until(r"(listening)")
    assert made.stop(15) == 0
    with closing(sqlite3.connect("locks.db")) as database, database:
        database.execute(change)
    assert_one_message(command("serve", "--store", "sqlite:///locks.db", "--port", "0"), UNAVAILABLE, *words)


def test_a_file_that_is_not_a_database_is_not_changed(command: Callable[..., Completed]) -> None:
    notes = b"dear diary " * 500
    Path("notes.db").write_bytes(notes)
    assert_one_message(command("serve", "--store", "sqlite:///notes.db", "--port", "0"), UNAVAILABLE)
    assert Path("notes.db").read_bytes() == notes


@pytest.mark.parametrize("verb", ["serve", "migrate", "doctor"])
@pytest.mark.parametrize("scheme", ["postgresql", "etcd"])
@pytest.mark.parametrize(
    ("host", "cause"),
    [("127.0.0.1", "the connection was refused"), ("no-such-host.invalid", "its name cannot be resolved")],
)
def test_a_database_that_cannot_be_reached_is_named_with_the_cause(
    command: Callable[..., Completed], verb: str, scheme: str, host: str, cause: str
) -> None:
    """CLI-15, CLI-25: its host and port, and why; never the user's password."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"{scheme}://{host}:{port}" + ("/locks" if scheme == "postgresql" else "")
    more = ["--port", "0"] if verb == "serve" else []
    result = command(verb, "--store", url, "--allow-plaintext-store", *more)
    assert result.exit_code == (1 if verb == "doctor" else UNAVAILABLE), result
    shown = result.stdout + result.stderr
    assert f"{host}:{port}: {cause}" in shown


@pytest.mark.parametrize("verb", ["serve", "doctor"])
@pytest.mark.parametrize("scheme", ["postgresql", "etcd"])
def test_a_server_of_another_kind_is_named(command: Callable[..., Completed], verb: str, scheme: str) -> None:
    """CLI-15: the port accepts connections, but no such database responds."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        url = f"{scheme}://127.0.0.1:{port}" + ("/locks" if scheme == "postgresql" else "")
        result = command(verb, "--store", url, *(["--port", "0"] if verb == "serve" else []))
    assert result.exit_code == (1 if verb == "doctor" else UNAVAILABLE), result
    assert f"127.0.0.1:{port}: it" in result.stdout + result.stderr


@pytest.mark.engines
@pytest.mark.parametrize("verb", ["serve", "doctor"])
@pytest.mark.parametrize(
    ("user", "database", "words"),
    [
        ("stranger", "", "refused the user stranger: check user, password and pg_hba.conf"),
        ("postgres", "-gone", "the database does not exist"),
    ],
)
def test_what_postgres_refuses_is_named_with_its_host(
    command: Callable[..., Completed], verb: str, user: str, database: str, words: str
) -> None:
    """CLI-15: a user or a password that is wrong, or a database that is missing."""
    server = postgres.shared()
    url = server.url(server.new_database() + database).replace("postgres@", f"{user}@")
    result = command(verb, "--store", url, *(["--port", "0"] if verb == "serve" else []))
    assert result.exit_code == (1 if verb == "doctor" else UNAVAILABLE), result
    shown = result.stdout + result.stderr
    assert f"127.0.0.1:{server.port}" in shown
    assert words in shown
