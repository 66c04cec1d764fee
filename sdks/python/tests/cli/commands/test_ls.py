"""CLI-29: the list of locks, as a table and as JSON."""

import json
import os
import pty
import subprocess
from collections.abc import Callable, Iterator

import pytest
from click.testing import Result

from volcano_locks import Client
from volcano_locks.cli.durations import span_text
from volcano_locks_server.testing import RunningServer

from ..conftest import PROGRAM, WAIT_SECONDS

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
    assert first.split() == [held.key, "host/4121", *first.split()[2:4], "89d", "23h", "0", str(held.fencing_token)]
    assert second.split() == [freed.key, "-", "free", "-", "0", str(freed.fencing_token)]
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


def test_rows_fit_a_terminal_of_80_columns(key: str, ada: Client, environment: dict[str, str]) -> None:
    """CLI-29, CLI-1: the fencing token is omitted first, then names are truncated."""
    ada.locks.acquire(f"{key}:{'x' * 60}", ttl=60)
    our_end, process_end = pty.openpty()
    process = subprocess.Popen(
        [*PROGRAM, "ls", key], env=environment | {"COLUMNS": "80"}, stdout=process_end, stdin=subprocess.DEVNULL
    )
    os.close(process_end)
    assert process.wait(WAIT_SECONDS) == 0
    headings, row = os.read(our_end, 65_536).decode().splitlines()
    os.close(our_end)
    assert headings.endswith("EXPIRES IN  WAITERS")
    assert len(row) <= 80
    assert "…" in row
    assert "host/4121" in row


def test_usage_errors_are_64(invoke: Invoke) -> None:
    """CLI-4."""
    assert invoke("ls", "--held", "--free").exit_code == 64
    result = invoke("ls", "a b")
    assert result.exit_code == 64
    assert "prefix" in result.stderr


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-3, "0 s"), (59.9, "59 s"), (60, "1m 0s"), (3599, "59m 59s"), (3600, "1h 0m"), (90_061, "1d 1h")],
)
def test_span_text_has_at_most_two_units(seconds: float, text: str) -> None:
    assert span_text(seconds) == text
