"""CLI-27, CLI-28: the same line in every host's crontab runs a job once, and says nothing where it does not."""

from pathlib import Path

import pytest

from volcano_locks import Client

from .conftest import Start


def test_a_job_that_ends_sooner_leaves_the_lock_taken(start: Start, key: str, client: Client) -> None:
    """CLI-27: and does not wait for it."""
    process = start("run", key, "--hold-at-least", "1h", "--", "echo", "ran")
    assert process.communicate() == ("ran\n", "")
    view = client.locks.view(key)
    assert view.held
    assert view.ttl_seconds is not None
    assert 3500 < view.ttl_seconds <= 3600
    late = start("run", key, "--hold-at-least", "1h", "--skip-ok", "--", "echo", "again")
    assert late.communicate() == ("", "")
    assert late.returncode == 0


def test_the_code_is_the_commands_own_also_while_the_lock_is_held_on(start: Start, key: str, client: Client) -> None:
    """CLI-27, CLI-8."""
    process = start("run", key, "--hold-at-least", "60s", "--", "sh", "-c", "exit 7")
    process.communicate()
    assert process.returncode == 7
    assert client.locks.get(key).held


def test_what_was_not_run_keeps_nobody_away(start: Start, key: str, client: Client, tmp_path: Path) -> None:
    """CLI-27: an interpreter that this host does not have may be there on the next."""
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    process = start("run", key, "--hold-at-least", "60s", "--", str(script))
    process.communicate()
    assert process.returncode == 127
    assert not client.locks.get(key).held


@pytest.mark.parametrize("wait", [(), ("-w", "1s")])
def test_a_held_lock_is_passed_over_in_silence(start: Start, key: str, client: Client, wait: tuple[str, ...]) -> None:
    """CLI-28."""
    client.locks.acquire(key, ttl=60)
    process = start("run", key, "--skip-ok", *wait, "--", "echo", "ran")
    assert process.communicate() == ("", "")
    assert process.returncode == 0


def test_other_failures_are_not_passed_over(start: Start, environment: dict[str, str]) -> None:
    """CLI-28."""
    away = start("run", "k", "--skip-ok", "--", "true", env=environment | {"VOLCANO_API_URL": "http://127.0.0.1:9"})
    _, err = away.communicate()
    assert away.returncode == 69
    assert err


def test_two_codes_for_one_thing_are_refused(start: Start) -> None:
    """CLI-28."""
    process = start("run", "k", "--skip-ok", "-E", "3", "--", "true")
    _, err = process.communicate()
    assert process.returncode == 64
    assert "--skip-ok and -E exclude each other" in err
