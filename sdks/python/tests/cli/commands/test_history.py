"""CLI-38: who held a lock, as a table and as JSON."""

import json
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta

import pytest
from click.testing import Result

from volcano_locks import Client
from volcano_locks.cli.instants import parse_instant
from volcano_locks.cli.output import local_text
from volcano_locks_server.testing import RunningServer

from ..terminal_session import lines_on_terminal

Invoke = Callable[..., Result]


@pytest.fixture
def ada(server: RunningServer) -> Iterator[Client]:
    """A client with a known holder label."""
    with Client(server.url, server.service_key, holder="host/4121") as found:
        yield found


def test_a_table_shows_holder_time_held_end_and_begin(invoke: Invoke, key: str, ada: Client) -> None:
    """CLI-38: the latest hold first, and who forced one."""
    ada.locks.release(key, ada.locks.acquire(key, ttl=60))
    ada.locks.acquire(key, ttl=60)
    ada.locks.force_release(key, reason="stuck")
    ada.locks.acquire(key, ttl=60)
    result = invoke("history", key)
    assert result.exit_code == 0
    headings, *rows = result.stdout.splitlines()
    assert headings.split() == ["KEY", "HOLDER", "BEGAN", "HELD", "FOR", "END"]
    ends = ["held", "forced by test: stuck", "released"]
    for row, end in zip(rows, ends, strict=True):
        assert row.split()[:2] == [key, "host/4121"]
        assert row[headings.index("END") :] == end
        assert row[headings.index("BEGAN") :].startswith(f"{datetime.now().astimezone():%Y-}")


def test_a_reason_is_broken_into_lines_on_a_terminal(key: str, ada: Client, environment: dict[str, str]) -> None:
    """CLI-38: under its own column."""
    reason = "web-1 hung after the kernel update, and no one could reach it"
    ada.locks.acquire(key, ttl=60)
    ada.locks.force_release(key, reason=reason)
    headings, *lines = lines_on_terminal(environment, "history", key)
    end = headings.index("END")
    assert max(map(len, lines)) <= 80
    assert " ".join(line[end:] for line in lines) == f"forced by test: {reason}"
    assert {line[:end].strip() for line in lines[1:]} == {""}


def test_json_has_the_entries_of_the_api(invoke: Invoke, key: str, ada: Client) -> None:
    """CLI-38, CLI-1: one object; with a prefix too."""
    lease = ada.locks.acquire(f"{key}:one", ttl=60)
    for arguments in ((f"{key}:one",), ("--prefix", key, "--since", "2d")):
        (entry,) = json.loads(invoke("history", *arguments, "--json").stdout)["items"]
        assert (entry["key"], entry["fencing_token"], entry["ended"]) == (lease.key, lease.fencing_token, None)
        assert entry["began_at"].endswith("Z")
        assert str(lease.token) not in json.dumps(entry)


def test_nothing_found_is_said_on_stderr(invoke: Invoke, key: str, ada: Client) -> None:
    """CLI-38: with the time that was asked for, and code 0."""
    ada.locks.acquire(key, ttl=60)
    result = invoke("history", key, "--at", "2001-02-03 03:12")
    assert (result.exit_code, result.stdout) == (0, "")
    assert f"the history has no hold of {key} at 2001-02-03 03:12:00" in result.stderr
    assert "the server keeps the history for 7 days unless it is set up otherwise" in result.stderr


@pytest.mark.parametrize("option", ["--at", "--since"])
def test_a_time_in_the_future_is_refused(invoke: Invoke, key: str, option: str) -> None:
    """CLI-38: with the date and the zone."""
    ahead = datetime.now().astimezone().replace(microsecond=0) + timedelta(hours=2)
    result = invoke("history", key, option, ahead.isoformat())
    assert (result.exit_code, result.stdout) == (64, "")
    assert f"{option}: {local_text(ahead)} is in the future" in result.stderr


@pytest.mark.parametrize(
    "arguments", [(), ("k", "--prefix", "p"), ("k", "--at", "noon"), ("k", "--since", "25:00"), ("--prefix", "/")]
)
def test_wrong_arguments_are_usage_errors(invoke: Invoke, arguments: tuple[str, ...]) -> None:
    """CLI-38: code 64, and the forms that are accepted."""
    result = invoke("history", *arguments)
    assert result.exit_code == 64
    if "--at" in arguments:
        assert 'use 03:12, "yesterday 03:12"' in result.stderr


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("03:12", "2026-07-20 03:12:00"),
        ("23:30", "2026-07-19 23:30:00"),
        ("today 23:30", "2026-07-20 23:30:00"),
        ("Yesterday  03:12:30", "2026-07-19 03:12:30"),
        ("2026-07-01 03:12", "2026-07-01 03:12:00"),
    ],
)
def test_a_time_without_a_zone_is_local(text: str, expected: str) -> None:
    """CLI-38: a time without a day is the last one."""
    now = datetime(2026, 7, 20, 14, 0).astimezone()
    instant = parse_instant(text, now)
    assert f"{instant:%Y-%m-%d %H:%M:%S}" == expected
    assert instant.tzinfo is not None


def test_a_time_with_a_zone_keeps_its_instant() -> None:
    """CLI-38."""
    now = datetime(2026, 7, 20, 14, 0).astimezone()
    assert parse_instant("2026-07-20T03:12:00Z", now).timestamp() == 1784517120
