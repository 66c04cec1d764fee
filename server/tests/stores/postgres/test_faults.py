"""A database that fails, hangs, is replaced or locked: calls fail in time, and the store recovers by itself."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, suppress

import psycopg
import pytest
from testsupport.engines import postgres
from testsupport.engines.postgres import Postgres
from testsupport.engines.processes import BUSY_SECONDS
from testsupport.fault_proxy import FaultProxy

from volcano_locks_server.ports.clock import SystemClock
from volcano_locks_server.ports.lock_store import LockPage, LockQuery, Records, StepResult
from volcano_locks_server.ports.registry import Project
from volcano_locks_server.rules.errors import LockError, StoreUnavailableError
from volcano_locks_server.rules.lease import Acquire, Free, Granted
from volcano_locks_server.stores.postgres import PostgresDatabase, connections
from volcano_locks_server.stores.postgres.health import check_health
from volcano_locks_server.stores.postgres.hosts import HUNG_MAX
from volcano_locks_server.stores.postgres.locks import PostgresStore

from ..store_actions import PROJECT, digest, increment, key, read_records, run_commands, write_records

BLOCKED_SECONDS_MAX = 5.0 + BUSY_SECONDS
RECOVERY_SECONDS_MAX = 10.0 + BUSY_SECONDS


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    """A server for faults, which syncs as in production."""
    with postgres.primary() as one:
        yield one


@pytest.fixture
async def node(server: Postgres) -> AsyncIterator[PostgresDatabase]:
    one = await PostgresDatabase.open(server.url(server.new_database()))
    yield one
    await one.close()


def connect(node: PostgresDatabase) -> "psycopg.Connection[tuple[object, ...]]":
    """A connection of another program to the node's database."""
    return psycopg.connect(node._connections.hosts._hosts[0], autocommit=True)


async def unavailable(awaitable: object) -> str:
    with pytest.raises(StoreUnavailableError) as caught:
        await awaitable  # type: ignore[misc]
    assert caught.value.code == "lock_service_unavailable"
    return caught.value.cause_code


async def seconds_until_ready(locks: PostgresStore, lock: str = "a") -> float:
    """The seconds until the node serves again; each attempt in between must fail in time."""
    began = time.monotonic()
    while True:
        attempt = time.monotonic()
        try:
            await increment(locks, key(lock))
        except StoreUnavailableError:
            assert time.monotonic() - attempt < BLOCKED_SECONDS_MAX
            assert time.monotonic() - began < 60
            await asyncio.sleep(0.05)
        else:
            return time.monotonic() - began


def until_settings_loaded(server: Postgres, read_only: str) -> None:
    """Return when the server has loaded its settings and signalled its processes."""
    while server.execute("SHOW default_transaction_read_only") != [(read_only,)]:
        time.sleep(0.01)


async def test_a_connection_killed_during_a_transaction_leaves_nothing_half_written(node: PostgresDatabase) -> None:
    """case 26, LEASE-14: 57P01; the next call uses another connection."""
    with connect(node) as other:

        def step(_records: Records, at_ms: int) -> StepResult:
            ended = other.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            assert ended.fetchall()
            return StepResult({key("a"): Free(1, at_ms), key("b"): Free(1, at_ms)}, ())

        assert await unavailable(node.locks.update([key("a"), key("b")], step)) == "connection_lost"
        assert await read_records(node.locks, key("a"), key("b")) == [None, None]


async def test_a_policy_that_hides_rows_is_refused(server: Postgres) -> None:
    """LEASE-14, LEASE-16: a lock whose record is hidden is not free, and its holder has not lost it."""
    name = server.new_database()
    server.execute("CREATE ROLE subject LOGIN")
    server.execute(f"ALTER DATABASE {name} OWNER TO subject")
    node = await PostgresDatabase.open(server.url(name).replace("postgres@", "subject@"))
    await write_records(node.locks, (key("a"), Free(1, 1)))
    server.execute("ALTER TABLE volcano_locks.lock ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY", name)
    assert await unavailable(read_records(node.locks, key("a"))) == "no_permission"
    assert await unavailable(node.locks.ready()) == "no_permission"
    findings = await check_health(server.url(name).replace("postgres@", "subject@"), SystemClock())
    assert any("row-level security" in finding.found for finding in findings if not finding.good), findings
    server.execute("ALTER TABLE volcano_locks.lock DISABLE ROW LEVEL SECURITY", name)
    assert await read_records(node.locks, key("a")) == [Free(1, 1)]
    await node.close()


@pytest.mark.parametrize(
    ("change", "cause_code", "advice"),
    [
        ("ALTER DATABASE {} ALLOW_CONNECTIONS false", "no_permission", "ALLOW_CONNECTIONS true"),
        ("ALTER DATABASE {} CONNECTION LIMIT 0", "too_many_connections", "limit"),
        ("ALTER DATABASE {} SET default_transaction_read_only = on", "no_writable_node", "transaction_read_only"),
    ],
)
async def test_a_database_that_refuses_connections_has_its_own_causes(
    server: Postgres, change: str, cause_code: str, advice: str
) -> None:
    """CLI-15: the message names the setting."""
    name = server.new_database()
    server.execute("DROP ROLE IF EXISTS visitor")
    server.execute("CREATE ROLE visitor LOGIN")
    server.execute(change.format(name))
    with pytest.raises(StoreUnavailableError, match=advice) as caught:
        await PostgresDatabase.open(server.url(name).replace("postgres@", "visitor@"))
    assert caught.value.cause_code == cause_code


async def test_dead_idle_connections_are_replaced_without_an_error(node: PostgresDatabase) -> None:
    """case 26: a restart of an idle database causes no error."""
    await asyncio.gather(*(increment(node.locks, key(f"{number}")) for number in range(6)))
    assert not node._connections.hosts.pooled
    with connect(node) as other:
        other.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    numbers = await asyncio.gather(*(increment(node.locks, key(f"{number}")) for number in range(6)))
    assert numbers == [2] * 6


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT])
async def test_acknowledged_records_survive_a_restart(
    node: PostgresDatabase, server: Postgres, how: signal.Signals
) -> None:
    """case 26, LEASE-14: SIGQUIT is a crash."""
    acknowledged = await increment(node.locks, key("a"))
    stopping = asyncio.create_task(asyncio.to_thread(server.stop, how))
    refused = 0
    while refused < 5:
        try:
            acknowledged = await increment(node.locks, key("a"))
        except StoreUnavailableError:
            refused += 1
    await stopping
    assert await unavailable(node.locks.ready()) == "unreachable"
    server.start()  # in this thread: the kernel ends the server with the thread that started it
    assert await seconds_until_ready(node.locks, "b") < RECOVERY_SECONDS_MAX
    (record,) = await read_records(node.locks, key("a"))
    assert isinstance(record, Free)
    assert acknowledged <= record.fencing_token <= acknowledged + refused
    await node.locks.ready()


@pytest.mark.real_time
async def test_a_row_locked_by_another_program_is_unavailable_in_time_and_delays_no_other(
    node: PostgresDatabase,
) -> None:
    """LEASE-16: a stuck transaction of another program."""
    await write_records(node.locks, (key("a"), Free(1, 1)), (key("b"), Free(1, 1)))
    with connect(node) as other:
        other.autocommit = False
        other.execute("SELECT * FROM volcano_locks.lock WHERE key = 'a' FOR UPDATE")
        began = time.monotonic()
        stuck = asyncio.create_task(unavailable(increment(node.locks, key("a"))))
        assert await increment(node.locks, key("b")) == 2
        assert not stuck.done()
        assert await stuck == "store_busy"
        assert time.monotonic() - began < BLOCKED_SECONDS_MAX
        other.rollback()
    assert await increment(node.locks, key("a")) == 2


@pytest.mark.real_time
async def test_a_node_suspended_during_a_transaction_blocks_others_briefly(
    node: PostgresDatabase, server: Postgres
) -> None:
    """A node is suspended while it holds rows: others wait less than 5 s, and its transaction has no effect."""
    await write_records(node.locks, (key("a"), Free(1, 1)))
    stopped, gone_on = threading.Event(), threading.Event()
    outcome: list[str] = []

    def step(_records: Records, at_ms: int) -> StepResult:
        stopped.set()
        gone_on.wait(30)
        return StepResult({key("a"): Free(99, at_ms), key("new"): Free(99, at_ms)}, ())

    async def other_node() -> None:
        other = await PostgresDatabase.open(node._connections.hosts._hosts[0])
        outcome.append(await unavailable(other.locks.update([key("a"), key("new")], step)))
        await other.close()

    thread = threading.Thread(target=lambda: asyncio.run(other_node()))
    thread.start()
    await asyncio.to_thread(stopped.wait)
    assert await seconds_until_ready(node.locks) < BLOCKED_SECONDS_MAX
    gone_on.set()
    await asyncio.to_thread(thread.join)
    assert outcome in (["store_slow"], ["connection_lost"])
    assert await read_records(node.locks, key("new")) == [None]
    assert (await increment(node.locks, key("a"))) == 3


@pytest.mark.real_time
async def test_a_hung_database_is_unavailable_in_time_and_recovers(node: PostgresDatabase, server: Postgres) -> None:
    """LEASE-16: the database's processes are suspended; the network refuses nothing."""
    await increment(node.locks, key("a"))
    with connect(node) as other:
        backends = [
            int(str(row[0]))
            for row in other.execute("SELECT pid FROM pg_stat_activity WHERE application_name = 'volcano-locks'")
        ]
    for pid in (server.pid, *backends):
        os.kill(pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        assert await unavailable(increment(node.locks, key("a"))) in {"unreachable", "store_slow"}
        assert time.monotonic() - began < BLOCKED_SECONDS_MAX
    finally:
        for pid in (server.pid, *backends):
            os.kill(pid, signal.SIGCONT)
    assert await seconds_until_ready(node.locks) < RECOVERY_SECONDS_MAX


async def test_too_many_connections_is_reported_and_recovers(node: PostgresDatabase, server: Postgres) -> None:
    """53300: the service connects once the database allows it."""
    with ExitStack() as stack:
        with suppress(psycopg.OperationalError):
            while True:
                stack.enter_context(connect(node))
        fresh = await asyncio.gather(*(node.locks.ready() for _ in range(6)), return_exceptions=True)
        refused = [one.cause_code for one in fresh if isinstance(one, StoreUnavailableError)]
        assert set(refused) == {"too_many_connections"}
    assert await seconds_until_ready(node.locks) < RECOVERY_SECONDS_MAX


async def test_a_cancelled_caller_does_not_disturb_others(node: PostgresDatabase) -> None:
    for pause in range(12):
        call = asyncio.create_task(increment(node.locks, key("a")))
        for _ in range(pause):
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
    last = await increment(node.locks, key("a"))
    assert await asyncio.gather(*(increment(node.locks, key("a")) for _ in range(10))) != []
    (record,) = await read_records(node.locks, key("a"))
    assert isinstance(record, Free)
    assert record.fencing_token == last + 10


@pytest.mark.real_time
async def test_the_doctor_detects_commits_that_wait_for_a_missing_standby(node: PostgresDatabase) -> None:
    """CLI-25: everything else looks healthy."""
    url = node._connections.hosts._hosts[0]
    with connect(node) as other:
        other.execute("ALTER SYSTEM SET synchronous_standby_names = 'no_standby'")
        other.execute("SELECT pg_reload_conf()")
        try:
            while other.execute("SHOW synchronous_standby_names").fetchone() != ("no_standby",):
                await asyncio.sleep(0.01)
            hanging = {finding.about: finding for finding in await check_health(url, SystemClock())}
        finally:
            other.execute("ALTER SYSTEM RESET synchronous_standby_names")
            other.execute("SELECT pg_reload_conf()")
    assert "on a standby" in hanging["durability"].found
    assert not hanging["responds"].good
    await seconds_until_ready(node.locks)
    assert all(finding.good for finding in await check_health(url, SystemClock()))


async def test_the_doctor_detects_tables_that_a_crash_would_empty(node: PostgresDatabase) -> None:
    """CLI-25, LEASE-14"""
    with connect(node) as other:
        other.execute("ALTER TABLE volcano_locks.lock SET UNLOGGED")
    findings = {
        finding.about: finding for finding in await check_health(node._connections.hosts._hosts[0], SystemClock())
    }
    assert not findings["durability"].good
    assert "unlogged: lock" in findings["durability"].found


async def test_nothing_is_decided_after_the_row_of_the_clock_was_deleted(node: PostgresDatabase) -> None:
    """LEASE-1, LEASE-16, OPS-10: whether the records that are asked for exist or not."""
    await write_records(node.locks, (key("a"), Free(1, 1)))
    with connect(node) as other:
        other.execute("SET session_replication_role = replica")  # no trigger refuses it
        other.execute("DELETE FROM volcano_locks.newest_instant")
    for call in (
        increment(node.locks, key("a")),
        increment(node.locks, key("b")),
        node.locks.ready(),
        node.locks.count_held(),
        node.locks.list_locks(LockQuery(PROJECT, limit=1)),
    ):
        assert await unavailable(call) == "clock_damaged"


@pytest.mark.real_time
async def test_close_ends_hung_calls_and_refuses_new_ones(
    node: PostgresDatabase, server: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "CLOSE_SECONDS_MAX", 0.1)
    await write_records(node.locks, (key("a"), Free(1, 1)))
    with connect(node) as other:
        other.autocommit = False
        other.execute("SELECT * FROM volcano_locks.lock WHERE key = 'a' FOR UPDATE")
        stuck = asyncio.create_task(increment(node.locks, key("a")))
        while not server.execute("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"):
            await asyncio.sleep(0.01)
        await node.close()
        assert await unavailable(stuck) == "connection_lost"
        assert await unavailable(node.locks.ready()) == "stopping"


@pytest.mark.real_time
async def test_a_promoted_standby_has_every_acknowledged_record(capsys: pytest.CaptureFixture[str]) -> None:
    """case 26, LEASE-14: the primary is killed and its synchronous standby promoted; the URL names both."""
    with postgres.primary() as first:
        hosts = await PostgresDatabase.open(first.url())
        await hosts.close()
        with postgres.standby(first) as second:
            node = await PostgresDatabase.open(
                f"postgresql://postgres@127.0.0.1:{second.port},127.0.0.1:{first.port}/postgres"
            )
            acknowledged = [await increment(node.locks, key("a")) for _ in range(20)]
            ((granted,),) = [await run_commands(node.locks, (key("held"), Acquire(digest("x"), 60)))]
            first.stop(signal.SIGQUIT)
            assert await unavailable(increment(node.locks, key("a"))) in {"connection_lost", "no_writable_node"}
            assert await unavailable(node.locks.ready()) == "no_writable_node"
            assert await unavailable(node.registry.projects(limit=1, cursor=None)) == "no_writable_node"
            second.execute("ALTER SYSTEM RESET synchronous_standby_names")
            promoting = asyncio.create_task(asyncio.to_thread(second.promote))
            seconds = await seconds_until_ready(node.locks)
            await promoting
            with capsys.disabled():
                print(f"\nPostgreSQL promotion: served again {seconds:.2f} s after it was asked for")
            assert seconds < RECOVERY_SECONDS_MAX
            ((again,),) = [await run_commands(node.locks, (key("held"), Acquire(digest("x"), 60)))]
            assert isinstance(granted, Granted)
            assert isinstance(again, Granted)
            assert again.fencing_token == granted.fencing_token
            assert await increment(node.locks, key("a")) == acknowledged[-1] + 2
            await node.close()


@pytest.mark.real_time
async def test_a_demoted_primary_is_abandoned_although_it_responds(server: Postgres) -> None:
    """case 26, LIST-3: 25006. The old primary still responds to SELECT; the node drops its connections and returns
    nothing read there.
    """
    database = server.new_database()
    with postgres.primary(fsync=False) as promoted:
        await (await PostgresDatabase.open(promoted.url())).close()
        promoted.execute(f"CREATE DATABASE {database} TEMPLATE postgres")
        await (await PostgresDatabase.open(server.url(database))).close()
        for one in (server, promoted):  # a standby has the schema of its primary
            one.execute("UPDATE volcano_locks.migration SET applied_at = '2026-01-01'", database)
        url = f"postgresql://postgres@127.0.0.1:{server.port},127.0.0.1:{promoted.port}/{database}"
        node, onlooker = await PostgresDatabase.open(url), await PostgresDatabase.open(url)
        await node.registry.add_project(Project("p-old", "old", 0, 1))
        assert (await onlooker.locks.list_locks(LockQuery(PROJECT, 1))).records == []
        await asyncio.gather(*(increment(node.locks, key(f"{number}")) for number in range(4)))
        ((newest_ms,),) = server.execute("SELECT now_ms FROM volcano_locks.newest_instant", database)
        promoted.execute(f"UPDATE volcano_locks.newest_instant SET now_ms = {newest_ms}", database)
        server.execute("ALTER SYSTEM SET default_transaction_read_only = on")
        server.execute("SELECT pg_reload_conf()")
        try:
            until_settings_loaded(server, "on")
            first = await asyncio.gather(node.registry.projects(limit=5, cursor=None), return_exceptions=True)
            assert isinstance(first[0], StoreUnavailableError)
            with pytest.raises(StoreUnavailableError):
                await onlooker.locks.list_locks(LockQuery(PROJECT, 1))
            assert (await onlooker.locks.list_locks(LockQuery(PROJECT, 1))).records == []
            assert await seconds_until_ready(node.locks) < RECOVERY_SECONDS_MAX
            assert (await node.registry.projects(limit=5, cursor=None)).items == []
            assert len(promoted.execute("SELECT 1 FROM volcano_locks.lock", database)) == 1
        finally:
            await node.close()
            await onlooker.close()
            server.execute("ALTER SYSTEM RESET default_transaction_read_only")
            server.execute("SELECT pg_reload_conf()")
            until_settings_loaded(server, "off")


@pytest.mark.real_time
async def test_a_primary_that_survives_a_promotion_is_abandoned() -> None:
    """case 26, LEASE-12, LEASE-16, ADMIN-9: this primary responds to SELECT but finishes no commit. A node that only
    reads gets nothing outdated from it, and moves to the new primary by itself.
    """
    with postgres.primary() as first, postgres.standby(first) as second:
        hosts = f"127.0.0.1:{first.port},127.0.0.1:{second.port}"
        async with AsyncExitStack() as stack:

            async def opened(url: str) -> PostgresDatabase:
                node = await PostgresDatabase.open(url)
                stack.push_async_callback(node.close)
                return node

            locks, lists, keys = [await opened(f"postgresql://postgres@{hosts}/postgres") for _ in range(3)]
            await keys.registry.add_project(Project("p-old", "old", 0, 1))
            await write_records(locks.locks, (key("a"), Free(1, 1)))

            def read() -> "list[asyncio.Future[object]]":
                return [
                    asyncio.ensure_future(read_records(locks.locks, key("a"))),
                    asyncio.ensure_future(lists.locks.list_locks(LockQuery(PROJECT, 1))),
                    asyncio.ensure_future(keys.registry.project("p-old")),
                ]

            await asyncio.gather(*read())
            await asyncio.to_thread(second.promote)
            promoted_at = time.monotonic()
            other = await opened(second.url())
            await write_records(other.locks, (key("a"), Free(2, 2)))
            await other.registry.delete_project("p-old")
            await asyncio.sleep(promoted_at + connections.CONFIRMED_SECONDS_MAX - time.monotonic())
            assert [await unavailable(one) for one in read()] == ["store_slow"] * 3
            assert time.monotonic() - promoted_at < RECOVERY_SECONDS_MAX
            record, listed, gone = await asyncio.gather(*read(), return_exceptions=True)
            assert record == [Free(2, 2)]
            assert isinstance(listed, LockPage)
            assert [one for _, one in listed.records] == [Free(2, 2)]
            assert isinstance(gone, LockError)
            assert gone.code == "not_found"


@pytest.mark.real_time
async def test_a_commit_without_confirmation_is_in_doubt() -> None:
    """LEASE-14: a cancelled caller does not make the commit visible; a commit cancelled in the server is in doubt."""
    with postgres.primary() as first:
        node = await PostgresDatabase.open(first.url())
        await write_records(node.locks, (key("a"), Free(1, 1)))
        with postgres.standby(first) as second:
            receivers = second.execute("SELECT pid FROM pg_stat_activity WHERE backend_type = 'walreceiver'")
            os.kill(receivers[0][0], signal.SIGSTOP)
            waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
            try:
                call = asyncio.create_task(increment(node.locks, key("a")))
                while not (pids := first.execute(waiting)):
                    await asyncio.sleep(0.01)
                call.cancel()
                await asyncio.gather(call, return_exceptions=True)
                await asyncio.sleep(0.3)
                assert first.execute(waiting) == pids, "giving up must not cancel the wait"
                tokens = "SELECT fencing_token FROM volcano_locks.lock"
                assert first.execute(tokens) == [(1,)]

                other = asyncio.create_task(unavailable(increment(node.locks, key("b"))))
                while len(both := first.execute(waiting)) < 2:
                    await asyncio.sleep(0.01)
                (doubtful,) = set(both) - set(pids)
                first.execute(f"SELECT pg_cancel_backend({doubtful[0]})")
                assert await other == "commit_in_doubt"
            finally:
                os.kill(receivers[0][0], signal.SIGCONT)
            while first.execute(tokens + " WHERE key = 'a'") != [(2,)]:
                await asyncio.sleep(0.01)
        await node.close()


@pytest.mark.real_time
async def test_hung_commits_use_few_connections_and_end_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    """LEASE-16: while the synchronous standby is away, calls fail in time; when it returns, the node recovers."""
    monkeypatch.setattr(connections, "TRANSACTION_SECONDS_MAX", 1.0)
    with postgres.primary() as first:
        node = await PostgresDatabase.open(first.url())
        with postgres.standby(first) as second:
            receivers = second.execute("SELECT pid FROM pg_stat_activity WHERE backend_type = 'walreceiver'")
            os.kill(receivers[0][0], signal.SIGSTOP)
            try:
                causes = [await unavailable(increment(node.locks, key(f"{number}"))) for number in range(12)]
                waiting = first.execute("SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
            finally:
                os.kill(receivers[0][0], signal.SIGCONT)
            assert causes == ["store_slow"] * HUNG_MAX + ["commits_hang"] * (12 - HUNG_MAX)
            assert len(waiting) == HUNG_MAX
            monkeypatch.undo()
            assert await seconds_until_ready(node.locks) < RECOVERY_SECONDS_MAX
            assert await increment(node.locks, key("0")) == 2
        await node.close()


@pytest.mark.real_time
async def test_hung_commits_lead_to_another_server_behind_the_same_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """case 26, LEASE-16: the name leads to the promoted standby, while connections to the old primary stay open."""
    with postgres.primary() as first, postgres.standby(first) as second:
        async with FaultProxy(first.port) as way:
            node = await PostgresDatabase.open(f"postgresql://postgres@127.0.0.1:{way.port}/postgres")
            keys = [key(f"{number}") for number in range(HUNG_MAX)]
            await asyncio.gather(*(increment(node.locks, one) for one in keys))
            way.forward_to(second.port)
            await asyncio.to_thread(second.promote)
            monkeypatch.setattr(connections, "TRANSACTION_SECONDS_MAX", 1.0)
            causes = await asyncio.gather(*(unavailable(increment(node.locks, one)) for one in keys))
            assert causes == ["store_slow"] * HUNG_MAX
            assert len(first.execute("SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'")) == HUNG_MAX
            monkeypatch.undo()
            assert await seconds_until_ready(node.locks) < RECOVERY_SECONDS_MAX
            await node.close()


async def test_the_wait_for_a_connection_is_bounded(node: PostgresDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "TRANSACTION_SECONDS_MAX", 0.1)
    async with AsyncExitStack() as stack:
        for _ in range(connections.CONNECTIONS_MAX):
            await stack.enter_async_context(node._connections.transaction(seconds=30))
        assert await unavailable(node.locks.ready()) == "overloaded"
    monkeypatch.undo()
    await node.locks.ready()


@pytest.mark.real_time
async def test_pgbouncer_in_transaction_mode_changes_nothing(server: Postgres) -> None:
    """case 29: no statement, setting or lock outlives its transaction, so any server connection will do."""
    database = server.new_database()
    with postgres.pgbouncer(server) as port:
        url = f"postgresql://postgres@127.0.0.1:{port}/{database}"
        nodes = [await PostgresDatabase.open(url) for _ in range(3)]
        assert nodes[0]._connections.hosts.pooled, "the pooler was not detected"
        await nodes[0].registry.add_project(Project("p-1", "one", 0, 1))
        calls = [increment(one.locks, key(name)) for _ in range(10) for one in nodes for name in "ab"]
        reads = [one.registry.project("p-1") for one in nodes for _ in range(5)]
        draws = [one.quotas.take("p-1", 0, limit=10, wanted=3) for one in nodes for _ in range(2)]
        numbers, projects, drawn = await asyncio.gather(
            asyncio.gather(*calls), asyncio.gather(*reads), asyncio.gather(*draws)
        )
        assert sorted(numbers) == sorted([*range(1, 31), *range(1, 31)])
        assert {one.name for one in projects} == {"one"}
        assert sum(drawn) == 10
        with psycopg.connect(server.url(database), autocommit=True) as other:
            advisory = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
            assert other.execute(advisory).fetchone() == (0,)
            other.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        for one in nodes:
            assert await seconds_until_ready(one.locks) < RECOVERY_SECONDS_MAX
            await one.locks.ready()
            await one.close()
