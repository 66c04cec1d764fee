"""KEEP-6, KEEP-8, KEEP-9: `volcano-locks backup` and `restore`."""

import json
import shutil
import sqlite3
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from volcano_locks import Client, LockHeldError
from volcano_locks_server.testing import RunningServer, running_server

from .conftest import Completed

Command = Callable[..., Completed]
STORE = "sqlite:///locks.db"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[RunningServer]:
    with running_server(store_url=f"sqlite:///{tmp_path / 'locks.db'}") as running:
        monkeypatch.setenv("VOLCANO_LOCKS_ADMIN_TOKEN", running.admin_token)
        yield running


@pytest.fixture
def backup(command: Command, tmp_path: Path) -> Path:
    """A backup in which `kept` is held; its server has granted one more lock since, and stopped."""
    with running_server(store_url=f"sqlite:///{tmp_path / 'locks.db'}") as running:
        with Client(running.url, running.service_key) as client:
            client.locks.acquire("kept", ttl=300)
        (tmp_path / "token").write_text(running.admin_token)
        result = command("backup", "--to", "one.backup", "--api-url", running.url, "--admin-token-file", "token")
        assert result.exit_code == 0
        with Client(running.url, running.service_key) as client:
            client.locks.acquire("later", ttl=30)
    return tmp_path / "one.backup"


def test_a_running_server_is_backed_up(command: Command, server: RunningServer, tmp_path: Path) -> None:
    """KEEP-9."""
    with Client(server.url, server.service_key) as client:
        client.locks.acquire("a", ttl=30)
        result = command("backup", "--to", "one.backup", "--api-url", server.url, "--json")
        client.locks.acquire("b", ttl=30)
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert (report["projects"], report["service_keys"], report["locks"]) == (1, 1, 1)
    assert report["written_at"].endswith("Z")
    file = tmp_path / "one.backup"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.stat().st_nlink == 1
    assert sqlite3.connect(file).execute("SELECT key FROM lock").fetchall() == [("a",)]
    assert {one.name for one in tmp_path.iterdir() if "backup" in one.name} == {"one.backup"}
    for secret in (server.service_key, server.admin_token):
        assert secret not in result.stdout + result.stderr
        assert secret.encode() not in file.read_bytes()


def test_a_backup_of_many_parts_is_complete(
    command: Command, server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KEEP-9: the verification reads every page, so a missing or misplaced part would be found."""
    monkeypatch.setattr("volcano_locks_server.http.backup_routes.PART_BYTES", 1_000)
    result = command("backup", "--to", "one.backup", "--api-url", server.url)
    assert result.exit_code == 0
    assert result.stdout == "backed up 1 projects, 1 service keys, 0 admin tokens, 0 locks to one.backup\n"


def test_an_existing_file_is_not_overwritten(command: Command, server: RunningServer, tmp_path: Path) -> None:
    """KEEP-9."""
    (tmp_path / "one.backup").write_text("precious")
    result = command("backup", "--to", "one.backup", "--api-url", server.url)
    assert result.exit_code == 64
    assert "already exists" in result.stderr
    assert (tmp_path / "one.backup").read_text() == "precious"


def test_a_file_in_use_is_refused_with_advice(command: Command, server: RunningServer, tmp_path: Path) -> None:
    """KEEP-9."""
    result = command("backup", "--to", "one.backup", "--store", STORE)
    assert result.exit_code == 69
    assert "--api-url" in result.stderr
    assert not [one for one in tmp_path.iterdir() if "backup" in one.name]


def test_the_file_of_a_stopped_server_is_backed_up(command: Command, backup: Path, tmp_path: Path) -> None:
    """KEEP-9."""
    result = command("backup", "--to", "two.backup", "--store", STORE)
    assert result.exit_code == 0
    assert "2 locks" in result.stdout
    rows = "SELECT * FROM lock"
    two, store = (sqlite3.connect(tmp_path / name).execute(rows).fetchall() for name in ("two.backup", "locks.db"))
    assert two == store


def test_the_log_of_a_killed_server_is_in_the_backup(command: Command, server: RunningServer, tmp_path: Path) -> None:
    """KEEP-9: a running server has the same files as a killed one."""
    with Client(server.url, server.service_key) as client:
        client.locks.acquire("a", ttl=30)
    for suffix in ("", "-wal"):
        shutil.copy(tmp_path / f"locks.db{suffix}", tmp_path / f"killed.db{suffix}")
    assert (tmp_path / "killed.db-wal").stat().st_size > 0
    result = command("backup", "--to", "one.backup", "--store", "sqlite:///killed.db")
    assert "1 locks" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "exit_code", "report"),
    [
        (("--store", "sqlite:///nothing.db"), 64, "there is no file nothing.db"),
        (("--store", "memory://"), 64, "sqlite:/// alone"),
        (("--store", "nonsense"), 64, "--store: store must be"),
        (("--store", STORE, "--api-url", "http://127.0.0.1:1"), 64, "not both"),
        (("--api-url", "http://127.0.0.1:1"), 77, "no admin token"),
    ],
)
def test_a_refused_backup_leaves_no_file(
    command: Command, tmp_path: Path, arguments: tuple[str, ...], exit_code: int, report: str
) -> None:
    """KEEP-9."""
    result = command("backup", "--to", "one.backup", *arguments)
    assert (result.exit_code, report in result.stderr) == (exit_code, True), result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_store_other_than_sqlite_has_no_backup(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """KEEP-9."""
    with running_server() as server:
        monkeypatch.setenv("VOLCANO_LOCKS_ADMIN_TOKEN", server.admin_token)
        result = command("backup", "--to", "one.backup", "--api-url", server.url)
    assert result.exit_code == 64
    assert "its engine's own tools" in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.real_time
def test_a_restored_store_serves_and_its_tokens_keep_rising(command: Command, backup: Path, tmp_path: Path) -> None:
    """KEEP-6, KEEP-8."""
    connection = sqlite3.connect(tmp_path / "locks.db")
    (last,) = connection.execute("SELECT fencing_token FROM lock WHERE key = 'later'").fetchone()
    connection.close()
    result = command("restore", "--from", str(backup), "--store", STORE, "--hold-seconds", "0", "--json")
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert report["locks"] == 1
    assert Path(report["kept_aside"]).exists()
    assert "this backup does not contain leases" in result.stderr
    with running_server(store_url=STORE) as server, Client(server.url, server.service_key) as client:
        assert client.locks.acquire("later", ttl=30).fencing_token > last
        with pytest.raises(LockHeldError):
            client.locks.acquire("kept", ttl=30)


def _set_ttls(ttl_seconds: int | None, *files: Path) -> None:
    """Sets the TTL of all leases; None deletes them."""
    for file in files:
        connection = sqlite3.connect(file)
        connection.execute(
            "UPDATE lock SET ttl_seconds = ?" if ttl_seconds else "DELETE FROM lock WHERE ? IS NULL", (ttl_seconds,)
        )
        connection.commit()
        connection.close()


def test_a_long_hold_must_be_given(command: Command, backup: Path, tmp_path: Path) -> None:
    """KEEP-8."""
    _set_ttls(600, backup)
    before = (tmp_path / "locks.db").stat().st_ino
    result = command("restore", "--from", str(backup), "--store", STORE)
    assert result.exit_code == 64
    assert "leases of up to 600 s: pass --hold-seconds" in result.stderr
    assert (tmp_path / "locks.db").stat().st_ino == before
    assert not list(tmp_path.glob("*.restoring*"))


@pytest.mark.real_time
@pytest.mark.parametrize("ttl_seconds", [2, None])
def test_the_hold_is_the_longest_ttl_but_at_least_the_typical_one(
    command: Command,
    backup: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ttl_seconds: int | None,
) -> None:
    """KEEP-8: a backup may have no lease."""
    monkeypatch.setattr("volcano_locks_server.cli.restore.TTL_SECONDS_TYPICAL", 1)
    held_seconds = (ttl_seconds or 1) + 1
    _set_ttls(ttl_seconds, backup, tmp_path / "locks.db")
    result = command("restore", "--from", str(backup), "--store", STORE, "--json")
    assert json.loads(result.stdout)["held_seconds"] == held_seconds
    assert f"waiting {held_seconds} s" in result.stderr


def test_a_file_in_use_is_not_replaced(command: Command, backup: Path, tmp_path: Path) -> None:
    """KEEP-6."""
    with running_server(store_url=STORE):
        result = command("restore", "--from", str(backup), "--store", STORE, "--hold-seconds", "0")
    assert result.exit_code == 69
    assert "in use by another server" in result.stderr
    assert not list(tmp_path.glob("*.replaced-*"))
