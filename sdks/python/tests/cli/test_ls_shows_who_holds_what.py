"""CLI-29: the list of locks, for people and for programs."""

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

from .conftest import PROGRAM, WAIT_SECONDS

Invoke = Callable[..., Result]


@pytest.fixture
def ada(server: RunningServer) -> Iterator[Client]:
    """A worker whose label is known."""
    with Client(server.url, server.service_key, holder="host/4121") as found:
        yield found


def test_a_row_tells_who_since_when_until_when_and_how_many_wait(invoke: Invoke, key: str, ada: Client) -> None:
    """CLI-29."""
    held = ada.locks.acquire(f"{key}:held", ttl=7_776_000)
    freed = ada.locks.acquire(f"{key}:long-since-free", ttl=30)
    ada.locks.release(freed.key, freed)
    result = invoke("ls", key)
    assert result.exit_code == 0
    heads, first, second = result.stdout.splitlines()
    assert heads.split("  ")[0] == "KEY"
    assert first.split() == [held.key, "host/4121", *first.split()[2:4], "89d", "23h", "0", str(held.fencing_token)]
    assert second.split() == [freed.key, "-", "free", "-", "0", str(freed.fencing_token)]
    assert {line[heads.index("WAITERS")] for line in (first, second)} == {"0"}
    assert str(held.token) not in result.stdout


def test_states_and_prefixes_choose(invoke: Invoke, key: str, ada: Client) -> None:
    ada.locks.acquire(f"{key}:held", ttl=60)
    ada.locks.release(f"{key}:free", ada.locks.acquire(f"{key}:free", ttl=60))

    def listed(*arguments: str) -> list[str]:
        found = json.loads(invoke("ls", *arguments, "--json").stdout)
        return [item["key"].removeprefix(key) for item in found["items"]]

    assert listed(key) == [":free", ":held"]
    assert listed(key, "--held") == [":held"]
    assert listed(key, "--free") == [":free"]
    assert listed(f"{key}:h") == [":held"]


def test_json_is_the_rows_of_the_wire(invoke: Invoke, key: str, ada: Client) -> None:
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


def test_no_lock_is_no_failure_and_no_data(invoke: Invoke, key: str) -> None:
    """CLI-29."""
    result = invoke("ls", key, "--held")
    assert (result.exit_code, result.stdout) == (0, "")
    assert f"there is no held lock whose key begins with {key}" in result.stderr
    result = invoke("ls", key, "--json")
    assert (result.exit_code, json.loads(result.stdout), result.stderr) == (0, {"items": []}, "")


def test_a_terminal_of_eighty_columns_gets_rows_of_one_line(key: str, ada: Client, environment: dict[str, str]) -> None:
    """CLI-29, CLI-1: the fencing token goes first, then the ends of the names."""
    ada.locks.acquire(f"{key}:{'x' * 60}", ttl=60)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*PROGRAM, "ls", key], env=environment | {"COLUMNS": "80"}, stdout=theirs, stdin=subprocess.DEVNULL
    )
    os.close(theirs)
    assert process.wait(WAIT_SECONDS) == 0
    heads, row = os.read(ours, 65_536).decode().splitlines()
    os.close(ours)
    assert heads.endswith("EXPIRES IN  WAITERS")
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
def test_spans_are_short(seconds: float, text: str) -> None:
    assert span_text(seconds) == text
