"""CLI-17, CLI-19: `verify` from the shell, with a correct server and with an unreachable one."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest
from click.testing import Result

from volcano_locks.cli.verify.all_checks import CHECKS
from volcano_locks_server.testing import RunningServer, running_server

from ..conftest import Start

Invoke = Callable[..., Result]

REQUESTS_MAX = 230
"""Of a whole run and a run of `ours` together."""

ATTEMPTS = 3
"""If the machine stalls for most of a second, the checks around an expiry are inconclusive (CLI-19)."""


@pytest.fixture
def server() -> Iterator[RunningServer]:
    """A server for this module, because a run uses much quota. Its quota is enough for all attempts."""
    with running_server() as running:
        httpx2.patch(
            f"{running.url}/projects/{running.project_id}",
            headers={"Authorization": f"Bearer {running.admin_token}"},
            json={"requests_per_minute": 2 * ATTEMPTS * REQUESTS_MAX},
        ).raise_for_status()
        yield running


def _remaining(server: RunningServer) -> tuple[int, str]:
    response = httpx2.get(f"{server.url}/locks/quota", headers={"Authorization": f"Bearer {server.service_key}"})
    return int(response.headers["X-RateLimit-Remaining"]), response.headers["X-RateLimit-Reset"]


@pytest.mark.real_time
def test_every_promise_holds_in_two_runs_at_once_as_text_and_json(
    start: Start, server: RunningServer, tmp_path: Path, environment: dict[str, str]
) -> None:
    """CLI-17, CLI-18, CLI-19: the two runs do not affect each other."""
    key_file = tmp_path / "service-key"
    key_file.write_text(server.service_key)
    without_key = {name: value for name, value in environment.items() if name != "VOLCANO_SERVICE_KEY"}
    for _ in range(ATTEMPTS):
        before, minute = _remaining(server)
        text = start("verify")
        as_json = start("verify", "--only", "ours", "--json", "--service-key-file", str(key_file), env=without_key)
        lines, messages = text.communicate()
        json_output, json_messages = as_json.communicate()
        after, minute_after = _remaining(server)
        if "responses came too late for a verdict" not in lines + json_output:
            break

    assert text.returncode == 0, lines
    names = [check.name for check in CHECKS]
    width = max(map(len, names))
    assert [(line[:6].strip(), line[8:14].strip(), line[16 : 16 + width].strip()) for line in lines.splitlines()] == [
        ("ok", check.whose, check.name) for check in CHECKS
    ]
    assert f"{len(CHECKS)} checks" in messages
    assert "\x1b" not in messages

    assert as_json.returncode == 0, json_output
    report = json.loads(json_output)
    ours = [check for check in CHECKS if check.whose == "ours"]
    assert (report["holds"], report["api_url"]) == (True, server.url)
    assert [(one["name"], one["whose"], one["rules"], one["holds"]) for one in report["checks"]] == [
        (check.name, "ours", list(check.rules), True) for check in ours
    ]
    assert server.service_key not in lines + messages + json_output + json_messages
    assert minute_after != minute or before - after <= REQUESTS_MAX


def test_a_refused_key_is_77_and_nothing_is_tested(invoke: Invoke) -> None:
    """CLI-4, CLI-17."""
    result = invoke("verify", VOLCANO_SERVICE_KEY="sk-unknown")
    assert (result.exit_code, result.stdout) == (77, "")


def test_an_unreachable_server_is_69(invoke: Invoke) -> None:
    """CLI-4, CLI-17."""
    result = invoke("verify", VOLCANO_API_URL="http://127.0.0.1:1")
    assert (result.exit_code, result.stdout) == (69, "")


@pytest.mark.parametrize("arguments", [("--ttl", "4s"), ("--ttl", "21s"), ("--only", "theirs")])
def test_invalid_options_are_64(invoke: Invoke, arguments: tuple[str, ...]) -> None:
    """CLI-4."""
    assert invoke("verify", *arguments).exit_code == 64


def test_one_promise_that_does_not_hold_is_1(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    """CLI-17."""
    from volcano_locks.cli.verify import all_checks

    released = [check for check in CHECKS if check.name == "a release frees the lock"]
    broken = [check._replace(run=_breaks, name="a promise that does not hold") for check in released]
    monkeypatch.setattr(all_checks, "CHECKS", (*released, *broken))
    result = invoke("verify")
    assert result.exit_code == 1
    verdicts = [line.split()[0] for line in result.stdout.splitlines()]
    assert verdicts == ["ok", "FAILED"]
    assert "1 of 2 promises" in result.stderr
    as_json = invoke("verify", "--json")
    assert as_json.exit_code == 1
    report = json.loads(as_json.stdout)
    assert (report["holds"], [one["holds"] for one in report["checks"]]) == (False, [True, False])


def test_every_check_has_a_kind_and_rules() -> None:
    """CLI-18."""
    assert len({check.name for check in CHECKS}) == len(CHECKS)
    assert {check.whose for check in CHECKS} == {"public", "ours"}
    assert all(check.rules for check in CHECKS)


async def _breaks(_room: object) -> str:
    from volcano_locks.cli.verify.http_client import BrokenPromise

    raise BrokenPromise("it did not hold")
