"""CLI-30: what happens to locks, a line each, as it happens."""

import json
import signal
import threading
from collections.abc import Iterator
from datetime import UTC, datetime

import httpx2
import pytest

from volcano_locks import Client
from volcano_locks.cli.watch.event_lines import Lines, Told, told_of
from volcano_locks.protocol.sse import SseEvent
from volcano_locks_server.testing import RunningServer

from .conftest import Process, Start
from .relay import Relay

AT = datetime(2026, 7, 20, 14, 0, 10, tzinfo=UTC)


@pytest.fixture
def ada(server: RunningServer) -> Iterator[Client]:
    """A worker whose label is known."""
    with Client(server.url, server.service_key, holder="host/4121") as found:
        yield found


def said(process: Process) -> str:
    """Its next line on stderr."""
    assert process.stderr is not None
    return process.stderr.readline()


def shown(process: Process) -> str:
    """Its next line on stdout."""
    assert process.stdout is not None
    return process.stdout.readline()


def interrupted(process: Process) -> tuple[str, str]:
    """What it said and showed after Ctrl-C."""
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert process.returncode == 130
    return out, err.strip()


@pytest.mark.real_time
def test_each_event_is_a_line_at_once(start: Start, key: str, ada: Client) -> None:
    """CLI-30, and Ctrl-C ends it without a trace (CLI-4)."""
    watching = start("watch", key)
    assert said(watching) == f"volcano-locks: watching {key}: free\n"
    lease = ada.locks.acquire(key, ttl=60)
    assert shown(watching).split()[1:] == ["acquired", key, "host/4121", str(lease.fencing_token)]
    waiting = threading.Thread(target=ada.locks.acquire, args=(key,), kwargs={"ttl": 60, "wait": 600})
    waiting.start()
    assert shown(watching).split()[1:] == ["waiting", key, "host/4121", "-"]
    ada.locks.renew(key, lease)
    assert shown(watching).split()[1] == "renewed"
    ada.locks.release(key, lease)
    waiting.join()
    assert shown(watching).split()[1] == "released"
    assert shown(watching).split()[5] == "waited"
    ada.locks.force_release(key)
    assert shown(watching).split()[1] == "force_released"
    assert interrupted(watching) == ("", "")


@pytest.mark.real_time
def test_json_has_the_names_of_the_wire(start: Start, key: str, ada: Client) -> None:
    """CLI-30, CLI-1: an object on a line. What begins with the prefix is told, and nothing else."""
    watching = start("watch", "--prefix", f"{key}:", "--json")
    assert said(watching) == f"volcano-locks: watching the locks whose keys begin with {key}:\n"
    ada.locks.acquire(key, ttl=60)
    lease = ada.locks.acquire(f"{key}:one", ttl=60)
    event = json.loads(shown(watching))
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
    assert interrupted(watching) == ("", "")


@pytest.mark.real_time
def test_it_says_how_a_lock_is_that_it_begins_to_watch(start: Start, key: str, ada: Client) -> None:
    """CLI-30."""
    ada.locks.acquire(key, ttl=7200)
    assert f"watching {key}: held by host/4121, expires in 1h 59m" in said(start("watch", key))
    assert said(start("watch")) == "volcano-locks: watching all locks\n"


@pytest.mark.real_time
def test_it_goes_on_when_the_connection_breaks_and_misses_nothing(
    start: Start, key: str, ada: Client, server: RunningServer, environment: dict[str, str]
) -> None:
    """CLI-30: what happened meanwhile is told, for it goes on from the last event."""
    with Relay(server.url) as wire:
        watching = start("watch", key, env=environment | {"VOLCANO_API_URL": wire.url})
        assert "watching" in said(watching)
        lease = ada.locks.acquire(key, ttl=60)
        assert shown(watching).split()[1] == "acquired"
        wire.cut()
        assert "cut off, connecting again: " in said(watching)
        ada.locks.release(key, lease)
        wire.mend()
        assert said(watching) == "volcano-locks: connected again\n"
        assert shown(watching).split()[1] == "released"
        assert interrupted(watching) == ("", "")


@pytest.mark.real_time
def test_a_key_that_is_no_longer_good_ends_it(
    start: Start, key: str, server: RunningServer, environment: dict[str, str]
) -> None:
    """CLI-30: what waiting does not mend."""
    keys = f"{server.url}/projects/{server.project_id}/service-keys"
    admin = {"Authorization": f"Bearer {server.admin_token}"}
    made = httpx2.post(keys, headers=admin, json={"name": "watcher", "permissions": ["locks.read"]}).json()
    with Relay(server.url) as wire:
        mine = {"VOLCANO_API_URL": wire.url, "VOLCANO_SERVICE_KEY": made["key_value"]}
        watching = start("watch", key, env=environment | mine)
        assert "watching" in said(watching)
        httpx2.delete(f"{keys}/{made['id']}", headers=admin).raise_for_status()
        wire.cut()
        wire.mend()
        _, err = watching.communicate()
    assert watching.returncode == 77
    assert "VOLCANO_SERVICE_KEY" in err
    assert made["key_value"] not in err


def test_the_first_connection_has_to_come_about(start: Start, environment: dict[str, str]) -> None:
    """CLI-30, CLI-4."""
    away = start("watch", env=environment | {"VOLCANO_API_URL": "http://127.0.0.1:9"})
    away.communicate()
    assert away.returncode == 69
    for arguments in (("a b",), ("k", "--prefix", "p"), ("--prefix", "a b")):
        refused = start("watch", *arguments)
        refused.communicate()
        assert refused.returncode == 64


def told(kind: str, key: str = "k", holder: str = "host/1", why: str = "") -> Told:
    return Told(kind, AT, key, holder, "1784684410123", why)


def test_lines_line_up_as_far_as_they_come() -> None:
    """CLI-30."""
    lines = Lines(on_terminal=False)
    printed = [lines.line(told("acquired", "a-longer-key", why="waited")), lines.line(told("released"))]
    assert printed == [
        "2026-07-20T14:00:10Z  acquired        a-longer-key  host/1  1784684410123  waited",
        "2026-07-20T14:00:10Z  released        k             host/1  1784684410123",
    ]


def test_on_a_terminal_they_keep_to_its_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """CLI-30, CLI-1."""
    monkeypatch.setenv("COLUMNS", "80")
    lines = Lines(on_terminal=True)
    for event in (told("acquired", why="taken_over"), told("force_released", "k" * 60), told("expired", "k", "h" * 60)):
        line = lines.line(event)
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
def test_what_is_no_event_it_knows_is_passed_over(event: SseEvent) -> None:
    """CLI-30."""
    assert told_of(event) is None


def test_what_comes_from_the_network_cannot_move_the_cursor() -> None:
    found = told_of(SseEvent("acquired", '{"key": "k\\u001b[2J", "at": "2026-07-20T14:00:10Z", "why": "free"}', None))
    assert found is not None
    assert found.key.isprintable()
