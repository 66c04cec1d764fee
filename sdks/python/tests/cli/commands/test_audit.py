"""CLI-40: the audit as a table and as JSON."""

import json
import re
from collections.abc import Callable

from click.testing import Result

from volcano_locks import Client
from volcano_locks_server.testing import RunningServer

from ..terminal_session import lines_on_terminal

Invoke = Callable[..., Result]


def test_it_shows_who_forced_a_lock_free_and_why(
    invoke: Invoke, server: RunningServer, client: Client, key: str
) -> None:
    client.locks.acquire(key, ttl=60)
    forced = invoke("force-release", key, "--yes", "--reason", "it hung")
    assert forced.exit_code == 0, forced.output
    result = invoke("audit", "--admin", "--limit", "5")
    assert result.exit_code == 0, result.output
    headings, *rows = result.stdout.splitlines()
    assert headings.split() == ["WHEN", "WHO", "FROM", "WHAT", "CHANGE", "REASON"]
    (row,) = [row for row in rows if key in row]
    assert f"force released {key}" in row
    assert "test" in row.split("  ")[1]
    assert "127.0.0.1" in row
    assert row.endswith("it hung")


def test_a_narrow_terminal_shows_a_paragraph_for_each_entry(
    client: Client, key: str, environment: dict[str, str]
) -> None:
    client.locks.acquire(key, ttl=60)
    client.locks.force_release(key, reason="it hung, and no one could reach its host")
    when, by, why, *_change = lines_on_terminal(environment, "audit", "--admin", "--limit", "1")[:4]
    assert re.fullmatch(rf"[0-9-]{{10}} [0-9:]{{8}}  force released {key}", when)
    assert by == "    by test from 127.0.0.1"
    assert why == "    reason: it hung, and no one could reach its host"


def test_a_quota_is_shown_before_and_after(invoke: Invoke, server: RunningServer, key: str) -> None:
    assert invoke("project", "create", key[:60]).exit_code == 0
    assert invoke("project", "set", key[:60], "--requests-per-minute", "7").exit_code == 0
    result = invoke("audit", "--admin", "--project", key[:60])
    assert "requests_per_minute 600 → 7" in result.stdout
    assert len(result.stdout.splitlines()) == 3


def test_a_service_key_shows_its_own_project(invoke: Invoke, server: RunningServer, key: str) -> None:
    assert invoke("force-release", key, "--yes").exit_code == 0
    shown = invoke("audit", "--project", server.project_id, "--json", "--limit", "1")
    assert shown.exit_code == 0, shown.output
    (item,) = json.loads(shown.stdout)["items"]
    assert (item["action"], item["target"]["name"]) == ("force_released", key)
    assert "there are more" in shown.stderr
    assert invoke("audit", "--json", "--limit", "1").stdout == shown.stdout


def test_since_limits_the_time(invoke: Invoke, server: RunningServer, key: str) -> None:
    refused = invoke("audit", "--admin", "--since", "yesterday")
    assert refused.exit_code == 64
    assert invoke("audit", "--admin", "--since", "1d").exit_code == 0
