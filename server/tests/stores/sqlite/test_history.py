"""The history in a file: recent entries, which are stored by commit, and the table that they are moved to."""

from pathlib import Path

import apsw

from volcano_locks_server.ports.lock_store import HistoryQuery
from volcano_locks_server.rules.history import ENTRIES_PER_LOCK_MAX
from volcano_locks_server.stores.sqlite.history import RECENT_MAX
from volcano_locks_server.stores.sqlite.store import SqliteFile
from volcano_locks_server.testing import ManualClock

from ..store_actions import PROJECT
from ..test_history import entries_of, hold, walked

NAMES = [f"k{number:02}" for number in range(40)]


def _rows(path: Path, *statements: str) -> list[int]:
    """The number of rows in `recent_hold` and `hold`, after these statements."""
    connection = apsw.Connection(str(path))
    for statement in statements:
        connection.execute(statement)
    counts = [connection.execute(f"SELECT count(*) FROM {table}").get for table in ("recent_hold", "hold")]
    connection.close()
    return counts


async def test_entries_read_the_same_once_they_are_moved(tmp_path: Path, clock: ManualClock) -> None:
    """HISTORY-3, HISTORY-5, HISTORY-6: by lock and over several locks, also after a restart."""
    path, query = tmp_path / "locks.db", HistoryQuery(PROJECT, 7)
    file = await SqliteFile.open(path, clock)
    rounds = RECENT_MAX // len(NAMES) - 1
    for _ in range(rounds):
        clock.advance(10)
        await hold(file.locks, *NAMES)
    before, of_one = await walked(file.locks, query), await entries_of(file.locks, "k07")
    assert len(before) == rounds * len(NAMES)
    await file.close()
    assert _rows(path) == [rounds, 0]
    file = await SqliteFile.open(path, clock)
    await hold(file.locks, *NAMES)
    after = await walked(file.locks, query)
    assert [one for one in after if one in set(before)] == before
    assert (await entries_of(file.locks, "k07"))[1:] == of_one
    clock.advance(10)
    await hold(file.locks, "k07")
    assert len(await walked(file.locks, query)) == len(after) + 1
    await file.close()
    assert _rows(path) == [1, len(after)]


async def test_no_page_shows_more_than_the_last_entries_of_a_lock(tmp_path: Path, clock: ManualClock) -> None:
    """HISTORY-4: also if one lock has all recent entries; those past its last ones are deleted when they are moved."""
    path = tmp_path / "locks.db"
    file = await SqliteFile.open(path, clock)
    for _ in range(RECENT_MAX + ENTRIES_PER_LOCK_MAX):
        clock.advance(1)
        await hold(file.locks, "k07")
    kept = [entry.fencing_token for entry in await entries_of(file.locks, "k07")]
    assert len(kept) == ENTRIES_PER_LOCK_MAX
    for limit in (70, 500):
        assert await walked(file.locks, HistoryQuery(PROJECT, limit)) == [("k07", token) for token in kept]
    await file.close()
    assert _rows(path) == [ENTRIES_PER_LOCK_MAX, ENTRIES_PER_LOCK_MAX]


async def test_damaged_recent_entries_are_left_out(tmp_path: Path, clock: ManualClock) -> None:
    """HISTORY-5, LEASE-18: they stop neither a page, nor a commit that moves recent entries."""
    path = tmp_path / "locks.db"
    file = await SqliteFile.open(path, clock)
    await hold(file.locks, "a")
    await file.close()
    damaged = ("no JSON", '[1, {}, null, [["p"], []]]', f'[[["{PROJECT}", "b"], ["x", "y"]]]')
    _rows(path, *(f"INSERT INTO recent_hold (entries) VALUES ('{text}')" for text in damaged))
    file = await SqliteFile.open(path, clock)
    assert [one for one, _token in await walked(file.locks, HistoryQuery(PROJECT, 10))] == ["a"]
    assert await file.locks.purge_history(kept_days=1, limit=10) <= 1
    assert [one for one, _token in await walked(file.locks, HistoryQuery(PROJECT, 10))] == ["a"]
    await file.close()
