"""CLI-30: lock events, one per line, as they happen."""

import json
import signal
import threading
from collections.abc import Iterator
from datetime import UTC, datetime

import httpx2
import pytest

from volcano_locks import Client
from volcano_locks.cli.watch.event_lines import EventFormatter, EventRow, event_row
from volcano_locks.protocol.sse import SseEvent
from volcano_locks_server.testing import RunningServer

from ..conftest import Process, Start
from .cuttable_proxy import CuttableProxy

AT = datetime(2026, 7, 20, 14, 0, 10, tzinfo=UTC)


@pytest.fixture
def ada(server: RunningServer) -> Iterator[Client]:
    """A client with a known holder label."""
    with Client(server.url, server.service_key, holder="host/4121") as found:
        yield found


def read_stderr(process: Process) -> str:
    """The next line on stderr."""
    assert process.stderr is not None
    return process.stderr.readline()


def read_stdout(process: Process) -> str:
    """The next line on stdout."""
    assert process.stdout is not None
    return process.stdout.readline()


def interrupt(process: Process) -> tuple[str, str]:
    """Sends Ctrl-C. Returns the remaining stdout and stderr."""
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert process.returncode == 130
    return out, err.strip()


@pytest.mark.real_time
def test_each_event_is_printed_at_once(start: Start, key: str, ada: Client) -> None:
    """CLI-30; Ctrl-C ends it without a traceback (CLI-4)."""
    watching = start("watch", key)
    assert read_stderr(watching) == f"volcano-locks: watching {key}: free\n"
    lease = ada.locks.acquire(key, ttl=60)
    assert read_stdout(watching).split()[1:] == ["acquired", key, "host/4121", str(lease.fencing_token)]
    waiting = threading.Thread(target=ada.locks.acquire, args=(key,), kwargs={"ttl": 60, "wait": 600})
    waiting.start()
    assert read_stdout(watching).split()[1:] == ["waiting", key, "host/4121", "-"]
    ada.locks.renew(key, lease)
    assert read_stdout(watching).split()[1] == "renewed"
    ada.locks.release(key, lease)
    waiting.join()
    assert read_stdout(watching).split()[1] == "released"
    assert read_stdout(watching).split()[5] == "waited"
    ada.locks.force_release(key, reason="it hangs")
    assert read_stdout(watching).rstrip().endswith("  it hangs")
    assert interrupt(watching) == ("", "")


@pytest.mark.real_time
def test_json_has_the_field_names_of_the_api(start: Start, key: str, ada: Client) -> None:
    """CLI-30, CLI-1: one object per line, and only for keys with the prefix."""
    watching = start("watch", "--prefix", f"{key}:", "--json")
    assert read_stderr(watching) == f"volcano-locks: watching the locks whose keys begin with {key}:\n"
    ada.locks.acquire(key, ttl=60)
    lease = ada.locks.acquire(f"{key}:one", ttl=60)
    event = json.loads(read_stdout(watching))
    assert event.pop("id")
    assert event.pop("at").endswith("Z")
    assert event.pop("expires_at").endswith("Z")
    assert event == {
        "event": "acquired",
        "key": f"{key}:one",
        "fencing_token": lease.fencing_token,
        "holder": "host/4121",
        "why": "free",
    }
    assert interrupt(watching) == ("", "")


@pytest.mark.real_time
def test_it_reports_the_state_of_the_lock_at_the_start(start: Start, key: str, ada: Client) -> None:
    """CLI-30."""
    ada.locks.acquire(key, ttl=7200)
    assert f"watching {key}: held by host/4121, expires in 1h 59m" in read_stderr(start("watch", key))
    assert read_stderr(start("watch")) == "volcano-locks: watching all locks\n"


@pytest.mark.real_time
def test_it_resumes_after_a_lost_connection_without_missing_events(
    start: Start, key: str, ada: Client, server: RunningServer, environment: dict[str, str]
) -> None:
    """CLI-30: `watch` resumes from the last event."""
    with CuttableProxy(server.url) as proxy:
        watching = start("watch", key, env=environment | {"VOLCANO_API_URL": proxy.url})
        assert "watching" in read_stderr(watching)
        lease = ada.locks.acquire(key, ttl=60)
        assert read_stdout(watching).split()[1] == "acquired"
        proxy.cut()
        assert "connection lost, reconnecting: " in read_stderr(watching)
        ada.locks.release(key, lease)
        proxy.restore()
        assert read_stderr(watching) == "volcano-locks: reconnected\n"
        assert read_stdout(watching).split()[1] == "released"
        assert interrupt(watching) == ("", "")


@pytest.mark.real_time
def test_a_revoked_key_ends_it(start: Start, key: str, server: RunningServer, environment: dict[str, str]) -> None:
    """CLI-30: an error that a retry cannot fix."""
    keys = f"{server.url}/projects/{server.project_id}/service-keys"
    admin = {"Authorization": f"Bearer {server.admin_token}"}
    made = httpx2.post(keys, headers=admin, json={"name": "watcher", "permissions": ["locks.read"]}).json()
    with CuttableProxy(server.url) as proxy:
        mine = {"VOLCANO_API_URL": proxy.url, "VOLCANO_SERVICE_KEY": made["key_value"]}
        watching = start("watch", key, env=environment | mine)
        assert "watching" in read_stderr(watching)
        httpx2.delete(f"{keys}/{made['id']}", headers=admin).raise_for_status()
        proxy.cut()
        proxy.restore()
        _, err = watching.communicate()
    assert watching.returncode == 77
    assert "VOLCANO_SERVICE_KEY" in err
    assert made["key_value"] not in err


def test_the_first_connection_must_succeed(start: Start, environment: dict[str, str]) -> None:
    """CLI-30, CLI-4."""
    unreachable = start("watch", env=environment | {"VOLCANO_API_URL": "http://127.0.0.1:9"})
    unreachable.communicate()
    assert unreachable.returncode == 69
    for arguments in (("a b",), ("k", "--prefix", "p"), ("--prefix", "a b")):
        refused = start("watch", *arguments)
        refused.communicate()
        assert refused.returncode == 64


def row(kind: str, key: str = "k", holder: str = "host/1", why: str = "") -> EventRow:
    return EventRow(kind, AT, key, holder, "1784684410123", why)


def test_columns_are_aligned_with_the_lines_so_far() -> None:
    """CLI-30."""
    formatter = EventFormatter(on_terminal=False)
    printed = [formatter.format(row("acquired", "a-longer-key", why="waited")), formatter.format(row("released"))]
    assert printed == [
        "2026-07-20T14:00:10Z  acquired        a-longer-key  host/1  1784684410123  waited",
        "2026-07-20T14:00:10Z  released        k             host/1  1784684410123",
    ]


def test_on_a_terminal_lines_fit_its_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """CLI-30, CLI-1."""
    monkeypatch.setenv("COLUMNS", "80")
    formatter = EventFormatter(on_terminal=True)
    for event in (
        row("acquired", why="taken_over"),
        row("force_released", "k" * 60, why="it hangs " * 20),
        row("expired", "k", "h" * 60),
    ):
        line = formatter.format(event)
        assert line.startswith("14:00:10Z  ")
        assert len(line) <= 80


@pytest.mark.parametrize(
    "event",
    [
        SseEvent("surprise", '{"key": "k", "at": "2026-07-20T14:00:10Z", "why": "new"}', None),
        SseEvent("acquired", '{"key": "k", "why": "free"}', None),
        SseEvent("acquired", "no JSON", None),
        SseEvent("", "", "id"),
    ],
)
def test_unknown_or_malformed_events_are_skipped(event: SseEvent) -> None:
    """CLI-30."""
    assert event_row(event) is None


def test_control_characters_from_the_network_are_not_printed() -> None:
    found = event_row(SseEvent("acquired", '{"key": "k\\u001b[2J", "at": "2026-07-20T14:00:10Z", "why": "free"}', None))
    assert found is not None
    assert found.key.isprintable()
