"""CLI-10: acquire, renew and release as single steps, and where the owner token may stay meanwhile."""

import json
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from volcano_locks import Client

Invoke = Callable[..., Result]


def test_lease_goes_from_stdout_to_stdin(invoke: Invoke, key: str, client: Client) -> None:
    """Without a lease file the printed record, token included, is the lease."""
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


def test_lease_stays_in_a_file_for_its_owner_alone(invoke: Invoke, key: str, tmp_path: Path) -> None:
    """CLI-2: the token is in the file and nowhere in the output; the file ends with the lease."""
    file = tmp_path / "lease"
    acquired = invoke("acquire", key, "--lease-file", str(file))
    token = json.loads(file.read_text())["token"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "held until" in acquired.stdout
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
    """CLI-4: renew and release by one who no longer holds."""
    record = invoke("acquire", key).stdout
    client.locks.force_release(key)
    client.locks.acquire(key, ttl=30)
    assert invoke("renew", "--lease-file", "-", stdin=record).exit_code == 76
    assert invoke("release", "--lease-file", "-", stdin=record).exit_code == 76
    assert client.locks.get(key).held


def test_held_lock_is_75_and_leaves_no_file(invoke: Invoke, key: str, client: Client, tmp_path: Path) -> None:
    client.locks.acquire(key, ttl=30)
    result = invoke("acquire", key, "--lease-file", str(tmp_path / "lease"))
    assert (result.exit_code, result.stdout) == (75, "")
    assert f"{key} is held by another" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_place_that_cannot_keep_a_lease_is_found_first(
    invoke: Invoke, key: str, client: Client, tmp_path: Path
) -> None:
    """A lease nobody could release would be in everybody's way."""
    result = invoke("acquire", key, "--lease-file", str(tmp_path / "no" / "folder"))
    assert result.exit_code == 74
    assert not client.locks.get(key).held


@pytest.mark.parametrize("content", ["", "nonsense", "[]", "{}", '{"key": 1}'])
def test_what_is_no_lease_is_64(invoke: Invoke, tmp_path: Path, content: str) -> None:
    (tmp_path / "lease").write_text(content)
    for command in ("renew", "release"):
        result = invoke(command, "--lease-file", str(tmp_path / "lease"))
        assert result.exit_code == 64
        assert f"no lease in {tmp_path / 'lease'}" in result.stderr


def test_lease_of_another_key_is_not_touched(invoke: Invoke, key: str, client: Client) -> None:
    record = invoke("acquire", key).stdout
    assert invoke("release", "another", "--lease-file", "-", stdin=record).exit_code == 64
    assert client.locks.get(key).held


def test_no_lease_named_is_64_and_a_bad_token_is_not_repeated(invoke: Invoke) -> None:
    """CLI-2, CLI-4."""
    assert invoke("release").exit_code == 64
    assert invoke("release", "k").exit_code == 64
    secret = "00000000-not-a-uuid-5ecret"
    result = invoke("release", "k", VOLCANO_LOCK_TOKEN=secret)
    assert result.exit_code == 64
    assert secret not in result.output


def test_no_command_takes_a_secret_as_an_argument(invoke: Invoke) -> None:
    """CLI-2: arguments are everybody's to read."""
    for command in (["run"], ["acquire"], ["renew"], ["release"], ["get"], ["key", "list"], ["project", "list"]):
        text = invoke(*command, "--help").stdout
        assert "--token" not in text
        assert "--service-key " not in text
        assert "--admin-token " not in text
