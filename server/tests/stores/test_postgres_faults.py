"""A database that ends, hangs, is replaced or locked: answered as unavailable in time, and served again by itself."""

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
from testsupport.fault_proxy import Wire

from volcano_locks_server.ports.clock import SystemClock
from volcano_locks_server.ports.lock_store import LockPage, LockQuery, Records, Stepped
from volcano_locks_server.ports.registry import Project
from volcano_locks_server.rules.errors import LockError, StoreUnavailableError
from volcano_locks_server.rules.lease import Acquire, Free, Granted
from volcano_locks_server.stores.postgres import PostgresDatabase, connections
from volcano_locks_server.stores.postgres.health import examine
from volcano_locks_server.stores.postgres.hosts import HUNG_MAX
from volcano_locks_server.stores.postgres.locks import PostgresStore

from .deeds import PROJECT, act, counted, digest, found, key, put

BLOCKED_SECONDS_MAX = 5.0 + BUSY_SECONDS
RECOVERY_SECONDS_MAX = 10.0 + BUSY_SECONDS


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    """A server that the tests here may do things to, and that syncs as one in production does."""
    with postgres.primary() as one:
        yield one


@pytest.fixture
async def node(server: Postgres) -> AsyncIterator[PostgresDatabase]:
    one = await PostgresDatabase.open(server.url(server.new_database()))
    yield one
    await one.close()


def connect(node: PostgresDatabase) -> "psycopg.Connection[tuple[object, ...]]":
    """A connection of somebody else to the node's database."""
    return psycopg.connect(node._connections.hosts.first, autocommit=True)


async def unavailable(awaitable: object) -> str:
    with pytest.raises(StoreUnavailableError) as caught:
        await awaitable  # type: ignore[misc]
    assert caught.value.code == "lock_service_unavailable"
    return caught.value.cause_code


async def until_well(locks: PostgresStore, lock: str = "a") -> float:
    """How many seconds pass until it serves again; each attempt in between is answered in time."""
    began = time.monotonic()
    while True:
        attempt = time.monotonic()
        try:
            await counted(locks, key(lock))
        except StoreUnavailableError:
            assert time.monotonic() - attempt < BLOCKED_SECONDS_MAX
            assert time.monotonic() - began < 60
            await asyncio.sleep(0.05)
        else:
            return time.monotonic() - began


def until_told(server: Postgres, read_only: str) -> None:
    """Return when the server has read its settings again, and has told its processes to: it forks the next one then."""
    while server.execute("SHOW default_transaction_read_only") != [(read_only,)]:
        time.sleep(0.01)


async def test_a_connection_killed_in_mid_transaction_leaves_nothing_half_done(node: PostgresDatabase) -> None:
    """case 26, LEASE-14: 57P01; the next call has another connection."""
    with connect(node) as other:

        def step(_records: Records, at_ms: int) -> Stepped:
            ended = other.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            assert ended.fetchall()
            return Stepped({key("a"): Free(1, at_ms), key("b"): Free(1, at_ms)}, ())

        assert await unavailable(node.locks.update([key("a"), key("b")], step)) == "connection_lost"
        assert await found(node.locks, key("a"), key("b")) == [None, None]


async def test_idle_connections_that_died_are_replaced_unnoticed(node: PostgresDatabase) -> None:
    """case 26: after a restart of the database in a quiet moment nobody is turned away."""
    await asyncio.gather(*(counted(node.locks, key(f"{number}")) for number in range(6)))
    assert not node._connections.hosts.pooled
    with connect(node) as other:
        other.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    numbers = await asyncio.gather(*(counted(node.locks, key(f"{number}")) for number in range(6)))
    assert numbers == [2] * 6


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT])
async def test_a_restart_is_survived_with_all_that_was_acknowledged(
    node: PostgresDatabase, server: Postgres, how: signal.Signals
) -> None:
    """case 26, LEASE-14: SIGQUIT is a crash."""
    acknowledged = await counted(node.locks, key("a"))
    stopping = asyncio.create_task(asyncio.to_thread(server.stop, how))
    refused = 0
    while refused < 5:
        try:
            acknowledged = await counted(node.locks, key("a"))
        except StoreUnavailableError:
            refused += 1
    await stopping
    assert await unavailable(node.locks.ready()) == "unreachable"
    server.start()  # in this thread: the kernel ends it with the thread that started it
    assert await until_well(node.locks, "b") < RECOVERY_SECONDS_MAX
    (record,) = await found(node.locks, key("a"))
    assert isinstance(record, Free)
    assert acknowledged <= record.fencing_token <= acknowledged + refused
    await node.locks.ready()


@pytest.mark.real_time
async def test_a_row_that_somebody_else_holds_is_unavailable_in_time_and_holds_up_no_other(
    node: PostgresDatabase,
) -> None:
    """LEASE-16: a stuck transaction of another program."""
    await put(node.locks, (key("a"), Free(1, 1)), (key("b"), Free(1, 1)))
    with connect(node) as other:
        other.autocommit = False
        other.execute("SELECT * FROM volcano_locks.lock WHERE key = 'a' FOR UPDATE")
        began = time.monotonic()
        stuck = asyncio.create_task(unavailable(counted(node.locks, key("a"))))
        assert await counted(node.locks, key("b")) == 2
        assert not stuck.done()
        assert await stuck == "store_busy"
        assert time.monotonic() - began < BLOCKED_SECONDS_MAX
        other.rollback()
    assert await counted(node.locks, key("a")) == 2


@pytest.mark.real_time
async def test_a_node_that_stops_in_mid_transaction_blocks_nobody_for_long(
    node: PostgresDatabase, server: Postgres
) -> None:
    """A node that is stopped while it holds rows, then goes on: the others waited for less than 5 s, and what it had
    begun is nothing.
    """
    await put(node.locks, (key("a"), Free(1, 1)))
    stopped, gone_on = threading.Event(), threading.Event()
    outcome: list[str] = []

    def step(_records: Records, at_ms: int) -> Stepped:
        stopped.set()
        gone_on.wait(30)
        return Stepped({key("a"): Free(99, at_ms), key("new"): Free(99, at_ms)}, ())

    async def other_node() -> None:
        other = await PostgresDatabase.open(node._connections.hosts.first)
        outcome.append(await unavailable(other.locks.update([key("a"), key("new")], step)))
        await other.close()

    thread = threading.Thread(target=lambda: asyncio.run(other_node()))
    thread.start()
    await asyncio.to_thread(stopped.wait)
    assert await until_well(node.locks) < BLOCKED_SECONDS_MAX
    gone_on.set()
    await asyncio.to_thread(thread.join)
    assert outcome in (["store_slow"], ["connection_lost"])
    assert await found(node.locks, key("new")) == [None]
    assert (await counted(node.locks, key("a"))) == 3


@pytest.mark.real_time
async def test_a_database_that_hangs_is_unavailable_in_time_and_is_well_by_itself(
    node: PostgresDatabase, server: Postgres
) -> None:
    """LEASE-16: its processes are stopped; nothing is refused by the network."""
    await counted(node.locks, key("a"))
    with connect(node) as other:
        backends = [
            int(str(row[0]))
            for row in other.execute("SELECT pid FROM pg_stat_activity WHERE application_name = 'volcano-locks'")
        ]
    for pid in (server.pid, *backends):
        os.kill(pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        assert await unavailable(counted(node.locks, key("a"))) in {"unreachable", "store_slow"}
        assert time.monotonic() - began < BLOCKED_SECONDS_MAX
    finally:
        for pid in (server.pid, *backends):
            os.kill(pid, signal.SIGCONT)
    assert await until_well(node.locks) < RECOVERY_SECONDS_MAX


async def test_a_full_pool_is_told_and_heals(node: PostgresDatabase, server: Postgres) -> None:
    """53300: nothing is left for the service; once there is, it takes it."""
    with ExitStack() as stack:
        with suppress(psycopg.OperationalError):
            while True:
                stack.enter_context(connect(node))
        fresh = await asyncio.gather(*(node.locks.ready() for _ in range(6)), return_exceptions=True)
        refused = [one.cause_code for one in fresh if isinstance(one, StoreUnavailableError)]
        assert set(refused) == {"too_many_connections"}
    assert await until_well(node.locks) < RECOVERY_SECONDS_MAX


async def test_a_caller_that_gives_up_disturbs_nobody(node: PostgresDatabase) -> None:
    for pause in range(12):
        call = asyncio.create_task(counted(node.locks, key("a")))
        for _ in range(pause):
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
    last = await counted(node.locks, key("a"))
    assert await asyncio.gather(*(counted(node.locks, key("a")) for _ in range(10))) != []
    (record,) = await found(node.locks, key("a"))
    assert isinstance(record, Free)
    assert record.fencing_token == last + 10


@pytest.mark.real_time
async def test_the_doctor_finds_that_commits_wait_for_a_standby_in_vain(node: PostgresDatabase) -> None:
    """CLI-25: everything else is well, and serves nobody."""
    url = node._connections.hosts.first
    with connect(node) as other:
        other.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        other.execute("SELECT pg_reload_conf()")
        try:
            while other.execute("SHOW synchronous_standby_names").fetchone() != ("nobody",):
                await asyncio.sleep(0.01)
            hanging = {finding.about: finding for finding in await examine(url, SystemClock())}
        finally:
            other.execute("ALTER SYSTEM RESET synchronous_standby_names")
            other.execute("SELECT pg_reload_conf()")
    assert "on a standby" in hanging["durability"].found
    assert not hanging["answers"].good
    await until_well(node.locks)
    assert all(finding.good for finding in await examine(url, SystemClock()))


@pytest.mark.real_time
async def test_close_ends_what_hangs_and_refuses_what_comes_later(
    node: PostgresDatabase, server: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "CLOSE_SECONDS_MAX", 0.1)
    await put(node.locks, (key("a"), Free(1, 1)))
    with connect(node) as other:
        other.autocommit = False
        other.execute("SELECT * FROM volcano_locks.lock WHERE key = 'a' FOR UPDATE")
        stuck = asyncio.create_task(counted(node.locks, key("a")))
        while not server.execute("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"):
            await asyncio.sleep(0.01)
        await node.close()
        assert await unavailable(stuck) == "connection_lost"
        assert await unavailable(node.locks.ready()) == "stopping"


@pytest.mark.real_time
async def test_a_promoted_standby_is_found_with_all_that_was_acknowledged(capsys: pytest.CaptureFixture[str]) -> None:
    """case 26, LEASE-14: the primary is killed, its synchronous standby promoted; the URL names both."""
    with postgres.primary() as first:
        hosts = await PostgresDatabase.open(first.url())
        await hosts.close()
        with postgres.standby(first) as second:
            node = await PostgresDatabase.open(
                f"postgresql://postgres@127.0.0.1:{second.port},127.0.0.1:{first.port}/postgres"
            )
            acknowledged = [await counted(node.locks, key("a")) for _ in range(20)]
            ((granted,),) = [await act(node.locks, (key("held"), Acquire(digest("x"), 60)))]
            first.stop(signal.SIGQUIT)
            assert await unavailable(counted(node.locks, key("a"))) in {"connection_lost", "no_writable_node"}
            assert await unavailable(node.locks.ready()) == "no_writable_node"
            assert await unavailable(node.registry.projects(limit=1, cursor=None)) == "no_writable_node"
            second.execute("ALTER SYSTEM RESET synchronous_standby_names")
            promoting = asyncio.create_task(asyncio.to_thread(second.promote))
            seconds = await until_well(node.locks)
            await promoting
            with capsys.disabled():
                print(f"\nPostgreSQL promotion: served again {seconds:.2f} s after it was asked for")
            assert seconds < RECOVERY_SECONDS_MAX
            ((again,),) = [await act(node.locks, (key("held"), Acquire(digest("x"), 60)))]
            assert isinstance(granted, Granted)
            assert isinstance(again, Granted)
            assert again.fencing_token == granted.fencing_token
            assert await counted(node.locks, key("a")) == acknowledged[-1] + 2
            await node.close()


@pytest.mark.real_time
async def test_a_demoted_primary_is_left_even_though_it_answers(server: Postgres) -> None:
    """case 26, LIST-3: 25006. The old primary lives and answers every SELECT; connections to it are dropped all the
    same, and nobody is told what it still says.
    """
    database = server.new_database()
    with postgres.primary(fsync=False) as promoted:
        await (await PostgresDatabase.open(promoted.url())).close()
        promoted.execute(f"CREATE DATABASE {database} TEMPLATE postgres")
        url = f"postgresql://postgres@127.0.0.1:{server.port},127.0.0.1:{promoted.port}/{database}"
        node, onlooker = await PostgresDatabase.open(url), await PostgresDatabase.open(url)
        await node.registry.add_project(Project("p-old", "old", 0, 1))
        assert (await onlooker.locks.list_locks(LockQuery(PROJECT, 1))).records == []
        await asyncio.gather(*(counted(node.locks, key(f"{number}")) for number in range(4)))
        server.execute("ALTER SYSTEM SET default_transaction_read_only = on")
        server.execute("SELECT pg_reload_conf()")
        try:
            until_told(server, "on")
            first = await asyncio.gather(node.registry.projects(limit=5, cursor=None), return_exceptions=True)
            assert isinstance(first[0], StoreUnavailableError)
            with pytest.raises(StoreUnavailableError):
                await onlooker.locks.list_locks(LockQuery(PROJECT, 1))
            assert (await onlooker.locks.list_locks(LockQuery(PROJECT, 1))).records == []
            assert await until_well(node.locks) < RECOVERY_SECONDS_MAX
            assert (await node.registry.projects(limit=5, cursor=None)).items == []
            assert len(promoted.execute("SELECT 1 FROM volcano_locks.lock", database)) == 1
        finally:
            await node.close()
            await onlooker.close()
            server.execute("ALTER SYSTEM RESET default_transaction_read_only")
            server.execute("SELECT pg_reload_conf()")
            until_told(server, "off")


@pytest.mark.real_time
async def test_a_primary_that_lives_on_after_a_promotion_is_neither_believed_nor_stayed_with() -> None:
    """case 26, LEASE-12, LEASE-16, ADMIN-9: it answers every SELECT, and finishes no commit. Whoever only reads there
    hears nothing of it that was not so a moment ago, and goes over to the new primary by itself.
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
            await put(locks.locks, (key("a"), Free(1, 1)))

            def read() -> "list[asyncio.Future[object]]":
                return [
                    asyncio.ensure_future(found(locks.locks, key("a"))),
                    asyncio.ensure_future(lists.locks.list_locks(LockQuery(PROJECT, 1))),
                    asyncio.ensure_future(keys.registry.project("p-old")),
                ]

            await asyncio.gather(*read())
            await asyncio.to_thread(second.promote)
            promoted_at = time.monotonic()
            other = await opened(second.url())
            await put(other.locks, (key("a"), Free(2, 2)))
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
async def test_a_commit_that_no_standby_confirmed_is_in_doubt_and_not_called_done() -> None:
    """LEASE-14: whoever gives up on such a commit does not make it visible; one that is cancelled is told apart."""
    with postgres.primary() as first:
        node = await PostgresDatabase.open(first.url())
        await put(node.locks, (key("a"), Free(1, 1)))
        with postgres.standby(first) as second:
            receivers = second.execute("SELECT pid FROM pg_stat_activity WHERE backend_type = 'walreceiver'")
            os.kill(receivers[0][0], signal.SIGSTOP)
            waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
            try:
                call = asyncio.create_task(counted(node.locks, key("a")))
                while not (pids := first.execute(waiting)):
                    await asyncio.sleep(0.01)
                call.cancel()
                await asyncio.gather(call, return_exceptions=True)
                await asyncio.sleep(0.3)
                assert first.execute(waiting) == pids, "giving up must not cancel the wait"
                tokens = "SELECT fencing_token FROM volcano_locks.lock"
                assert first.execute(tokens) == [(1,)]

                other = asyncio.create_task(unavailable(counted(node.locks, key("b"))))
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
async def test_commits_that_hang_use_up_few_connections_and_end_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    """LEASE-16: the synchronous standby is gone for long; each call is answered in time, and all is well when it is
    back.
    """
    monkeypatch.setattr(connections, "TRANSACTION_SECONDS_MAX", 1.0)
    with postgres.primary() as first:
        node = await PostgresDatabase.open(first.url())
        with postgres.standby(first) as second:
            receivers = second.execute("SELECT pid FROM pg_stat_activity WHERE backend_type = 'walreceiver'")
            os.kill(receivers[0][0], signal.SIGSTOP)
            try:
                causes = [await unavailable(counted(node.locks, key(f"{number}"))) for number in range(12)]
                waiting = first.execute("SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
            finally:
                os.kill(receivers[0][0], signal.SIGCONT)
            assert causes == ["store_slow"] * HUNG_MAX + ["commits_hang"] * (12 - HUNG_MAX)
            assert len(waiting) == HUNG_MAX
            monkeypatch.undo()
            assert await until_well(node.locks) < RECOVERY_SECONDS_MAX
            assert await counted(node.locks, key("0")) == 2
        await node.close()


@pytest.mark.real_time
async def test_where_commits_hang_another_server_behind_the_same_name_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """case 26, LEASE-16: the name leads to the promoted standby, but the connections to the old primary stay open."""
    with postgres.primary() as first, postgres.standby(first) as second:
        async with Wire(first.port) as way:
            node = await PostgresDatabase.open(f"postgresql://postgres@127.0.0.1:{way.port}/postgres")
            keys = [key(f"{number}") for number in range(HUNG_MAX)]
            await asyncio.gather(*(counted(node.locks, one) for one in keys))
            way.turn_to(second.port)
            await asyncio.to_thread(second.promote)
            monkeypatch.setattr(connections, "TRANSACTION_SECONDS_MAX", 1.0)
            causes = await asyncio.gather(*(unavailable(counted(node.locks, one)) for one in keys))
            assert causes == ["store_slow"] * HUNG_MAX
            assert len(first.execute("SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'")) == HUNG_MAX
            monkeypatch.undo()
            assert await until_well(node.locks) < RECOVERY_SECONDS_MAX
            await node.close()


async def test_callers_wait_for_a_connection_no_longer_than_a_transaction_may_take(
    node: PostgresDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "TRANSACTION_SECONDS_MAX", 0.1)
    async with AsyncExitStack() as stack:
        for _ in range(connections.CONNECTIONS_MAX):
            await stack.enter_async_context(node._connections.transaction(seconds=30))
        assert await unavailable(node.locks.ready()) == "overloaded"
    monkeypatch.undo()
    await node.locks.ready()


@pytest.mark.real_time
async def test_behind_pgbouncer_in_transaction_mode_all_is_the_same(server: Postgres) -> None:
    """case 29: no statement, setting or lock outlives its transaction, so any server connection will do."""
    database = server.new_database()
    with postgres.pgbouncer(server) as port:
        url = f"postgresql://postgres@127.0.0.1:{port}/{database}"
        nodes = [await PostgresDatabase.open(url) for _ in range(3)]
        assert nodes[0]._connections.hosts.pooled, "the pooler was taken for the database"
        await nodes[0].registry.add_project(Project("p-1", "one", 0, 1))
        calls = [counted(one.locks, key(name)) for _ in range(10) for one in nodes for name in "ab"]
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
            assert await until_well(one.locks) < RECOVERY_SECONDS_MAX
            await one.locks.ready()
            await one.close()
