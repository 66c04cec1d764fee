"""The schema: numbered migrations that run once, old nodes beside new ones, rows that cannot be invalid, and settings
of the database that have no effect.
"""

import asyncio
import re
from collections.abc import AsyncIterator

import psycopg
import pytest
from testsupport.engines import postgres

from volcano_locks_server.ports.lock_store import LockQuery
from volcano_locks_server.rules.errors import StoreUnavailableError
from volcano_locks_server.rules.lease import GRACE_MS, Free, LockRecord, QueueState
from volcano_locks_server.stores import lock_rows, open_store
from volcano_locks_server.stores.maintenance import migrate
from volcano_locks_server.stores.postgres import PostgresDatabase, lock_pages, locks, schema
from volcano_locks_server.stores.postgres.address import HOSTS_MAX, split_hosts
from volcano_locks_server.stores.postgres.schema import Migration, migrations
from volcano_locks_server.testing import ManualClock

from ..sqlite.test_schema import WRONG
from ..store_actions import PROJECT, held, key, read_records, write_records

SOURCE = "CREATE TABLE volcano_locks.{} (a integer)"
NEWEST = migrations()[-1].number


@pytest.fixture
async def opened(database: str) -> AsyncIterator[PostgresDatabase]:
    one = await PostgresDatabase.open(database)
    yield one
    await one.close()


def tables(database: str) -> list[str]:
    with psycopg.connect(database) as connection:
        rows = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'volcano_locks' ORDER BY 1")
        return [row[0] for row in rows]


def test_migrations_are_numbered_from_one_and_need_no_later_one() -> None:
    assert [one.number for one in migrations()] == list(range(1, len(migrations()) + 1))
    assert all(1 <= one.needs <= one.number for one in migrations())


async def test_an_empty_database_is_migrated_once(database: str) -> None:
    assert await migrate(database) == (0, NEWEST)
    assert await migrate(database) == (NEWEST, NEWEST)


async def test_nodes_that_start_together_take_turns(database: str) -> None:
    """case 29: the advisory lock ends with its transaction."""
    nodes = await asyncio.gather(*(PostgresDatabase.open(database) for _ in range(6)))
    await asyncio.gather(*(write_records(one.locks, (key(f"{place}"), Free(1, 1))) for place, one in enumerate(nodes)))
    with psycopg.connect(database) as connection:
        rows = connection.execute("SELECT number FROM volcano_locks.migration ORDER BY 1").fetchall()
        assert rows == [(number,) for number in range(1, NEWEST + 1)]
        assert connection.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'").fetchone() == (0,)
    for one in nodes:
        await one.close()


async def test_an_old_node_runs_beside_a_new_one(
    opened: PostgresDatabase, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script that old nodes can ignore lets them continue, and start."""
    later = [Migration(NEWEST + 1, 1, SOURCE.format("one_more")), Migration(NEWEST + 2, 1, SOURCE.format("another"))]
    monkeypatch.setattr(schema, "migrations", lambda: [*migrations(), *later])
    assert await migrate(database) == (NEWEST, NEWEST + 2)
    monkeypatch.undo()
    await write_records(opened.locks, (key("a"), Free(1, 1)))
    old = await PostgresDatabase.open(database)
    assert await read_records(old.locks, key("a")) == [Free(1, 1)]
    await old.close()
    assert await migrate(database) == (NEWEST + 2, NEWEST + 2)


async def test_a_record_that_a_node_of_0_1_0_wrote_is_read(opened: PostgresDatabase, database: str) -> None:
    """WAIT-12: such a node keeps the column queue_state as it was, and leaves it out of new rows."""
    state = QueueState(waiting_nodes=("0123456789ab",))
    await write_records(opened.locks, (key("a"), Free(1, 1, queue_state=state)))
    with psycopg.connect(database) as connection:
        connection.execute("UPDATE volcano_locks.lock SET fencing_token = 2")
        values = (PROJECT, "b", 3, 4, b"")
        names = "project_id, key, fencing_token, freed_at_ms, retired_digests"
        connection.execute(f"INSERT INTO volcano_locks.lock ({names}) VALUES (%s, %s, %s, %s, %s)", values)
    assert await read_records(opened.locks, key("a"), key("b")) == [Free(2, 1, queue_state=state), Free(3, 4)]


@pytest.mark.parametrize("text", ["", "soon", "[]", '{"waiting_nodes": 7}', '{"withdrawn": ["*"]}'])
async def test_a_queue_state_of_another_format_is_unknown(opened: PostgresDatabase, database: str, text: str) -> None:
    """WAIT-12: no lease depends on it."""
    await write_records(opened.locks, (key("a"), Free(1, 1)))
    with psycopg.connect(database) as connection:
        connection.execute("UPDATE volcano_locks.lock SET queue_state = %s", (text,))
    assert await read_records(opened.locks, key("a")) == [Free(1, 1)]


async def test_a_schema_that_needs_a_newer_release_is_left_alone(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = Migration(NEWEST + 1, NEWEST + 1, SOURCE.format("one_more"))
    monkeypatch.setattr(schema, "migrations", lambda: [*migrations(), needed])
    await migrate(database)
    monkeypatch.undo()
    with pytest.raises(StoreUnavailableError, match="use a newer release") as caught:
        await PostgresDatabase.open(database)
    assert caught.value.cause_code == "newer_version"


async def test_a_running_node_stops_when_the_schema_needs_a_newer_release(
    opened: PostgresDatabase, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OPS-8: from the next transaction on, and it says so."""
    needed = Migration(NEWEST + 1, NEWEST + 1, SOURCE.format("one_more"))
    monkeypatch.setattr(schema, "migrations", lambda: [*migrations(), needed])
    await migrate(database)
    monkeypatch.undo()
    for asked in (
        write_records(opened.locks, (key("a"), Free(1, 1))),
        opened.locks.ready(),
        opened.locks.list_locks(LockQuery(PROJECT, 1)),
        opened.registry.credential(b"s" * 32),
    ):
        with pytest.raises(StoreUnavailableError, match="use a newer release") as caught:
            await asked
        assert caught.value.cause_code == "newer_version"


async def test_a_running_node_does_not_serve_a_schema_that_replaced_its_own(
    opened: PostgresDatabase, database: str
) -> None:
    """OPS-8: the schema was dropped, and a node that started later made a new one."""
    await write_records(opened.locks, (key("a"), Free(1, 1)))
    with psycopg.connect(database) as connection:
        connection.execute("DROP SCHEMA volcano_locks CASCADE")
    with pytest.raises(StoreUnavailableError, match="restore the database") as caught:
        await read_records(opened.locks, key("a"))
    assert caught.value.cause_code == "no_schema"
    await migrate(database)
    for asked in (read_records(opened.locks, key("a")), opened.registry.credential(b"s" * 32)):
        with pytest.raises(StoreUnavailableError, match="start again") as caught:
            await asked
        assert caught.value.cause_code == "schema_replaced"


async def test_a_schema_without_its_migrations_is_not_made_anew(database: str) -> None:
    """OPS-8."""
    await migrate(database)
    with psycopg.connect(database) as connection:
        connection.execute("DROP TABLE volcano_locks.migration")
    with pytest.raises(StoreUnavailableError, match="restore the database") as caught:
        await PostgresDatabase.open(database)
    assert caught.value.cause_code == "schema_missing"


async def test_a_failed_migration_leaves_the_previous_version(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Migration(NEWEST + 1, 1, SOURCE.format("one_more") + "; SELECT * FROM nowhere")
    monkeypatch.setattr(schema, "migrations", lambda: [*migrations(), broken])
    with pytest.raises(StoreUnavailableError):
        await migrate(database)
    monkeypatch.undo()
    assert await migrate(database) == (NEWEST, NEWEST)
    assert "one_more" not in tables(database)


async def test_a_user_who_may_not_create_a_schema_needs_one_given(database: str) -> None:
    server, name = postgres.shared(), database.rpartition("/")[2]
    user = f"user_{name}"
    server.execute(f"CREATE ROLE {user} LOGIN")
    theirs = database.replace("postgres@", f"{user}@")
    with pytest.raises(StoreUnavailableError) as caught:
        await migrate(theirs)
    assert caught.value.cause_code == "no_permission"
    server.execute(f"CREATE SCHEMA volcano_locks AUTHORIZATION {user}", name)
    assert await migrate(theirs) == (0, NEWEST)


@pytest.mark.parametrize("record", WRONG.values(), ids=WRONG.keys())
async def test_an_invalid_record_rolls_back_its_batch(opened: PostgresDatabase, record: LockRecord) -> None:
    """case 34, LEASE-14, LEASE-15."""
    with pytest.raises(StoreUnavailableError) as caught:
        await write_records(opened.locks, (key("good"), held("a", 1_000)), (key("wrong"), record))
    assert caught.value.cause_code == "store_error"
    assert await read_records(opened.locks, key("good"), key("wrong")) == [None, None]


async def test_count_purge_and_list_use_an_index(opened: PostgresDatabase, database: str) -> None:
    """LEASE-13, LIST-4: no scan of all records. The index uses the rules' grace."""
    assert f"+ {GRACE_MS})" in lock_rows.FREE_FROM
    many = [(key(f"k{number}"), Free(1, 1)) for number in range(2_000)]
    await write_records(opened.locks, *many)
    with psycopg.connect(database) as connection:
        connection.execute("SET enable_seqscan = off")
        for sql, first, index in (
            (locks.COUNT_HELD, "0", "lock_by_free_from"),
            (locks.PURGE, "0", "lock_by_free_from"),
            (lock_pages.FEW_HELD, "0", "lock_by_free_from"),
            (lock_pages.HELD, f"'{PROJECT}'", "lock_by_free_from"),
            (lock_pages.BY_KEY, f"'{PROJECT}'", "Index Scan using lock_pkey"),
        ):
            numbers = {f"${place}": "0" for place in range(1, 9)}
            values = numbers if first == "0" else {**numbers, "$1": first, "$2": "'a'", "$3": "'b'", "$4": "10"}
            text = re.sub(r"\$\d", lambda place: values[place[0]], sql)  # noqa: B023 - called at once
            plan = "\n".join(row[0] for row in connection.execute(f"EXPLAIN {text}"))
            assert index in plan
            assert "Seq Scan on lock" not in plan
            assert sql != lock_pages.BY_KEY or "Sort" not in plan


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("synchronous_commit", "off"),
        ("default_transaction_isolation", "serializable"),
        ("statement_timeout", "0"),
        ("lock_timeout", "0"),
        ("idle_in_transaction_session_timeout", "0"),
    ],
)
async def test_transactions_override_the_settings_of_the_database(database: str, setting: str, value: str) -> None:
    """LEASE-14: each transaction sets what it needs."""
    server, name = postgres.shared(), database.rpartition("/")[2]
    server.execute(f"ALTER DATABASE {name} SET {setting} = '{value}'")
    node = await PostgresDatabase.open(database)
    async with node._connections.transaction() as transaction:
        current = {row[0]: row[1] for row in await transaction.fetch("SELECT name, setting FROM pg_settings")}
    await node.close()
    assert current["synchronous_commit"] == "on"
    assert current["transaction_isolation"] == "read committed"
    assert 0 < int(current["lock_timeout"]) < 5_000
    seconds = [int(current[one]) for one in ("statement_timeout", "idle_in_transaction_session_timeout")]
    assert all(seconds)
    assert sum(seconds) <= 5_000, "a node that vanishes would block others for longer than 5 s"


async def test_only_a_digest_of_the_owner_token_is_stored(opened: PostgresDatabase, database: str) -> None:
    """LEASE-15: by constraint, the columns hold a digest of 32 bytes or nothing."""
    await write_records(opened.locks, (key("a"), held("a", 1_000)))
    with psycopg.connect(database) as connection, pytest.raises(psycopg.errors.CheckViolation):
        connection.execute("UPDATE volcano_locks.lock SET owner_digest = '6f1c2a34-0000-4000-8000-000000000001'")


def test_a_url_is_split_into_its_hosts() -> None:
    user = "postgresql://me:p%40ss@"
    assert split_hosts("postgres://me:p%40ss@a:1,b,[::1]:3/locks?sslmode=require") == [
        f"{user}a:1/locks?sslmode=require",
        f"{user}b/locks?sslmode=require",
        f"{user}[::1]:3/locks?sslmode=require",
    ]
    assert split_hosts("postgresql:///locks?host=/run/postgresql") == ["postgresql:///locks?host=/run/postgresql"]
    with pytest.raises(ValueError, match=f"up to {HOSTS_MAX} hosts") as caught:
        split_hosts("postgresql://me:secret@" + ",".join("h" * 17))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["postgresql://me:secret@h:port/db", "postgresql://me:secret@h/db?sslmode=perhaps"])
async def test_the_message_for_an_invalid_url_hides_its_secrets(url: str, clock: ManualClock) -> None:
    with pytest.raises(ValueError, match="postgresql://user:password@host:port/database") as caught:
        await open_store(url, clock)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "cause_code"),
    [
        ("postgresql://postgres@127.0.0.1:1/db", "unreachable"),
        ("postgresql://stranger@127.0.0.1:{port}/postgres", "no_permission"),
        ("postgresql://postgres@127.0.0.1:{port}/nowhere", "no_database"),
    ],
)
async def test_an_unusable_database_has_its_own_cause(url: str, cause_code: str) -> None:
    with pytest.raises(StoreUnavailableError) as caught:
        await PostgresDatabase.open(url.format(port=postgres.shared().port))
    assert caught.value.cause_code == cause_code
