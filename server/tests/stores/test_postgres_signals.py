"""The connection that listens dies, hangs, or leads to a pooler; and strangers write to the channel."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg
import pytest
from testsupport.engines import postgres
from testsupport.fault_proxy import Wire

from volcano_locks_server.stores.postgres import PostgresDatabase
from volcano_locks_server.stores.postgres.signals import CHANNEL, PostgresSignals

from .ears import Ear

pytestmark = pytest.mark.real_time


@asynccontextmanager
async def wired(database: str) -> AsyncIterator[tuple[Wire, Ear, Ear]]:
    """Two nodes that listen; the first one by way of a wire."""
    port = psycopg.conninfo.conninfo_to_dict(database)["port"]
    async with (
        Wire(int(str(port))) as wire,
        listening(database) as other,
        listening(database.replace(f":{port}/", f":{wire.port}/")) as one,
    ):
        yield wire, one, other


@asynccontextmanager
async def listening(url: str, *, works: bool = True) -> AsyncIterator[Ear]:
    """A node on that database."""
    database = await PostgresDatabase.open(url)
    try:
        ear = Ear(database.signals)
        if works:
            await ear.listens()
        yield ear
    finally:
        await database.close()


def end_sessions(database: str, *ears: Ear) -> None:
    """End the sessions by which these listen."""
    with psycopg.connect(database, autocommit=True) as connection:
        for ear in ears:
            assert isinstance(ear.signals, PostgresSignals)
            assert ear.signals._link is not None
            process = ear.signals._link.connection.get_server_pid()
            connection.execute("SELECT pg_terminate_backend(%s)", (process,))


async def test_a_session_that_was_ended_is_missed_and_replaced(database: str) -> None:
    """WAIT-10."""
    async with listening(database) as one, listening(database) as other:
        before = one.missed, other.missed
        await asyncio.to_thread(end_sessions, database, one, other)
        await one.until(lambda: one.missed > before[0] + 1 and one.signals.working)
        await other.until(lambda: other.missed > before[1] + 1 and other.signals.working)
        one.signals.tell(b"again")
        await other.hears(b"again")
        await one.hears(b"again")


async def test_a_way_that_is_silent_is_noticed_and_left(database: str) -> None:
    """A connection that is dead says nothing, so it is asked."""
    async with wired(database) as (wire, one, other):
        before = one.missed
        wire.keep_all()
        await one.until(lambda: one.missed > before and not one.signals.working)
        one.signals.tell(b"kept")
        wire.cut()
        wire.pass_all()
        await one.listens()
        await other.hears(b"kept")
        other.signals.tell(b"hello")
        await one.hears(b"hello")


async def test_a_message_that_may_be_lost_is_told_to_everybody(database: str) -> None:
    async with wired(database) as (wire, one, other):
        before = other.missed
        wire.requests.clear()
        one.signals.tell(b"on its way")
        await one.until(lambda: not one.signals.working)
        wire.cut()
        wire.pass_all()
        await other.until(lambda: other.missed > before)


async def test_the_server_restarts(tmp_path_factory: pytest.TempPathFactory) -> None:
    with postgres.primary(fsync=False) as server:
        async with listening(server.url()) as one, listening(server.url()) as other:
            await asyncio.to_thread(server.stop)
            await one.until(lambda: not one.signals.working)
            one.signals.tell(b"meanwhile")
            await asyncio.to_thread(server.start)
            await other.listens()
            await one.listens()
            one.signals.tell(b"later")
            await other.hears(b"later")


async def test_the_host_that_batches_left_is_left(database: str) -> None:
    """Two nodes on two hosts, each of them alive, would not hear each other."""
    port = postgres.shared().port
    node = await PostgresDatabase.open(database.replace(f":{port}/", f":{port},localhost:{port}/"))
    one = Ear(node.signals)
    await one.listens()
    before = one.missed
    hosts = node._connections.hosts
    hosts._last = hosts._first_asked = 1  # as where the first one did not answer a batch
    await one.until(lambda: one.missed > before + 1 and one.signals.working)
    assert node.signals._link is not None
    assert "@localhost:" in node.signals._link.host
    await node.close()


async def test_behind_a_pooler_a_node_is_heard_and_knows_that_it_does_not_hear(database: str) -> None:
    """LISTEN would stay behind on sessions of others, so it is not tried."""
    server = postgres.shared()
    with postgres.pgbouncer(server) as port:
        async with listening(database) as other:
            pooled = database.replace(f":{server.port}/", f":{port}/")
            async with listening(pooled, works=False) as one:
                one.signals.tell(b"from behind")
                await other.hears(b"from behind")
                await one.until(lambda: one.missed >= 3)
                assert not one.signals.working
                assert one.heard == []


async def test_what_strangers_write_is_passed_over(database: str) -> None:
    """Any user of the database may notify."""
    forged = ["", "hello", "1 zz 1 whole\nx", f"1 {'a' * 12} {'9' * 40} whole\nx", "2 abcdefabcdef 1 whole\nx", "\né"]
    async with listening(database) as one:
        with psycopg.connect(database, autocommit=True) as connection:
            for payload in forged:
                connection.execute("SELECT pg_notify(%s, %s)", (CHANNEL, payload))
            connection.execute("SELECT pg_notify(%s, %s)", (CHANNEL, f"1 {'a' * 12} 7 whole\nfrom a stranger"))
        await one.hears(b"from a stranger")
        assert one.heard == [b"from a stranger"]
        assert one.signals.working


async def test_many_go_out_together(database: str) -> None:
    """A notification a packet, a transaction a packet, and none of them waits for the disk."""
    async with listening(database) as one, listening(database) as other:
        heard: list[str] = []
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute(f"LISTEN {CHANNEL}")
            told = [b"message %d" % number for number in range(3_000)]
            for message in told:
                one.signals.tell(message)
            await other.hears(*told)
            heard = [notify.payload for notify in connection.notifies(timeout=1)]
        packets = [payload for payload in heard if "\n" in payload]
        assert len(packets) <= 8
        assert all(len(payload) < 8_000 for payload in packets)
