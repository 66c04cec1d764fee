"""Which URL opens which store, and the message for any other URL."""

from pathlib import Path

import pytest

from volcano_locks_server.rules.lease import Free
from volcano_locks_server.stores import open_store, shown_url, sqlite_path
from volcano_locks_server.stores.memory import MemoryStore
from volcano_locks_server.testing import ManualClock

from .store_actions import key, read_records, write_records


def test_three_slashes_are_relative_and_four_are_absolute() -> None:
    assert sqlite_path("sqlite:///locks.db") == Path("locks.db")
    assert sqlite_path("sqlite:///sub/my%20locks.db") == Path("sub/my%20locks.db")
    assert sqlite_path("sqlite:////var/lib/locks.db") == Path("/var/lib/locks.db")
    assert sqlite_path("memory://") is None


@pytest.mark.parametrize(
    "url",
    [
        "",
        "locks.db",
        "sqlite:",
        "sqlite://",
        "sqlite:///",
        "sqlite://locks.db",
        "sqlite:///dir/",
        "memory:",
        "memory://x",
        "mysql://root:secret@host/db",
        "SQLITE:///a",
    ],
)
def test_other_urls_are_refused_with_the_valid_forms(url: str) -> None:
    with pytest.raises(ValueError, match=r"sqlite:////absolute\.db, postgresql://.*, etcd://.* or memory://") as caught:
        sqlite_path(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["postgresql://u:secret@h/db", "postgres://h/db", "etcd://u:secret@h:2379"])
def test_a_store_without_a_file_has_no_path(url: str) -> None:
    assert sqlite_path(url) is None


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://u:secret@a:1,b:2/db?password=secret", "postgresql://a:1,b:2/db"),
        ("postgresql://u:se@cret/@h/db", "postgresql://h/db"),
        ("etcd://u:secret@a:2379,b:2379", "etcd://a:2379,b:2379"),
        ("sqlite:////home/me@work/what?.db", "sqlite:////home/me@work/what?.db"),
        ("memory://", "memory://"),
        ("postgresql://h/db?user=u&password=p@ss", "postgresql://…"),
        ("postgresql://u:pa?ss@h/db", "postgresql://…"),
        ("etcd://u:secret@a:2379,b:2379/p?ca=c", "etcd://a:2379,b:2379/p"),
    ],
)
def test_a_url_is_shown_without_its_secrets(url: str, shown: str) -> None:
    assert shown_url(url) == shown


async def test_a_url_opens_its_store(tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        store = await open_store("sqlite:///relative.db", clock)
        await write_records(store.locks, (key("a"), Free(1, 1)))
        await store.close()
    assert (tmp_path / "relative.db").exists()
    memory = await open_store("memory://", clock)
    assert isinstance(memory.locks, MemoryStore)
    assert await read_records(memory.locks, key("a")) == [None]
    await memory.close()
