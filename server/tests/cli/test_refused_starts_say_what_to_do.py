"""A server that cannot start says so in a sentence, with an exit code, and shows no trace (CLI-4, CLI-14, CLI-15)."""

import socket
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from .conftest import Ended, Running

USAGE, UNAVAILABLE = 64, 69


def assert_one_sentence(ended: Ended, exit_code: int, *words: str) -> None:
    assert ended.exit_code == exit_code, ended
    assert ended.stdout == ""
    told = [line for line in ended.stderr.splitlines() if line.startswith("volcano-locks: ")]
    assert len(told) == 1, ended.stderr
    assert '"event"' not in ended.stderr, "what did not start neither stops nor has stopped"
    assert "Traceback" not in ended.stderr
    for word in words:
        assert word in told[0]


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
        (["--store", "locks.db"], ["--store", "sqlite:///relative.db", "locks.db"]),
        (["--store", "redis://me:hunter2@db:6379"], ["--store", "redis://…", "postgresql://"]),
        (["--tls-certificate", "no.pem", "--tls-key", "no.key", "--port", "0"], ["no.pem", "No such file"]),
    ],
)
def test_a_setting_that_cannot_be_used_is_named(
    command: Callable[..., Ended], arguments: list[str], words: list[str]
) -> None:
    ended = command("serve", *arguments)
    assert_one_sentence(ended, USAGE, *words)
    assert "hunter2" not in ended.stderr


def test_a_variable_is_refused_like_its_flag(command: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOLCANO_LOCKS_PORT", "seven")
    assert_one_sentence(command("serve"), USAGE, "VOLCANO_LOCKS_PORT", "'seven'")


def test_a_refused_admin_token_is_not_shown(command: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOLCANO_LOCKS_ADMIN_TOKEN", "hunter2")
    ended = command("serve", "--store", "memory://")
    assert_one_sentence(ended, USAGE, "VOLCANO_LOCKS_ADMIN_TOKEN", "7 characters")
    assert "hunter2" not in ended.stderr
    assert "--admin-token" not in ended.stderr, "there is no such flag"


def test_secrets_have_no_flag(command: Callable[..., Ended]) -> None:
    ended = command("serve", "--admin-token", "0123456789abcdef")
    assert ended.exit_code == USAGE
    assert "No such option" in ended.stderr


@pytest.mark.parametrize("arguments", [["serve", "--store", "memory://"], ["dev"]])
def test_a_taken_port_is_unavailable(command: Callable[..., Ended], arguments: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert_one_sentence(command(*arguments, "--port", port), UNAVAILABLE, port, "another program listens there")


def test_a_server_that_cannot_listen_leaves_no_files(command: Callable[..., Ended]) -> None:
    """CLI-15: neither a database nor an admin token, whether the port or the certificate is what is wrong."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ended = command("serve", "--store", "sqlite:///locks.db", "--port", port)
    assert_one_sentence(ended, UNAVAILABLE, "another program listens there")
    ended = command("serve", "--store", "sqlite:///locks.db", "--tls-certificate", "no.pem", "--tls-key", "no.key")
    assert_one_sentence(ended, USAGE, "no.pem")
    assert list(Path().iterdir()) == []


def test_a_server_whose_store_cannot_be_opened_lets_its_port_go(command: Callable[..., Ended]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ended = command("serve", "--store", "sqlite:///none/locks.db", "--port", str(port))
    assert_one_sentence(ended, UNAVAILABLE, "directory does not exist")
    with socket.create_server(("127.0.0.1", port), reuse_port=False):
        pass


def test_a_file_in_use_names_its_server(start: Callable[..., Running], command: Callable[..., Ended]) -> None:
    first = start("serve", "--store", "sqlite:///locks.db", "--port", "0")
    first.read_until(r"(listening)")
    ended = command("serve", "--store", "sqlite:///locks.db", "--port", "0")
    assert_one_sentence(ended, UNAVAILABLE, "locks.db", "in use", f"process {first.process.pid}")


def test_a_directory_that_is_not_there_is_named(command: Callable[..., Ended]) -> None:
    assert_one_sentence(command("serve", "--store", "sqlite:///none/locks.db"), UNAVAILABLE, "directory does not exist")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("PRAGMA user_version = 999", ["schema version 999", "newer release"]),
        ("UPDATE newest_instant SET now_ms = 4102444800000", ["2100-01-01", "clock right"]),
        ("PRAGMA application_id = 7", ["another program"]),
    ],
)
def test_a_file_this_server_must_not_serve_is_refused(
    start: Callable[..., Running], command: Callable[..., Ended], change: str, words: list[str]
) -> None:
    made = start("serve", "--store", "sqlite:///locks.db", "--port", "0")
    made.read_until(r"(listening)")
    assert made.stop(15) == 0
    with closing(sqlite3.connect("locks.db")) as database, database:
        database.execute(change)
    assert_one_sentence(command("serve", "--store", "sqlite:///locks.db", "--port", "0"), UNAVAILABLE, *words)


def test_a_file_that_is_no_database_is_left_alone(command: Callable[..., Ended]) -> None:
    notes = b"dear diary " * 500
    Path("notes.db").write_bytes(notes)
    assert_one_sentence(command("serve", "--store", "sqlite:///notes.db", "--port", "0"), UNAVAILABLE)
    assert Path("notes.db").read_bytes() == notes
