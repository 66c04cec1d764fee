"""The schema: numbered migrations, and rows that cannot be invalid."""

from pathlib import Path

import apsw
import pytest

from volcano_locks_server.rules.errors import StoreUnavailableError
from volcano_locks_server.rules.lease import GRACE_MS, Free, Held, LockRecord
from volcano_locks_server.stores import lock_rows
from volcano_locks_server.stores.sqlite import SqliteFile, connection, held_scan, lock_pages, locks
from volcano_locks_server.testing import ManualClock

from ..store_actions import digest, held, key, read_records, write_records


def test_migrations_are_numbered_from_one_without_a_gap() -> None:
    assert [number for number, _ in connection.migrations()] == list(range(1, len(connection.migrations()) + 1))


async def test_an_empty_file_is_migrated(path: Path, clock: ManualClock) -> None:
    path.touch()
    await (await SqliteFile.open(path, clock)).close()
    opened = apsw.Connection(str(path))
    assert opened.execute("PRAGMA user_version").get == connection.migrations()[-1][0]
    assert opened.execute("PRAGMA application_id").get == connection.APPLICATION_ID
    assert opened.execute("PRAGMA integrity_check").get == "ok"
    opened.close()


async def test_migrations_run_in_order_and_keep_the_records(
    path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = await SqliteFile.open(path, clock)
    await write_records(file.locks, (key("a"), Free(5, 5)))
    await file.close()
    newest = connection.migrations()[-1][0]
    later = [(newest + 1, "CREATE TABLE two (a);"), (newest + 2, "ALTER TABLE two ADD COLUMN b;")]
    steps = [*connection.migrations(), *later]
    monkeypatch.setattr(connection, "migrations", lambda: steps)
    for _ in range(2):
        file = await SqliteFile.open(path, clock)
        assert await read_records(file.locks, key("a")) == [Free(5, 5)]
        await file.close()
    opened = apsw.Connection(str(path))
    assert opened.execute("PRAGMA user_version").get == newest + 2
    assert [row[1] for row in opened.execute("PRAGMA table_info(two)")] == ["a", "b"]
    opened.close()


async def test_a_failed_migration_leaves_the_previous_version(
    path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = connection.migrations()[-1][0]
    steps = [*connection.migrations(), (newest + 1, "CREATE TABLE two (a); SELECT * FROM nowhere;")]
    monkeypatch.setattr(connection, "migrations", lambda: steps)
    with pytest.raises(StoreUnavailableError):
        await SqliteFile.open(path, clock)
    monkeypatch.undo()
    file = await SqliteFile.open(path, clock)
    assert file._connection.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'two'").get == 0
    await file.close()


GOOD = held("a", 1_000)
WRONG: dict[str, LockRecord] = {
    "a digest that is too short": Held(b"x", 1, 2, 3, 1, 1, 5),
    "a token itself in place of its digest": Held(b"6f1c2a34-0000-4000-8000-000000000001", 1, 2, 3, 1, 1, 5),
    "past its deadline": Held(digest("a"), 1, 4, 3, 1, 1, 5),
    "renewed before it was acquired": Held(digest("a"), 1, 2, 3, 2, 1, 5),
    "no TTL": Held(digest("a"), 1, 2, 3, 1, 1, 0),
    "a fencing token that JavaScript would round": Free(2**53, 1),
    "a fencing token below zero": Free(-1, 1),
    "half a retired digest": Free(1, 1, (b"half",)),
}


@pytest.mark.parametrize("record", WRONG.values(), ids=WRONG.keys())
async def test_an_invalid_record_rolls_back_its_batch(path: Path, clock: ManualClock, record: LockRecord) -> None:
    """case 34, LEASE-14, LEASE-15."""
    file = await SqliteFile.open(path, clock)
    with pytest.raises(StoreUnavailableError) as caught:
        await write_records(file.locks, (key("good"), GOOD), (key("wrong"), record))
    assert caught.value.cause_code == "store_error"
    assert await read_records(file.locks, key("good"), key("wrong")) == [None, None]
    await file.close()


@pytest.mark.parametrize("column", ["owner_digest", "expires_at_ms", "deadline_ms", "acquired_at_ms", "ttl_seconds"])
async def test_a_row_is_either_held_or_free(path: Path, clock: ManualClock, column: str) -> None:
    file = await SqliteFile.open(path, clock)
    await write_records(file.locks, (key("held"), GOOD), (key("free"), Free(1, 1)))
    for change in (
        f"UPDATE lock SET {column} = NULL WHERE key = 'held'",
        f"UPDATE lock SET {column} = (SELECT {column} FROM lock WHERE key = 'held') WHERE key = 'free'",
        "UPDATE lock SET freed_at_ms = 1 WHERE key = 'held'",
        "UPDATE lock SET freed_at_ms = NULL WHERE key = 'free'",
        "UPDATE lock SET fencing_token = 'seven'",
    ):
        with pytest.raises(StoreUnavailableError) as caught:
            await file._writer.run(lambda change=change: file._connection.execute(change))
        assert isinstance(caught.value.__cause__, apsw.ConstraintError)
    await file.close()


async def test_count_purge_and_list_use_an_index(path: Path, clock: ManualClock) -> None:
    """LEASE-13, LIST-4: no scan of all records. The index uses the rules' grace."""
    assert f"+ {GRACE_MS})" in lock_rows.FREE_FROM
    file = await SqliteFile.open(path, clock)
    for sql, index in (
        (held_scan.EDGE, "COVERING INDEX lock_by_free_from (<expr>>?)"),
        (held_scan.COUNT, "COVERING INDEX lock_by_free_from (<expr>>? AND <expr><?)"),
        (locks.PURGE, "lock_by_free_from (<expr><?)"),
        (lock_pages.FEW_HELD, "lock_by_free_from (<expr>>?)"),
        (lock_pages.HELD, "lock_by_free_from (<expr>>?)"),
        (lock_pages.BY_KEY, "(project_id=? AND key>? AND key<?)"),
    ):
        values = dict.fromkeys("12345678", 1) if "?1" in sql else (1,) * sql.count("?")
        plan = await file._writer.run(
            lambda sql=sql, values=values: list(file._connection.execute(f"EXPLAIN QUERY PLAN {sql}", values))
        )
        assert any(index in row[3] for row in plan), plan
        assert not any(row[3].startswith("SCAN lock") for row in plan)
        assert sql != lock_pages.BY_KEY or not any("TEMP B-TREE" in row[3] for row in plan)
    await file.close()
