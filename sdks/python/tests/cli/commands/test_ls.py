"""CLI-29: the list of locks, as a table and as JSON."""

import json
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
from click.testing import Result

from volcano_locks import Client
from volcano_locks.cli.durations import span_text
from volcano_locks.cli.renewals import is_not_renewing
from volcano_locks_server.testing import RunningServer

from ..terminal_session import lines_on_terminal

Invoke = Callable[..., Result]


@pytest.fixture
def ada(server: RunningServer) -> Iterator[Client]:
    """A client with a known holder label."""
    with Client(server.url, server.service_key, holder="host/4121") as found:
        yield found


def test_a_row_has_the_holder_the_times_and_the_waiters(invoke: Invoke, key: str, ada: Client) -> None:
    """CLI-29."""
    held = ada.locks.acquire(f"{key}:held", ttl=7_776_000)
    freed = ada.locks.acquire(f"{key}:long-since-free", ttl=30)
    ada.locks.release(freed.key, freed)
    result = invoke("ls", key)
    assert result.exit_code == 0
    headings, first, second = result.stdout.splitlines()
    assert headings.split("  ")[0] == "KEY"
    cells = first.split()
    assert cells == [held.key, "host/4121", *cells[2:4], "89d", "23h", *cells[6:9], "0", str(held.fencing_token)]
    assert second.split() == [freed.key, "-", "free", "-", "-", "0", str(freed.fencing_token)]
    assert first[headings.index("RENEWED") :].split("  ")[0].endswith(" s ago")
    assert {line[headings.index("WAITERS")] for line in (first, second)} == {"0"}
    assert str(held.token) not in result.stdout


def test_filters_by_state_and_prefix(invoke: Invoke, key: str, ada: Client) -> None:
    ada.locks.acquire(f"{key}:held", ttl=60)
    ada.locks.release(f"{key}:free", ada.locks.acquire(f"{key}:free", ttl=60))

    def listed(*arguments: str) -> list[str]:
        found = json.loads(invoke("ls", *arguments, "--json").stdout)
        return [item["key"].removeprefix(key) for item in found["items"]]

    assert listed(key) == [":free", ":held"]
    assert listed(key, "--held") == [":held"]
    assert listed(key, "--free") == [":free"]
    assert listed(f"{key}:h") == [":held"]


def test_json_has_the_rows_of_the_api(invoke: Invoke, key: str, ada: Client) -> None:
    """CLI-29, CLI-1: one object."""
    lease = ada.locks.acquire(key, ttl=60)
    (row,) = json.loads(invoke("ls", key, "--json").stdout)["items"]
    assert row.pop("acquired_at").endswith("Z")
    assert row.pop("expires_at") == lease.expires_at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    assert row.pop("renewed_at").endswith("Z")
    assert row == {
        "key": key,
        "held": True,
        "holder": "host/4121",
        "ttl_seconds": 60,
        "fencing_token": lease.fencing_token,
        "waiters": 0,
    }


def test_no_match_is_exit_code_0_without_data(invoke: Invoke, key: str) -> None:
    """CLI-29."""
    result = invoke("ls", key, "--held")
    assert (result.exit_code, result.stdout) == (0, "")
    assert f"no held locks with keys that begin with {key}" in result.stderr
    result = invoke("ls", key, "--json")
    assert (result.exit_code, json.loads(result.stdout), result.stderr) == (0, {"items": []}, "")


def test_a_lock_whose_renewals_have_stopped_is_found(invoke: Invoke, key: str, ada: Client) -> None:
    """CLI-29: half of its TTL, and a second, have passed since the last renewal."""
    renewing = ada.locks.acquire(f"{key}:renewing", ttl=60)
    view = ada.locks.view(renewing.key)
    assert view.renewed_at is not None
    assert [is_not_renewing(view, view.renewed_at + timedelta(seconds=late)) for late in (31, 31.1)] == [False, True]
    result = invoke("ls", key, "--not-renewing")
    assert (result.exit_code, result.stdout) == (0, "")
    assert f"no held locks with keys that begin with {key} whose renewals have stopped" in result.stderr


def test_rows_fit_a_terminal_of_80_columns(key: str, ada: Client, environment: dict[str, str]) -> None:
    """CLI-29, CLI-1: the fencing token is omitted first, then names are truncated."""
    ada.locks.acquire(f"{key}:{'x' * 60}", ttl=60)
    headings, row = lines_on_terminal(environment, "ls", key)
    assert headings.split("  ")[-1] == "WAITERS"
    assert len(row) <= 80
    assert "…" in row
    assert "host/4121" in row


def test_usage_errors_are_64(invoke: Invoke) -> None:
    """CLI-4."""
    assert invoke("ls", "--held", "--free").exit_code == 64
    assert "--not-renewing or --free" in invoke("ls", "--not-renewing", "--free").stderr
    result = invoke("ls", "a b")
    assert result.exit_code == 64
    assert "prefix" in result.stderr


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-3, "0 s"), (59.9, "59 s"), (60, "1m 0s"), (3599, "59m 59s"), (3600, "1h 0m"), (90_061, "1d 1h")],
)
def test_span_text_has_at_most_two_units(seconds: float, text: str) -> None:
    assert span_text(seconds) == text
