"""KEEP-1 to KEEP-4: `volcano-locks copy` copies a whole store, or nothing."""

import asyncio
import json
import secrets
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest
from testsupport.engines import etcd, postgres

from volcano_locks import Client, LockHeldError
from volcano_locks.cli.exit_codes import Exit
from volcano_locks_server.cli.copy import Tally, refuse_clock_ahead
from volcano_locks_server.http.auth import secret_digest
from volcano_locks_server.ports.clock import SystemClock
from volcano_locks_server.ports.lock_store import RecordKey, StepResult
from volcano_locks_server.ports.registry import Project, ServiceKey
from volcano_locks_server.ports.snapshot import Entry, StoredLock
from volcano_locks_server.rules.lease import Free, Held
from volcano_locks_server.rules.values import LockKey
from volcano_locks_server.stores import open_store
from volcano_locks_server.testing import running_server

from .conftest import Completed

Command = Callable[..., Completed]
SECRET = "sk-" + "s" * 43
OWNER = secrets.token_bytes(32)


async def _fill(path: Path, ahead_ms: int) -> int:
    """Stores a project, a key, a held lock and a free lock whose token is ahead of the clock. Returns when."""
    clock = SystemClock()
    store = await open_store(f"sqlite:///{path}", clock)
    now_ms = clock.now_ms()
    await store.registry.add_project(Project("p-1", "nightly", 600, now_ms))
    await store.registry.add_service_key(
        ServiceKey("k-1", "p-1", "worker", SECRET[:7], ("*",), now_ms), secret_digest(SECRET)
    )
    records = {
        RecordKey("p-1", LockKey("held")): Held(
            OWNER, now_ms + 5, now_ms + 60_000, now_ms + 90_000, now_ms, now_ms, 60
        ),
        RecordKey("p-1", LockKey("free")): Free(now_ms + ahead_ms, now_ms, (OWNER,)),
    }
    await store.locks.update(list(records), lambda _found, _now_ms: StepResult(records, ()))
    await store.close()
    return now_ms


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source.db"
    asyncio.run(_fill(path, 60_000))
    return path


def contents(path: Path) -> list[object]:
    """The rows without their row numbers, which only show an order."""
    connection = sqlite3.connect(path)
    columns = {
        "project": "id, name, requests_per_minute, created_at_ms",
        "service_key": "id, project_id, name, key_prefix, permissions, created_at_ms, expires_at_ms, last_used_at_ms",
        "secret": "digest, key_id, is_old, good_until_ms",
        "lock": "project_id, key, fencing_token, owner_digest, expires_at_ms, deadline_ms, acquired_at_ms, "
        "renewed_at_ms, ttl_seconds, holder, freed_at_ms, retired_digests",
    }
    found = [sorted(connection.execute(f"SELECT {some} FROM {table}"), key=repr) for table, some in columns.items()]
    connection.close()
    return [*found]


def newest_ms(path: Path) -> int:
    connection = sqlite3.connect(path)
    (at_ms,) = connection.execute("SELECT now_ms FROM newest_instant").fetchone()
    connection.close()
    return int(at_ms)


def test_all_is_copied_and_counted(command: Command, source: Path, tmp_path: Path) -> None:
    """KEEP-1, KEEP-3."""
    before = contents(source)
    result = command("copy", "--from", f"sqlite:///{source}", "--to", "sqlite:///target.db", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {
        "projects": 1,
        "service_keys": 1,
        "admin_tokens": 0,
        "audit_entries": 0,
        "locks": 2,
    }
    assert contents(tmp_path / "target.db") == before == contents(source)


def test_the_output_has_no_secret_and_no_digest(command: Command, source: Path) -> None:
    """KEEP-4."""
    result = command("copy", "--from", f"sqlite:///{source}", "--to", "sqlite:///target.db")
    output = result.stdout + result.stderr
    assert result.stdout == "copied 1 projects, 1 service keys, 0 admin tokens, 0 audit entries, 2 locks\n"
    assert "of the history, only the last hold of each lock is copied" in result.stderr, "HISTORY-4"
    assert SECRET not in output
    assert secret_digest(SECRET).hex() not in output
    assert OWNER.hex() not in output


def test_urls_can_come_from_variables(command: Command, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """KEEP-4, CLI-2."""
    monkeypatch.setenv("VOLCANO_LOCKS_COPY_FROM", f"sqlite:///{source}")
    monkeypatch.setenv("VOLCANO_LOCKS_COPY_TO", "sqlite:///target.db")
    assert "2 locks" in command("copy").stdout


def test_a_copy_accepts_the_same_keys_and_its_tokens_keep_rising(command: Command, source: Path) -> None:
    """KEEP-1, KEEP-2: also if the source's tokens are ahead of the clock."""
    (free_token,) = sqlite3.connect(source).execute("SELECT fencing_token FROM lock WHERE key = 'free'").fetchone()
    assert command("copy", "--from", f"sqlite:///{source}", "--to", "sqlite:///target.db").exit_code == 0
    with running_server(store_url="sqlite:///target.db") as server, Client(server.url, SECRET) as client:
        assert client.locks.acquire("free", ttl=30).fencing_token > free_token
        with pytest.raises(LockHeldError):
            client.locks.acquire("held", ttl=30)


@pytest.mark.parametrize("kind", ["postgres", "etcd"])
def test_a_file_is_copied_to_a_shared_store_and_back(command: Command, source: Path, tmp_path: Path, kind: str) -> None:
    """KEEP-1, KEEP-3: nothing is lost or changed on the way there and back."""
    if kind == "etcd":
        shared = etcd.shared().url()
    else:
        server = postgres.shared()
        shared = server.url(server.new_database())
    there = command("copy", "--from", f"sqlite:///{source}", "--to", shared)
    assert there.exit_code == 0, there.stderr
    back = command("copy", "--from", shared, "--to", "sqlite:///back.db")
    assert back.exit_code == 0, back.stderr
    counts = "1 projects, 1 service keys, 0 admin tokens, 0 audit entries, 2 locks"
    assert there.stdout == back.stdout == f"copied {counts}\n"
    assert contents(tmp_path / "back.db") == contents(source)
    assert newest_ms(tmp_path / "back.db") >= newest_ms(source) > 0


@pytest.mark.parametrize("again", ["the copy itself", "a store with a project"])
def test_a_store_that_is_not_empty_is_refused(command: Command, source: Path, tmp_path: Path, again: str) -> None:
    """KEEP-1."""
    if again == "the copy itself":
        command("copy", "--from", f"sqlite:///{source}", "--to", "sqlite:///target.db")
    else:
        with running_server(store_url="sqlite:///target.db"):
            pass
    before = contents(tmp_path / "target.db")
    result = command("copy", "--from", f"sqlite:///{source}", "--to", "sqlite:///target.db")
    assert result.exit_code == 69
    assert "holds projects, keys, admin tokens, locks or an audit already" in result.stderr
    assert contents(tmp_path / "target.db") == before


def test_a_store_in_use_is_not_copied(command: Command, source: Path) -> None:
    """KEEP-1."""
    with running_server(store_url=f"sqlite:///{source}"):
        result = command("copy", "--from", f"sqlite:///{source}", "--to", "sqlite:///target.db")
    assert result.exit_code == 69
    assert "in use by another server" in result.stderr


@pytest.mark.parametrize(
    ("source_url", "target_url", "text"),
    [
        ("sqlite:///nothing.db", "sqlite:///target.db", "--from: there is no file nothing.db"),
        ("sqlite:///a.db", "sqlite:///a.db", "the same store"),
        ("memory://", "sqlite:///target.db", "--from: memory:// keeps nothing"),
        ("oracle://u:hush@h/d", "sqlite:///target.db", "--from: store must be"),
    ],
)
def test_a_refused_copy_creates_no_file(
    command: Command, tmp_path: Path, source_url: str, target_url: str, text: str
) -> None:
    """KEEP-4 too: a password in the URL is not shown."""
    result = command("copy", "--from", source_url, "--to", target_url)
    assert result.exit_code == 64
    assert text in result.stderr
    assert "hush" not in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_target_clock_too_far_ahead_is_refused() -> None:
    """KEEP-2: a difference within the grace is accepted."""
    refuse_clock_ahead(0, 1_000_000)
    refuse_clock_ahead(1_001_000, 1_000_000)
    with pytest.raises(Exit, match=r"1\.5 s ahead of this machine's"):
        refuse_clock_ahead(1_001_500, 1_000_000)


async def test_a_difference_of_one_token_is_found() -> None:
    """KEEP-3: the hashes differ although the counts do not."""
    one, other = Tally("x"), Tally("y")
    for tally, token in ((one, 1), (other, 2)):
        async for _ in tally.count_pages(pages_of(StoredLock(RecordKey("p", LockKey("a")), Free(token, 9)))):
            pass
    assert one.counts == other.counts
    assert one != other


async def pages_of(*entries: Entry) -> AsyncIterator[Sequence[Entry]]:
    yield entries
