"""What every store promises about the dashboard's sessions (UI-3, UI-4)."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from volcano_locks_server.ports.session_store import SessionLimits, StoredSession
from volcano_locks_server.stores import OpenStore
from volcano_locks_server.stores.session_room import entries_to_drop
from volcano_locks_server.testing import ManualClock

from .sqlite.test_backup import backed_up, opened, restored
from .store_actions import digest

LIMITS = SessionLimits(3, 4)
NOW_MS = 1_000


def session(name: str, owner: str = "key", good_until_ms: int = 9_000) -> StoredSession:
    return StoredSession(digest(name), "session", "service_key", owner, digest(f"secret of {owner}"), good_until_ms)


async def test_an_entry_is_found_by_its_digest_until_it_is_taken(store: OpenStore) -> None:
    code = replace(session("code"), purpose="code", owner_kind="admin_token", owner_id="")
    for one in (session("a"), code):
        await store.sessions.add(one, LIMITS, NOW_MS)
    assert await store.sessions.session(digest("a")) == session("a")
    assert await store.sessions.session(digest("b")) is None
    taken = await asyncio.gather(*(store.sessions.take(digest("code")) for _ in range(4)))
    assert [one for one in taken if one is not None] == [code]
    assert await store.sessions.session(digest("code")) is None
    assert await store.sessions.session(digest("a")) == session("a")


async def test_those_that_end_first_make_room(store: OpenStore) -> None:
    """UI-4: first of the owner, then of all. A code takes no session's place."""
    limits = SessionLimits(3, 5)
    added: list[str] = []

    async def kept_after(name: str, owner: str, good_until_ms: int) -> list[str]:
        await store.sessions.add(session(name, owner, good_until_ms), limits, NOW_MS)
        added.append(name)
        return [one for one in added if await store.sessions.session(digest(one)) is not None]

    await kept_after("other", "other", 3_000)
    for name, end in (("b", 6_000), ("c", 5_000), ("d", 7_000)):
        await kept_after(name, "key", end)
    assert await kept_after("e", "key", 8_000) == ["other", "b", "d", "e"]
    await store.sessions.add(replace(session("code"), purpose="code"), limits, NOW_MS)
    assert await kept_after("late", "other", 9_000) == ["other", "b", "d", "e", "late"]
    assert await kept_after("last", "third", 9_000) == ["b", "d", "e", "late", "last"]


async def test_entries_that_have_ended_make_room_first(store: OpenStore) -> None:
    for name, end in (("a", 2_000), ("b", 9_000), ("c", 9_000)):
        await store.sessions.add(session(name, good_until_ms=end), LIMITS, NOW_MS)
    await store.sessions.add(session("d"), LIMITS, 2_000)
    kept = [name for name in "abcd" if await store.sessions.session(digest(name)) is not None]
    assert kept == ["b", "c", "d"]


def test_the_limits_hold_for_any_number_beyond_them() -> None:
    stored = [session(str(number), f"owner-{number % 2}", 5_000 + number) for number in range(9)]
    dropped = entries_to_drop(stored, session("new", "owner-0"), LIMITS, NOW_MS)
    left = [one for one in stored if one.digest not in dropped]
    assert [one.good_until_ms - 5_000 for one in left] == [6, 7, 8]


async def test_a_restore_ends_all_sessions(path: Path, tmp_path: Path, clock: ManualClock) -> None:
    """UI-3: one of them may have been signed out since the backup."""
    file = await opened(path, clock)
    await file.sessions.add(session("a"), LIMITS, NOW_MS)
    await backed_up(file, tmp_path / "backup")
    await file.close()
    restored(tmp_path / "backup", path, clock)
    file = await opened(path, clock)
    assert await file.sessions.session(digest("a")) is None
    await file.close()


@pytest.mark.parametrize("spoilt", [b"{", b'{"purpose":"other"}', b"\xff"])
async def test_a_damaged_session_has_ended_on_etcd(clock: ManualClock, spoilt: bytes) -> None:
    """The tables of the SQL stores refuse such rows."""
    from testsupport.engines import etcd

    from volcano_locks_server.stores import open_store

    from .record_damage import put_etcd

    store = await open_store(etcd.shared().url(), clock)
    await put_etcd(store, b"dashboard-session/" + digest("a").hex().encode(), spoilt)
    assert await store.sessions.session(digest("a")) is None
    await store.sessions.add(session("b"), LIMITS, NOW_MS)
    assert await store.sessions.take(digest("a")) is None
    await store.close()
