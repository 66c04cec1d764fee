"""Signals over PostgreSQL when the connection fails, hangs or leads to a pooler; and foreign text on the channel."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg
import pytest
from testsupport.engines import postgres
from testsupport.fault_proxy import FaultProxy

from volcano_locks_server.stores.postgres import PostgresDatabase
from volcano_locks_server.stores.postgres.schema import migration_number
from volcano_locks_server.stores.postgres.signals import OPEN_CHANNEL, PostgresSignals

from ..signal_recorder import SignalRecorder

pytestmark = pytest.mark.real_time


@asynccontextmanager
async def proxied(database: str) -> AsyncIterator[tuple[FaultProxy, SignalRecorder, SignalRecorder]]:
    """Two nodes that receive; the first one through a proxy."""
    port = psycopg.conninfo.conninfo_to_dict(database)["port"]
    async with (
        FaultProxy(int(str(port))) as proxy,
        receiving(database) as other,
        receiving(database.replace(f":{port}/", f":{proxy.port}/")) as one,
    ):
        yield proxy, one, other


@asynccontextmanager
async def receiving(url: str, *, works: bool = True) -> AsyncIterator[SignalRecorder]:
    """A node on that database that receives."""
    database = await PostgresDatabase.open(url)
    try:
        recorder = SignalRecorder(database.signals)
        if works:
            await recorder.until_working()
        yield recorder
    finally:
        await database.close()


def end_sessions(database: str, *ears: SignalRecorder) -> None:
    """End the database sessions on which these nodes receive."""
    with psycopg.connect(database, autocommit=True) as connection:
        for recorder in ears:
            assert isinstance(recorder.signals, PostgresSignals)
            assert recorder.signals._session is not None
            process = recorder.signals._session.connection.get_server_pid()
            connection.execute("SELECT pg_terminate_backend(%s)", (process,))


async def test_an_ended_session_is_replaced(database: str) -> None:
    """WAIT-10."""
    async with receiving(database) as one, receiving(database) as other:
        before = one.missed, other.missed
        await asyncio.to_thread(end_sessions, database, one, other)
        await one.until(lambda: one.missed > before[0] + 1 and one.signals.working)
        await other.until(lambda: other.missed > before[1] + 1 and other.signals.working)
        one.signals.publish(b"again")
        await other.until_received(b"again")
        await one.until_received(b"again")


async def test_a_silent_connection_is_replaced(database: str) -> None:
    """A dead connection reports nothing, so the node probes it."""
    async with proxied(database) as (proxy, one, other):
        before = one.missed
        proxy.hold_all()
        await one.until(lambda: one.missed > before and not one.signals.working)
        one.signals.publish(b"kept")
        proxy.cut()
        proxy.forward_all()
        await one.until_working()
        await other.until_received(b"kept")
        other.signals.publish(b"hello")
        await one.until_received(b"hello")


async def test_a_message_that_may_be_lost_is_reported_to_every_node(database: str) -> None:
    async with proxied(database) as (proxy, one, other):
        before = other.missed
        proxy.requests.clear()
        one.signals.publish(b"on its way")
        await one.until(lambda: not one.signals.working)
        proxy.cut()
        proxy.forward_all()
        await other.until(lambda: other.missed > before)


async def test_signals_resume_after_the_server_restarts(tmp_path_factory: pytest.TempPathFactory) -> None:
    with postgres.primary(fsync=False) as server:
        async with receiving(server.url()) as one, receiving(server.url()) as other:
            await asyncio.to_thread(server.stop)
            await one.until(lambda: not one.signals.working)
            one.signals.publish(b"meanwhile")
            await asyncio.to_thread(server.start)
            await other.until_working()
            await one.until_working()
            one.signals.publish(b"later")
            await other.until_received(b"later")


async def test_signals_follow_the_batches_to_another_host(database: str) -> None:
    """Two nodes on two live hosts would not receive each other's messages."""
    port = postgres.shared().port
    node = await PostgresDatabase.open(database.replace(f":{port}/", f":{port},localhost:{port}/"))
    one = SignalRecorder(node.signals)
    await one.until_working()
    before = one.missed
    hosts = node._connections.hosts
    hosts._last = hosts._first = 1  # as if the first host had failed a batch
    await one.until(lambda: one.missed > before + 1 and one.signals.working)
    assert node.signals._session is not None
    assert "@localhost:" in node.signals._session.host
    await node.close()


async def test_behind_a_pooler_a_node_sends_and_knows_that_it_cannot_receive(database: str) -> None:
    """LISTEN would stay on sessions of others, so the node does not use it."""
    server = postgres.shared()
    with postgres.pgbouncer(server) as port:
        async with receiving(database) as other:
            pooled = database.replace(f":{server.port}/", f":{port}/")
            async with receiving(pooled, works=False) as one:
                one.signals.publish(b"from behind")
                await other.until_received(b"from behind")
                await one.until(lambda: one.missed >= 3)
                assert not one.signals.working
                assert one.received == []


def named_channel(database: str) -> str:
    with psycopg.connect(database) as connection:
        row = connection.execute("SELECT signal_channel FROM volcano_locks.newest_instant").fetchone()
    assert row is not None
    return str(row[0])


def set_needs(database: str, needs: int) -> None:
    """As after an upgrade from 0.1.0 (1), or once a migration needs the named channel."""
    with psycopg.connect(database) as connection:
        connection.execute("UPDATE volcano_locks.migration SET needs = %s", (needs,))


async def test_the_channel_has_a_name_that_cannot_be_guessed(database: str) -> None:
    """EVENT-8, case 62: a role that may not read the schema receives nothing, and its packets are ignored."""
    packet = f"1 {'a' * 12} 7 whole\nfrom a stranger"
    async with receiving(database) as one, receiving(database) as other:
        stranger = f"stranger_{database.rpartition('/')[2]}"
        postgres.shared().execute(f"CREATE ROLE {stranger} LOGIN")
        theirs = database.replace("postgres@", f"{stranger}@")
        with psycopg.connect(theirs, autocommit=True) as connection:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute("SELECT signal_channel FROM volcano_locks.newest_instant")
            connection.execute(f"LISTEN {OPEN_CHANNEL}")
            connection.execute("SELECT pg_notify(%s, %s)", (OPEN_CHANNEL, packet))
            one.signals.publish(b"held by web-1")
            await one.until_received(b"held by web-1")
            await other.until_received(b"held by web-1")
            received = [notify.payload for notify in connection.notifies(timeout=1)]
        assert received == [packet]
        assert one.received == other.received == [b"held by web-1"]


async def test_nodes_receive_from_0_1_0_until_the_schema_needs_the_channel(database: str) -> None:
    """EVENT-8: during a rolling upgrade both channels are used, and each packet is delivered once."""
    async with receiving(database):
        pass
    set_needs(database, 1)
    from_old = f"1 {'a' * 12} 7 whole\nfrom an old node"
    async with receiving(database) as one, receiving(database) as other:
        with psycopg.connect(database, autocommit=True) as old:
            old.execute(f"LISTEN {OPEN_CHANNEL}")
            old.execute("SELECT pg_notify(%s, %s)", (OPEN_CHANNEL, from_old))
            await one.until_received(b"from an old node")
            one.signals.publish(b"from a new node")
            await other.until_received(b"from a new node")
            assert any("from a new node" in notify.payload for notify in old.notifies(timeout=1))
            assert isinstance(one.signals, PostgresSignals)
            copied = f"1 {one.signals._outbox.node} 900000000000000 lost\nforged"
            old.execute("SELECT pg_notify(%s, %s)", (OPEN_CHANNEL, copied))
            missed = one.missed
            set_needs(database, migration_number("signal_channel"))
            await one.until(lambda: one.missed > missed + 1 and one.signals.working)
            await other.until_working()
            one.signals.publish(b"private")
            await other.until_received(b"private")
            assert not any("private" in notify.payload for notify in old.notifies(timeout=1))
        assert other.received == [b"from an old node", b"from a new node", b"private"]


async def test_foreign_text_is_ignored(database: str) -> None:
    """EVENT-8: from a role that may read the schema."""
    forged = ["", "hello", "1 zz 1 whole\nx", f"1 {'a' * 12} {'9' * 40} whole\nx", "2 abcdefabcdef 1 whole\nx", "\né"]
    async with receiving(database) as one:
        channel = named_channel(database)
        with psycopg.connect(database, autocommit=True) as connection:
            for payload in forged:
                connection.execute("SELECT pg_notify(%s, %s)", (channel, payload))
            connection.execute("SELECT pg_notify(%s, %s)", (channel, f"1 {'a' * 12} 7 whole\nfrom a stranger"))
        await one.until_received(b"from a stranger")
        assert one.received == [b"from a stranger"]
        assert one.signals.working


async def test_many_messages_share_a_packet(database: str) -> None:
    """One notification and one transaction for each packet, without waiting for the disk."""
    async with receiving(database) as one, receiving(database) as other:
        received: list[str] = []
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute(f"LISTEN {named_channel(database)}")
            sent = [b"message %d" % number for number in range(3_000)]
            for message in sent:
                one.signals.publish(message)
            await other.until_received(*sent)
            received = [notify.payload for notify in connection.notifies(timeout=1)]
        packets = [payload for payload in received if "\n" in payload]
        assert len(packets) <= 8
        assert all(len(payload) < 8_000 for payload in packets)
