"""CLI-10: acquire, renew and release as single steps, and where the owner token stays between them."""

import json
import os
import stat
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import Result

from volcano_locks import Client, Lease
from volcano_locks.cli.lease_file import can_be_taken_over
from volcano_locks.config import default_holder

from ..conftest import Start

Invoke = Callable[..., Result]


def test_lease_goes_from_stdout_to_stdin(invoke: Invoke, key: str, client: Client) -> None:
    """Without a lease file the printed record is the lease, with its token."""
    acquired = invoke("acquire", key, "--ttl", "1h")
    assert acquired.exit_code == 0
    record = json.loads(acquired.stdout)
    assert record["key"] == key
    assert record["expires_at"].endswith("Z")
    renewed = invoke("renew", "--lease-file", "-", "--ttl", "2h", stdin=acquired.stdout)
    assert json.loads(renewed.stdout)["fencing_token"] == record["fencing_token"]
    assert json.loads(renewed.stdout)["expires_at"] > record["expires_at"]
    released = invoke("release", "--lease-file", "-", stdin=renewed.stdout)
    assert (released.exit_code, released.output) == (0, "")
    assert not client.locks.get(key).held


def test_lease_file_is_readable_by_its_owner_alone(invoke: Invoke, key: str, tmp_path: Path) -> None:
    """CLI-2: the token is in the file and in no output; release removes the file."""
    file = tmp_path / "lease"
    acquired = invoke("acquire", key, "--lease-file", str(file))
    token = json.loads(file.read_text())["token"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert acquired.stdout.startswith(f"{key} is held\nuntil ")
    before = file.read_text()
    renewed = invoke("renew", "--lease-file", str(file), "--ttl", "1h", "--json")
    assert set(json.loads(renewed.stdout)) == {"expires_at", "fencing_token"}
    assert file.read_text() != before
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert token not in acquired.output + renewed.output
    assert invoke("release", key, "--lease-file", str(file)).exit_code == 0
    assert list(tmp_path.iterdir()) == []


def test_token_can_come_from_the_environment(invoke: Invoke, key: str, client: Client) -> None:
    lease = client.locks.acquire(key, ttl=30)
    renewed = invoke("renew", key, "--ttl", "1h", VOLCANO_LOCK_TOKEN=lease.token)
    assert renewed.exit_code == 0
    assert lease.token not in renewed.output
    assert invoke("release", key, VOLCANO_LOCK_TOKEN=lease.token).exit_code == 0
    assert not client.locks.get(key).held


def test_lost_lease_is_76(invoke: Invoke, key: str, client: Client) -> None:
    """CLI-4: a renew or release by a former holder."""
    record = invoke("acquire", key).stdout
    client.locks.force_release(key)
    client.locks.acquire(key, ttl=30)
    assert invoke("renew", "--lease-file", "-", stdin=record).exit_code == 76
    assert invoke("release", "--lease-file", "-", stdin=record).exit_code == 76
    assert client.locks.get(key).held


def test_held_lock_is_75_and_leaves_no_file(invoke: Invoke, key: str, client: Client, tmp_path: Path) -> None:
    """CLI-10: the message has the holder and the expiry, as in `run`."""
    lease = client.locks.acquire(key, ttl=30)
    result = invoke("acquire", key, "--lease-file", str(tmp_path / "lease"))
    assert (result.exit_code, result.stdout) == (75, "")
    until = f"{lease.expires_at:%Y-%m-%dT%H:%M:%SZ}"
    assert f"{key} is held by {default_holder()} until {until} unless renewed; nothing was acquired" in result.stderr
    assert "-w DURATION waits for the lock" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_unwritable_lease_file_is_found_before_the_acquire(
    invoke: Invoke, key: str, client: Client, tmp_path: Path
) -> None:
    """A lease that cannot be stored could not be released."""
    result = invoke("acquire", key, "--lease-file", str(tmp_path / "no" / "folder"))
    assert result.exit_code == 74
    assert not client.locks.get(key).held


def store_lease(file: Path, key: str, seconds: float) -> str:
    """Writes a lease of `key` that ends in that many seconds to `file`. Returns the content."""
    expires_at = datetime.now(UTC) + timedelta(seconds=seconds)
    file.write_text(json.dumps(Lease(key, str(uuid.uuid4()), 30, expires_at, 7).to_record()))
    return file.read_text()


def test_another_locks_lease_is_not_overwritten_while_alive(
    invoke: Invoke, key: str, client: Client, tmp_path: Path
) -> None:
    """CLI-10: without its owner token that lock could not be released."""
    file = tmp_path / "lease"
    assert invoke("acquire", f"{key}-one", "--lease-file", str(file)).exit_code == 0
    before = file.read_text()
    result = invoke("acquire", key, "--lease-file", str(file))
    assert (result.exit_code, result.stdout) == (64, "")
    assert f"{file} contains the lease of {key}-one" in result.stderr
    assert f"volcano-locks release --lease-file {file}" in result.stderr
    assert "another file" in result.stderr
    assert file.read_text() == before
    assert list(tmp_path.iterdir()) == [file]
    assert not client.locks.get(key).held
    assert invoke("release", "--lease-file", str(file)).exit_code == 0
    assert invoke("acquire", key, "--lease-file", str(file)).exit_code == 0


def test_another_locks_lease_is_overwritten_after_its_grace(invoke: Invoke, key: str, tmp_path: Path) -> None:
    """CLI-10: a second after its expiry."""
    store_lease(tmp_path / "lease", f"{key}-one", -2)
    assert invoke("acquire", key, "--lease-file", str(tmp_path / "lease")).exit_code == 0
    expiry = datetime(2026, 7, 22, 9, 0, 40, tzinfo=UTC)
    lease = Lease("k", str(uuid.uuid4()), 30, expiry, 7)
    assert not can_be_taken_over(lease, expiry + timedelta(seconds=0.999))
    assert can_be_taken_over(lease, expiry + timedelta(seconds=1))


def test_the_server_decides_about_a_lease_of_the_same_lock(
    invoke: Invoke, key: str, client: Client, tmp_path: Path
) -> None:
    """CLI-10: a live lease is refused with 75, and a lost one is replaced."""
    file = tmp_path / "lease"
    assert invoke("acquire", key, "--lease-file", str(file)).exit_code == 0
    before = file.read_text()
    assert invoke("acquire", key, "--lease-file", str(file)).exit_code == 75
    assert file.read_text() == before
    client.locks.force_release(key)
    assert invoke("acquire", key, "--lease-file", str(file)).exit_code == 0
    assert file.read_text() != before


def test_a_file_without_a_lease_is_not_overwritten(invoke: Invoke, key: str, client: Client, tmp_path: Path) -> None:
    """CLI-10; an empty file, as created by `mktemp`, is overwritten."""
    file = tmp_path / "lease"
    file.write_text("dear diary")
    result = invoke("acquire", key, "--lease-file", str(file))
    assert result.exit_code == 64
    assert "another file" in result.stderr
    assert file.read_text() == "dear diary"
    os.mkfifo(tmp_path / "pipe")
    assert invoke("acquire", key, "--lease-file", str(tmp_path / "pipe")).exit_code == 64
    assert not client.locks.get(key).held
    file.write_text("")
    assert invoke("acquire", key, "--lease-file", str(file)).exit_code == 0


def test_a_lease_written_during_the_wait_is_not_overwritten(
    start: Start, key: str, client: Client, tmp_path: Path, until: Callable[..., None]
) -> None:
    """CLI-10: the lock is released again."""
    lease = client.locks.acquire(key, ttl=30)
    process = start("acquire", key, "-w", "20s", "--lease-file", str(tmp_path / "lease"))
    until(lambda: list(tmp_path.iterdir()))
    before = store_lease(tmp_path / "lease", f"{key}-one", 30)
    client.locks.release(key, lease)
    _, stderr = process.communicate()
    assert process.returncode == 64
    assert f"contains the lease of {key}-one" in stderr
    assert (tmp_path / "lease").read_text() == before
    assert not client.locks.get(key).held


@pytest.mark.parametrize("content", ["", "nonsense", "[]", "{}", '{"key": 1}'])
def test_a_file_without_a_lease_is_64(invoke: Invoke, tmp_path: Path, content: str) -> None:
    (tmp_path / "lease").write_text(content)
    for command in ("renew", "release"):
        result = invoke(command, "--lease-file", str(tmp_path / "lease"))
        assert result.exit_code == 64
        assert f"{tmp_path / 'lease'} does not contain a lease" in result.stderr


def test_release_with_another_key_changes_nothing(invoke: Invoke, key: str, client: Client) -> None:
    record = invoke("acquire", key).stdout
    assert invoke("release", "another", "--lease-file", "-", stdin=record).exit_code == 64
    assert client.locks.get(key).held


def test_no_lease_is_64_and_an_invalid_token_is_not_shown(invoke: Invoke) -> None:
    """CLI-2, CLI-4."""
    assert invoke("release").exit_code == 64
    assert invoke("release", "k").exit_code == 64
    secret = "00000000-not-a-uuid-5ecret"
    result = invoke("release", "k", VOLCANO_LOCK_TOKEN=secret)
    assert result.exit_code == 64
    assert secret not in result.output


def test_no_command_takes_a_secret_as_an_argument(invoke: Invoke) -> None:
    """CLI-2: every user can read arguments."""
    for command in (["run"], ["acquire"], ["renew"], ["release"], ["get"], ["key", "list"], ["project", "list"]):
        text = invoke(*command, "--help").stdout
        assert "--token" not in text
        assert "--service-key " not in text
        assert "--admin-token " not in text


def test_a_lease_that_cannot_be_printed_is_released(start: Start, key: str, client: Client) -> None:
    """CLI-10: its owner token would be lost."""
    process = start("acquire", key)
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(60) == 74
    assert not client.locks.get(key).held
