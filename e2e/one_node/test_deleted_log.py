"""A killed SQLite server whose write-ahead log was deleted, merged by another program, or not copied along (OPS-11)."""

import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import httpx2
import pytest
from testsupport.lease_holders import request
from testsupport.server_process import ADMIN_TOKEN, PROGRAM, ServerExitedError, ServerProcess

pytestmark = pytest.mark.real_time

LEASE = {"ttl_seconds": 300}  # longer than the starts of a busy machine take


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "locks.db"


@pytest.fixture
def server(file: Path) -> Iterator[ServerProcess]:
    process = ServerProcess(f"sqlite:///{file}")
    process.start()
    yield process
    process.close()


def log_of(file: Path) -> Path:
    return file.with_name("locks.db-wal")


def test_a_start_without_the_log_of_a_killed_server_is_refused(server: ServerProcess, file: Path) -> None:
    """LEASE-14, OPS-11, case 72: its last commits were only there. With the log the server goes on."""
    service_key = server.new_service_key()
    assert request("POST", server.url, "a", service_key, body=LEASE).status_code == 201
    server.kill()
    kept = log_of(file).rename(file.with_name("kept"))
    for _ in range(2):
        with pytest.raises(ServerExitedError, match="write-ahead log beside the file is gone") as caught:
            server.start()
        assert caught.value.exit_code == 69
        assert "volcano-locks restore" in caught.value.output
    doctor = subprocess.run(
        [PROGRAM, "doctor", "--store", f"sqlite:///{file}"], check=False, capture_output=True, text=True
    )
    assert doctor.returncode == 1
    assert "write-ahead log beside the file is gone" in doctor.stdout
    kept.rename(log_of(file))
    server.start()
    assert request("POST", server.url, "a", service_key, body=LEASE).status_code == 409


def test_a_start_after_another_program_merged_the_log_goes_on(server: ServerProcess, file: Path) -> None:
    """OPS-11, LEASE-14: an operator looked into the file. Nothing is lost, and holders keep their leases."""
    service_key, token = server.new_service_key(), str(uuid4())
    assert request("POST", server.url, "a", service_key, token=token, body=LEASE).status_code == 201
    server.kill()
    with closing(sqlite3.connect(file)) as other:
        assert other.execute("SELECT count(*) FROM lock WHERE key = 'a'").fetchone() == (1,)
    assert not log_of(file).exists()
    server.start()
    assert request("POST", server.url, "a", service_key, body=LEASE).status_code == 409
    assert request("PATCH", server.url, "a", service_key, token=token, body=LEASE).status_code == 200


def test_a_start_without_a_revocation_is_refused(server: ServerProcess, file: Path) -> None:
    """OPS-11: the last commit was no lease, but the revocation of a key. The refusal leaves the file as it is."""
    server.new_service_key()
    server.terminate()
    server.start()
    with httpx2.Client(base_url=server.url, headers={"Authorization": f"Bearer {ADMIN_TOKEN}"}) as admin:
        (project,) = admin.get("/projects").json()["items"]
        address = f"/projects/{project['id']}/service-keys"
        (key,) = admin.get(address).json()["items"]
        assert admin.delete(f"{address}/{key['id']}").status_code == 204
    server.kill()
    log_of(file).unlink()
    before = file.read_bytes()
    for _ in range(2):
        with pytest.raises(ServerExitedError, match="write-ahead log beside the file is gone"):
            server.start()
        assert file.read_bytes() == before
        assert not log_of(file).exists()


def test_a_restore_of_the_file_itself_is_the_way_out(server: ServerProcess, file: Path) -> None:
    """KEEP-6, OPS-11."""
    server.new_service_key()
    server.terminate()
    server.start()
    server.kill()
    log_of(file).unlink()
    copy = file.with_name("copy.db")
    shutil.copy(file, copy)
    restore: list[str | Path] = [PROGRAM, "restore", "--from", copy, "--store", f"sqlite:///{file}"]
    subprocess.run([*restore, "--hold-seconds", "0"], check=True, capture_output=True)
    server.start()


@pytest.mark.parametrize("is_killed", [True, False])
def test_a_start_after_an_end_of_any_kind_is_not_refused(server: ServerProcess, file: Path, is_killed: bool) -> None:
    """OPS-11: also if a command has merged the log meanwhile, and if the file was deleted with its log."""
    store = ["--store", f"sqlite:///{file}"]
    for command in (["doctor", *store], ["backup", *store, "--to", str(file.with_name("backup.db"))]):
        if is_killed:
            server.kill()
        else:
            server.terminate()
        subprocess.run([PROGRAM, *command], check=True, capture_output=True)
        server.start()
    server.kill()
    file.unlink()
    log_of(file).unlink()
    server.start()
