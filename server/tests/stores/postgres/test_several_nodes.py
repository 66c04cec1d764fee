"""Several nodes on one PostgreSQL database: one state, one order, one clock."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable

import psycopg
import pytest

from volcano_locks_server.ports.lock_store import Records, StepResult
from volcano_locks_server.ports.registry import NewSecret
from volcano_locks_server.rules.errors import StoreUnavailableError
from volcano_locks_server.rules.hold import HoldFacts, Requester
from volcano_locks_server.rules.lease import RETENTION_MS, Acquire, Free, Granted, Held, Refused, Release, Renew
from volcano_locks_server.stores.postgres import PostgresDatabase, connections
from volcano_locks_server.stores.postgres.locks import PostgresStore
from volcano_locks_server.stores.postgres.read_only import read_transaction
from volcano_locks_server.testing import ManualClock

from ..store_actions import PROJECT, digest, held, increment, key, read_records, run_commands, write_records
from ..test_history import entries_of

Node = Callable[..., Awaitable[PostgresDatabase]]


@pytest.fixture
async def node(database: str) -> AsyncIterator[Node]:
    """Opens one more node on the database, by default with the database's clock."""
    nodes: list[PostgresDatabase] = []

    async def opened(clock: ManualClock | None = None) -> PostgresDatabase:
        nodes.append(await PostgresDatabase.open(database, clock=clock))
        return nodes[-1]

    yield opened
    for one in nodes:
        await one.close()


async def now_ms(locks: PostgresStore) -> int:
    """The instant that a step sees."""
    return (await locks.update([], lambda _records, at_ms: StepResult({}, [at_ms])))[0]  # type: ignore[return-value]


async def test_nodes_see_each_others_leases(node: Node) -> None:
    one, other = await node(), await node()
    ((granted,),) = [await run_commands(one.locks, (key("a"), Acquire(digest("x"), 30)))]
    ((refused,),) = [await run_commands(other.locks, (key("a"), Acquire(digest("y"), 30)))]
    assert isinstance(granted, Granted)
    assert isinstance(refused, Refused)


async def test_racing_nodes_lose_no_update(node: Node) -> None:
    """case 20: also for a record that does not exist yet, which any of them may create."""
    nodes = [await node() for _ in range(3)]
    calls = [increment(one.locks, key(name)) for _ in range(15) for one in nodes for name in "ab"]
    numbers = await asyncio.gather(*calls)
    assert sorted(numbers) == sorted([*range(1, 46), *range(1, 46)])


async def test_one_of_racing_acquires_wins_and_tokens_rise(node: Node) -> None:
    """case 20, LEASE-3: rounds of 30 on one key, which is freed in between."""
    nodes = [await node() for _ in range(3)]
    last = 0
    for turn in range(5):
        races = (
            run_commands(one.locks, (key("a"), Acquire(digest(f"{turn}-{place}-{number}"), 30)))
            for number in range(10)
            for place, one in enumerate(nodes)
        )
        granted = [one for (one,) in await asyncio.gather(*races) if isinstance(one, Granted)]
        assert len(granted) == 1
        assert granted[0].fencing_token > last
        last = granted[0].fencing_token
        await write_records(nodes[0].locks, (key("a"), Free(last, 1)))


async def test_batches_over_the_same_keys_do_not_deadlock(node: Node, database: str) -> None:
    """Existing and new rows, forwards and backwards: PostgreSQL counts no deadlock."""
    nodes = [await node(), await node()]

    async def raise_all(store: PostgresStore, names: list[str]) -> None:
        def step(records: Records, at_ms: int) -> StepResult:
            free = {one: Free((record.fencing_token if record else 0) + 1, at_ms) for one, record in records.items()}
            return StepResult(free, ())

        await store.update([key(name) for name in names], step)

    for turn in range(6):
        names = [f"{turn}-{number}" for number in range(400)]
        if turn % 2:
            await raise_all(nodes[0].locks, names[::3])
        await asyncio.gather(
            *(raise_all(nodes[place % 2].locks, names[:: -1 if place % 3 else 1]) for place in range(6))
        )
        records = await read_records(nodes[0].locks, *map(key, names))
        assert [one.fencing_token for one in records if one] == [
            6 + (turn % 2 and number % 3 == 0) for number in range(400)
        ]
    with psycopg.connect(database) as connection:
        deadlocks = connection.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
        assert deadlocks.fetchone() == (0,)


async def test_a_step_runs_again_if_another_node_created_its_record(node: Node, database: str) -> None:
    """Two nodes create a record at once: one succeeds, and the other sees it on its second run."""
    one = await node()
    seen: list[object] = []

    def step(records: Records, at_ms: int) -> StepResult:
        seen.append(records[key("a")])
        if len(seen) == 1:
            thread = threading.Thread(target=lambda: asyncio.run(elsewhere()))
            thread.start()
            thread.join()
        return StepResult({key("a"): Free(2, at_ms)}, ["done"])

    async def elsewhere() -> None:
        third = await PostgresDatabase.open(database)
        await write_records(third.locks, (key("a"), Free(1, 1)))
        await third.close()

    assert await one.locks.update([key("a")], step) == ["done"]
    assert seen == [None, Free(1, 1)]
    assert one.counts.conflicts == one.counts.retries == 1


@pytest.mark.real_time
async def test_the_clock_is_read_after_a_wait_for_a_row(node: Node, database: str) -> None:
    """case 27, case 30: a step that waited for a row gets the instant after the wait."""
    one = await node()
    await write_records(one.locks, (key("a"), Free(1, 1)), (key("z"), Free(1, 1)))
    with psycopg.connect(database) as foreign:
        foreign.execute("SELECT * FROM volcano_locks.lock WHERE key = 'z' FOR UPDATE")
        before_ms = await now_ms(one.locks)
        both = [key("a"), key("z")]
        waiting = asyncio.create_task(one.locks.update(both, lambda _records, at_ms: StepResult({}, [at_ms])))
        await asyncio.sleep(0.5)
        foreign.commit()
        (judged_ms,) = await waiting
    assert isinstance(judged_ms, int)
    assert judged_ms >= before_ms + 450


async def test_the_time_is_the_databases(node: Node, database: str) -> None:
    """LEASE-1, case 30."""
    judged_ms = await now_ms((await node()).locks)
    with psycopg.connect(database) as connection:
        row = connection.execute("SELECT extract(epoch FROM clock_timestamp()) * 1000").fetchone()
    assert row is not None
    assert 0 <= float(row[0]) - judged_ms < 5_000


@pytest.mark.parametrize("what", ["held", "free"])
async def test_a_promoted_database_whose_clock_is_behind_is_refused(node: Node, what: str) -> None:
    """LEASE-1: a node that knows no earlier instant refuses too if the lock's own record is ahead of the clock."""
    clock, behind = ManualClock(), ManualClock()
    ahead = (await node(clock)).locks
    await write_records(ahead, (key("c"), Free(1, clock.now_ms())))
    clock.advance(300)
    record: Held | Free = held("a", clock.now_ms()) if what == "held" else Free(7, clock.now_ms())
    await write_records(ahead, (key("a"), record))
    fresh = (await node(behind)).locks
    assert await read_records(fresh, key("b")) == [None]
    with pytest.raises(StoreUnavailableError) as caught:
        await read_records(fresh, key("a"), key("b"))
    assert caught.value.cause_code == "clock_behind"
    behind.advance(300)
    assert await read_records(fresh, key("a")) == [record]


async def test_time_goes_back_by_no_more_than_a_second_for_any_lock(node: Node) -> None:
    """LEASE-1, LEASE-3: the database stores the newest instant, even for purged records."""
    clock, behind = ManualClock(), ManualClock()
    fresh = (await node(behind)).locks
    clock.advance(86_400_000)
    await write_records((await node(clock)).locks, (key("a"), Free(1, 1)))
    for refused in (lambda: read_records(fresh, key("b")), fresh.ready, fresh.count_held, lambda: fresh.purge(limit=1)):
        with pytest.raises(StoreUnavailableError) as caught:
            await refused()
        assert caught.value.cause_code == "clock_behind"
    behind.advance(86_400_000)
    await fresh.ready()


async def test_a_node_starts_at_most_5_seconds_behind_the_store(node: Node) -> None:
    """LEASE-1."""
    clock, behind = ManualClock(), ManualClock()
    clock.advance(5_001)
    await write_records((await node(clock)).locks, (key("a"), Free(1, 1)))
    with pytest.raises(StoreUnavailableError, match=r"set the clock of the database's machine right") as caught:
        await node(behind)
    assert caught.value.cause_code == "clock_behind"
    behind.advance(1)
    with pytest.raises(StoreUnavailableError):
        await read_records((await node(behind)).locks, key("b"))


async def test_two_nodes_purge_side_by_side(node: Node, clock: ManualClock) -> None:
    """LEASE-13: each record is purged once, and neither node waits for the other."""
    one, other = await node(clock), await node(clock)
    await write_records(one.locks, *((key(f"k{number}"), Free(1, clock.now_ms())) for number in range(900)))
    clock.advance(RETENTION_MS)
    gone = await asyncio.gather(one.locks.purge(limit=5_000), other.locks.purge(limit=5_000))
    assert sum(gone) + await one.locks.purge(limit=5_000) == 900
    assert sum(gone) >= 500


async def test_a_node_of_0_1_0_may_serve_beside(node: Node, database: str) -> None:
    """HISTORY-2: it does not know the later columns, and leaves in them what belongs to an earlier lease."""
    locks = (await node()).locks
    by = Requester("key-1", "worker")
    for name in "ab":
        await run_commands(locks, (key(name), Acquire(digest(name), 30, None, by)))
    at_ms = await now_ms(locks)
    lease = {
        "fencing_token": 2**50, "owner_digest": digest("old"), "expires_at_ms": at_ms + 9_000,
        "deadline_ms": at_ms + 90_000, "acquired_at_ms": at_ms, "renewed_at_ms": at_ms, "ttl_seconds": 9,
        "holder": "old", "freed_at_ms": None, "retired_digests": None,
    }  # fmt: skip
    columns, values = ", ".join(lease), ", ".join(f"%({name})s" for name in lease)
    with psycopg.connect(database, autocommit=True) as connection:  # as it takes `a` over, and takes the new lock `c`
        connection.execute(f"UPDATE volcano_locks.lock SET ({columns}) = ({values}) WHERE key = 'a'", lease)
        new = f"INSERT INTO volcano_locks.lock (project_id, key, {columns}) VALUES ('{PROJECT}', 'c', {values})"
        connection.execute(new, lease)
    for name in "ac":
        (current,) = await entries_of(locks, name)
        assert (current.holder, current.facts, current.ended) == ("old", None, None)
        (renewed,) = await run_commands(locks, (key(name), Renew(digest("old"), 30)))
        assert isinstance(renewed, Granted)
        await run_commands(locks, (key(name), Release(digest("old"))))
        (ended,) = await entries_of(locks, name)
        assert (ended.fencing_token, ended.facts, ended.ended) == (2**50, None, "released")
    (untouched,) = await entries_of(locks, "b")
    assert untouched.facts == HoldFacts(by, "free")


async def test_a_batch_that_changes_nothing_writes_nothing(
    node: Node, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Except a proof that the database is still the primary, if no commit was confirmed lately."""
    monkeypatch.setattr(connections, "CONFIRMED_SECONDS_MAX", 60)
    one = await node()
    await write_records(one.locks, (key("a"), Free(1, 1)))
    with psycopg.connect(database, autocommit=True) as connection:
        size = "SELECT pg_current_wal_insert_lsn()"
        before = connection.execute(size).fetchone()
        assert await read_records(one.locks, key("b"), key("c")) == [None, None]
        assert connection.execute(size).fetchone() == before


async def test_two_nodes_that_replace_a_secret_leave_one(node: Node) -> None:
    from ..test_registry import K1, P1

    one, other = await node(), await node()
    await one.registry.add_project(P1)
    await one.registry.add_service_key(K1, digest("first"))
    names = [f"{number}" for number in range(8)]
    await asyncio.gather(
        *(
            (one, other)[place % 2].registry.replace_secret("p-1", "k-1", NewSecret(digest(name), "sk-n"))
            for place, name in enumerate(names)
        ),
        *((one, other)[place % 2].registry.touch_service_keys({"k-1": place, "k-2": 1}) for place in range(8)),
    )
    good = [await other.registry.credential(digest(name)) for name in ["first", *names]]
    assert sum(one is not None for one in good) == 1


async def test_nodes_share_the_quota_of_a_minute(node: Node) -> None:
    nodes = [await node() for _ in range(3)]
    draws = [one.quotas.take("p", 60_000, limit=100, wanted=7) for _ in range(12) for one in nodes]
    assert sum(await asyncio.gather(*draws)) == 100
    assert await nodes[0].quotas.take("p", 60_000, limit=100, wanted=7) == 0
    assert await nodes[0].quotas.take("p", 60_000, limit=50, wanted=7) == 0
    assert await nodes[0].quotas.take("p", 60_000, limit=103, wanted=7) == 3
    assert await nodes[0].quotas.take("p", 120_000, limit=5, wanted=3) == 3
    assert await nodes[0].quotas.take("q", 120_000, limit=5, wanted=9) == 5


async def test_old_minutes_are_purged(node: Node, clock: ManualClock, database: str) -> None:
    one = await node(clock)
    await one.quotas.take("p", clock.now_ms(), limit=5, wanted=3)
    clock.advance(3_600_001)
    await one.quotas.take("p", clock.now_ms(), limit=5, wanted=3)
    await one.locks.purge(limit=10)
    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT window_started_at_ms FROM volcano_locks.quota").fetchall() == [
            (clock.now_ms(),)
        ]


async def test_reads_leave_connections_for_commits(node: Node) -> None:
    """HTTP-24: such as lookups of unknown credentials, of which anyone can send any number."""
    one = await node()
    end = asyncio.Event()

    async def read() -> None:
        async with read_transaction(one._connections):
            await end.wait()

    reads = [asyncio.create_task(read()) for _ in range(2 * connections.CONNECTIONS_MAX)]
    try:
        async with asyncio.timeout(30):
            while not one._connections.reads.locked():
                await asyncio.sleep(0.001)
        async with asyncio.timeout(2):
            await asyncio.gather(increment(one.locks, key("a")), increment(one.locks, key("b")))
    finally:
        end.set()
        await asyncio.gather(*reads)


@pytest.mark.real_time
async def test_a_read_waits_for_other_reads_no_longer_than_a_transaction_may_take(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LEASE-16: also if the reads before it hang."""
    one = await node()
    for _ in range(connections.READS_MAX):
        await one._connections.reads.acquire()
    monkeypatch.setattr(connections, "TRANSACTION_SECONDS_MAX", 0.5)
    async with asyncio.timeout(5):
        with pytest.raises(StoreUnavailableError) as caught:
            await one.registry.project(PROJECT)
    assert caught.value.cause_code == "overloaded"


async def test_a_purge_of_the_history_takes_the_same_statements_for_many_projects(node: Node) -> None:
    """HISTORY-4: its transaction has a time limit, which a statement for each of thousands of projects would exceed."""
    one, statements = await node(), []
    for projects in (1, 20):
        names = [f"project-{projects}-{number}" for number in range(projects)]
        commands = [Acquire(digest("ann"), 30), Release(digest("ann")), Acquire(digest("ben"), 30)]
        await run_commands(one.locks, *((key("a", name), command) for name in names for command in commands))
        before = one.counts.round_trips
        assert await one.locks.purge_history(kept_days=7, limit=100, entries_max=0) == projects
        statements.append(one.counts.round_trips - before)
    assert statements[0] == statements[1]
