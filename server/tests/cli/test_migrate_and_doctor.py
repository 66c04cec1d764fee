"""CLI-24, CLI-25: `migrate` upgrades a store, and `doctor` finds problems and says how to fix them."""

import json
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path

import pytest
from testsupport.engines import etcd, postgres

from volcano_locks_server.ports.clock import SystemClock
from volcano_locks_server.rules.errors import DamagedRecordError
from volcano_locks_server.stores.health_findings import (
    DAMAGED_SHOWN_MAX,
    HealthFinding,
    clock_finding,
    latency_finding,
    record_findings,
    schema_finding,
)
from volcano_locks_server.stores.maintenance import check_health
from volcano_locks_server.stores.sqlite.connection import migrations
from volcano_locks_server.testing import ManualClock, running_server

from .conftest import PROGRAM, WAIT_SECONDS, Completed, ServerProcess

SQLITE = "sqlite:///locks.db"
NEWEST = migrations()[-1][0]
Command = Callable[..., Completed]


def found(command: Command, url: str, *, exit_code: int) -> dict[str, dict[str, object]]:
    """The findings of `doctor`, by name."""
    result = command("doctor", "--store", url, "--json")
    assert result.exit_code == exit_code, result
    report = json.loads(result.stdout)
    assert report["good"] is (exit_code == 0)
    assert "volcano-locks:" not in result.stderr, "gRPC may log there when a test forks"
    for finding in report["findings"]:
        assert finding["good"] is (finding["advice"] == "")
    return {finding["about"]: finding for finding in report["findings"]}


def wrong(findings: dict[str, dict[str, object]]) -> set[str]:
    return {about for about, finding in findings.items() if not finding["good"]}


def test_migrate_creates_a_store_once(command: Command) -> None:
    assert command("migrate", "--store", SQLITE).stdout == f"{SQLITE}: schema version none, now {NEWEST}\n"
    assert command("migrate", "--store", SQLITE) == Completed(
        0, f"{SQLITE}: schema version {NEWEST}, nothing to do\n", ""
    )
    assert json.loads(command("migrate", "--store", SQLITE, "--json").stdout) == {
        "store": SQLITE, "before": NEWEST, "after": NEWEST,
    }  # fmt: skip


def test_a_healthy_file_has_no_problems(command: Command) -> None:
    command("migrate", "--store", SQLITE)
    before = Path("locks.db").read_bytes()
    findings = found(command, SQLITE, exit_code=0)
    assert set(findings) == {
        "file",
        "access",
        "permissions",
        "schema",
        "log",
        "server",
        "opens",
        "latency",
        "records",
        "clock",
    }
    assert len(Path("locks.db").read_bytes()) == len(before)
    report = command("doctor", "--store", SQLITE).stdout.splitlines()
    assert all(line.startswith("ok     ") for line in report)
    assert len(report) == len(findings)


def test_the_store_comes_from_the_variable_as_for_serve(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOLCANO_LOCKS_STORE", "sqlite:///other.db")
    monkeypatch.setenv("VOLCANO_LOCKS_PORT", "not a port")
    assert command("migrate").exit_code == 0
    assert Path("other.db").exists()
    assert "other.db" in command("doctor").stdout


def test_a_missing_file_is_not_created(command: Command) -> None:
    result = command("doctor", "--store", SQLITE)
    assert result.exit_code == 1
    assert result.stdout.startswith("WRONG  file  there is no file ")
    assert "run volcano-locks migrate" in result.stdout
    assert wrong(found(command, "sqlite:///no/such/folder/locks.db", exit_code=1)) == {"file"}
    assert list(Path().iterdir()) == []


def test_files_that_others_may_open_are_reported_with_a_command(command: Command) -> None:
    command("migrate", "--store", SQLITE)
    Path("locks.db").chmod(0o644)
    token = Path("locks.db.admin-token")
    token.write_text("secret")
    token.chmod(0o640)
    findings = found(command, SQLITE, exit_code=1)
    assert wrong(findings) == {"permissions"}
    subprocess.run(str(findings["permissions"]["advice"]).split(), check=True)
    found(command, SQLITE, exit_code=0)


def test_a_long_log_and_a_replaced_file_are_problems(command: Command) -> None:
    """OPS-9, OPS-11, case 71, case 72."""
    command("migrate", "--store", SQLITE)
    Path("locks.db-wal").touch(0o600)
    os.truncate("locks.db-wal", 65 * 2**20)
    findings = found(command, SQLITE, exit_code=1)
    assert wrong(findings) == {"log"}
    assert "65.0 MiB" in str(findings["log"]["found"])
    Path("locks.db.replaced-while-served").touch()
    assert wrong(found(command, SQLITE, exit_code=1)) == {"file"}
    assert command("migrate", "--store", SQLITE).exit_code == 69


def test_a_damaged_record_is_shown_and_repaired_on_request(command: Command) -> None:
    """CLI-31, LEASE-18, case 63."""
    command("migrate", "--store", SQLITE)
    with closing(sqlite3.connect("locks.db")) as connection, connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute("INSERT INTO project (id, name, requests_per_minute, created_at_ms) VALUES ('p', 'n', 0, 1)")
        connection.execute(
            "INSERT INTO lock (project_id, key, fencing_token, freed_at_ms, retired_digests) "
            "VALUES ('p', 'nightly', -7, 1, zeroblob(32))"
        )
    findings = found(command, SQLITE, exit_code=1)
    assert wrong(findings) == {"records"}
    assert findings["records"]["advice"] == "volcano-locks doctor --repair lock/p/nightly"
    refused = command("doctor", "--store", SQLITE, "--repair", "lock/p/nightly")
    assert refused.exit_code == 64
    assert "fencing_token=-7" in refused.stderr
    assert "--yes" in refused.stderr
    assert "00000000" not in refused.stderr
    assert wrong(found(command, SQLITE, exit_code=1)) == {"records"}
    repaired = command("doctor", "--store", SQLITE, "--repair", "lock/p/nightly", "--yes", "--json")
    assert repaired.exit_code == 0
    assert json.loads(repaired.stdout) == {"store": SQLITE, "repaired": "lock/p/nightly"}
    assert wrong(found(command, SQLITE, exit_code=0)) == set()
    assert command("doctor", "--store", SQLITE, "--repair", "lock/p/nightly", "--yes").exit_code == 64


def test_the_record_of_the_clock_is_repaired_on_request(command: Command) -> None:
    """CLI-25, CLI-31, AUDIT-1: `doctor` says how, and the audit names it."""
    command("migrate", "--store", SQLITE)
    with closing(sqlite3.connect("locks.db")) as connection, connection:
        connection.execute("DELETE FROM newest_instant")
    assert "doctor --repair clock" in str(found(command, SQLITE, exit_code=1)["opens"]["found"])
    assert "doctor --repair clock" in command("serve", "--store", SQLITE, "--port", "0").stderr
    refused = command("doctor", "--store", SQLITE, "--repair", "clock")
    assert refused.exit_code == 64
    assert "clock is damaged: newest_instant has no row" in refused.stderr
    repaired = command("doctor", "--store", SQLITE, "--repair", "clock", "--yes", "--json")
    assert json.loads(repaired.stdout) == {"store": SQLITE, "repaired": "clock"}
    assert wrong(found(command, SQLITE, exit_code=0)) == set()
    with closing(sqlite3.connect("locks.db")) as connection:
        assert connection.execute("SELECT action, target_name FROM audit_entry").fetchall() == [
            ("record_repaired", "clock")
        ]
    assert command("doctor", "--store", SQLITE, "--repair", "clock", "--yes").exit_code == 64


async def test_many_damaged_records_are_counted() -> None:
    """CLI-31: the report stays short."""

    async def damaged() -> AsyncIterator[DamagedRecordError]:
        for number in range(DAMAGED_SHOWN_MAX + 5):
            yield DamagedRecordError(f"lock/p/{number}", "spoilt")

    findings = await record_findings(damaged())
    assert len(findings) == DAMAGED_SHOWN_MAX + 1
    assert "25 records are damaged" in findings[-1].found


def test_a_file_in_use_is_no_problem_but_is_not_migrated(command: Command, start: Callable[..., ServerProcess]) -> None:
    server = start("serve", "--store", SQLITE, "--port", "0")
    server.read_until(r"(listening on)")
    findings = found(command, SQLITE, exit_code=0)
    assert f"process {server.process.pid}" in str(findings["server"]["found"])
    assert findings["schema"]["good"]
    refused = command("migrate", "--store", SQLITE)
    assert refused.exit_code == 69
    assert "in use by another server" in refused.stderr


@pytest.mark.parametrize(
    ("sql", "words"),
    [("PRAGMA user_version = 99", "use a newer release"), ("PRAGMA application_id = 7", "name another file")],
)
def test_a_file_of_another_program_or_release_is_not_changed(command: Command, sql: str, words: str) -> None:
    command("migrate", "--store", SQLITE)
    with closing(sqlite3.connect("locks.db")) as connection:
        connection.execute(sql)
    before = Path("locks.db").read_bytes()
    findings = found(command, SQLITE, exit_code=1)
    assert words in str(findings["schema"]["advice"])
    assert "opens" not in findings
    assert Path("locks.db").read_bytes() == before
    assert command("migrate", "--store", SQLITE).exit_code == 69


def test_an_empty_file_and_a_file_of_another_program(command: Command) -> None:
    Path("locks.db").touch(0o600)
    assert "migrate" in str(found(command, SQLITE, exit_code=1)["schema"]["advice"])
    Path("locks.db").write_bytes(b"dear diary " * 50)
    assert wrong(found(command, SQLITE, exit_code=1)) == {"schema"}


async def test_a_clock_behind_the_file_is_found(tmp_path: Path) -> None:
    """A server would refuse to start with the same message."""
    url = f"sqlite:///{tmp_path}/locks.db"
    now = SystemClock().now_ms()
    with running_server(clock=ManualClock(now), store_url=url):
        pass
    with closing(sqlite3.connect(tmp_path / "locks.db")) as connection, connection:
        connection.execute("UPDATE newest_instant SET now_ms = ?", (now + 60_000,))
    bad = [finding for finding in await check_health(url, ManualClock(now)) if not finding.good]
    assert [finding.about for finding in bad] == ["clock"]


def test_memory_has_nothing_to_maintain(command: Command) -> None:
    for verb in ("migrate", "doctor"):
        result = command(verb, "--store", "memory://")
        assert (result.exit_code, result.stdout) == (64, "")
        assert "memory:// keeps nothing" in result.stderr
        assert command(verb, "--store", "locks.db").exit_code == 64


@pytest.mark.parametrize("scheme", ["postgresql", "etcd"])
def test_an_unreachable_store_is_reported_without_its_password(
    command: Command, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CLI-37: a URL with a password is in the variable."""
    monkeypatch.setenv("VOLCANO_LOCKS_STORE", f"{scheme}://me:hunter2@127.0.0.1:1/locks")
    for verb, exit_code in (("doctor", 1), ("migrate", 69)):
        result = command(verb)
        assert result.exit_code == exit_code
        assert "check" in result.stdout + result.stderr
        assert "hunter2" not in result.stdout + result.stderr
        assert "Traceback" not in result.stderr


def test_a_postgresql_database_before_and_after_its_migration(command: Command) -> None:
    """The tests' server does not sync, which `doctor` reports."""
    server = postgres.shared()
    url = server.url(server.new_database())
    assert wrong(found(command, url, exit_code=1)) == {"schema", "durability"}
    assert "now" in command("migrate", "--store", url).stdout
    findings = found(command, url, exit_code=1)
    assert wrong(findings) == {"durability"}, findings
    assert set(findings) == {"reachable", "version", "schema", "access", "durability", "latency", "clock", "records"}
    assert "fsync = off" in str(findings["durability"]["found"])
    assert "nothing to do" in command("migrate", "--store", url).stdout


def test_missing_rights_in_postgresql_are_reported(command: Command) -> None:
    server = postgres.shared()
    database = server.new_database()
    url = server.url(database)
    command("migrate", "--store", url)
    server.execute("CREATE ROLE reader LOGIN", database)
    server.execute("GRANT USAGE ON SCHEMA volcano_locks TO reader", database)
    server.execute("GRANT SELECT ON ALL TABLES IN SCHEMA volcano_locks TO reader", database)
    findings = found(command, url.replace("postgres@", "reader@"), exit_code=1)
    assert wrong(findings) == {"access", "durability"}


async def test_a_different_database_clock_is_found() -> None:
    server = postgres.shared()
    url = server.url(server.new_database())
    ahead = ManualClock(SystemClock().now_ms() + 30_000)
    (report,) = [finding for finding in await check_health(url, ahead) if finding.about == "clock"]
    assert not report.good
    assert "ahead of the database's" in report.found


@pytest.mark.real_time
def test_an_etcd_cluster_while_nodes_serve(command: Command) -> None:
    url = etcd.shared().url()
    assert wrong(found(command, url, exit_code=1)) == {"schema"}
    assert "none, now" in command("migrate", "--store", url).stdout
    found(command, url, exit_code=0)
    serving = subprocess.Popen(
        [PROGRAM, "serve", "--workers", "2", "--store", url, "--port", "0"],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=os.environ,
    )  # fmt: skip
    watchdog = threading.Timer(2 * WAIT_SECONDS, serving.kill)  # workers that never get ready are replaced without end
    watchdog.start()
    try:
        assert serving.stderr is not None
        assert any('"workers_ready"' in line for line in serving.stderr)
        assert "ahead of" in str(report := found(command, url, exit_code=0)["clock"]["found"]) or "behind" in report
    finally:
        watchdog.cancel()
        serving.terminate()
        serving.communicate(timeout=WAIT_SECONDS)


async def test_slow_commits_skewed_clocks_and_old_schemas_are_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    async def write() -> None:
        return

    monkeypatch.setattr(sys.modules[HealthFinding.__module__], "SLOW_MS_MAX", -1.0)
    assert not (await latency_finding(write, "look at the disk")).good
    assert [clock_finding(skew_ms, "mine", "all").good for skew_ms in (1_000, -1_000, 1_001, -1_001)] == [
        True, True, False, False,
    ]  # fmt: skip
    assert [schema_finding(version, 3).good for version in (0, 2, 3)] == [False, False, True]
