"""CLI-27, CLI-28: the same crontab line on every host runs a job once and prints nothing on the other hosts."""

from pathlib import Path

import pytest

from volcano_locks import Client

from ..conftest import Start


def test_a_job_that_ends_sooner_keeps_the_lock_held(start: Start, key: str, client: Client) -> None:
    """CLI-27: `run` itself ends with the job."""
    process = start("run", key, "--hold-at-least", "1h", "--", "echo", "ran")
    assert process.communicate() == ("ran\n", "")
    view = client.locks.view(key)
    assert view.held
    assert view.ttl_seconds is not None
    assert 3500 < view.ttl_seconds <= 3600
    late = start("run", key, "--hold-at-least", "1h", "--skip-ok", "--", "echo", "again")
    assert late.communicate() == ("", "")
    assert late.returncode == 0


def test_the_exit_code_is_the_commands_own_while_the_lock_stays_held(start: Start, key: str, client: Client) -> None:
    """CLI-27, CLI-8."""
    process = start("run", key, "--hold-at-least", "60s", "--", "sh", "-c", "exit 7")
    process.communicate()
    assert process.returncode == 7
    assert client.locks.get(key).held


def test_a_command_that_was_not_run_releases_the_lock(start: Start, key: str, client: Client, tmp_path: Path) -> None:
    """CLI-27: another host may have the interpreter that this one lacks."""
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    process = start("run", key, "--hold-at-least", "60s", "--", str(script))
    process.communicate()
    assert process.returncode == 127
    assert not client.locks.get(key).held


@pytest.mark.parametrize("wait", [(), ("-w", "1s")])
def test_skip_ok_is_silent_about_a_held_lock(start: Start, key: str, client: Client, wait: tuple[str, ...]) -> None:
    """CLI-28."""
    client.locks.acquire(key, ttl=60)
    process = start("run", key, "--skip-ok", *wait, "--", "echo", "ran")
    assert process.communicate() == ("", "")
    assert process.returncode == 0


def test_skip_ok_reports_other_failures(start: Start, environment: dict[str, str]) -> None:
    """CLI-28."""
    unreachable = start(
        "run", "k", "--skip-ok", "--", "true", env=environment | {"VOLCANO_API_URL": "http://127.0.0.1:9"}
    )
    _, err = unreachable.communicate()
    assert unreachable.returncode == 69
    assert err


def test_skip_ok_and_not_acquired_code_exclude_each_other(start: Start) -> None:
    """CLI-28."""
    process = start("run", "k", "--skip-ok", "-E", "3", "--", "true")
    _, err = process.communicate()
    assert process.returncode == 64
    assert "use --skip-ok or -E, not both" in err
