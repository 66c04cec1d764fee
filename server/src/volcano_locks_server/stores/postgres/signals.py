"""Sends messages between nodes by LISTEN and NOTIFY, on a connection of their own.

The node checks the connection. The driver reports a session that ends, but not a broken connection. So the node sends a
query every PROBE_SECONDS, and terminates the connection if the response takes more than RESPONSE_SECONDS_MAX. Each
packet that the node sends must come back to it. After a failure the node looks for the server again, as for all
connections, and calls `on_missed`, because messages of the meantime are lost.

NOTIFY takes a lock of the whole database until its commit. So it is never part of a batch's transaction, its commit
does not wait for the disk, and messages that arrive meanwhile go out with the next packet.

Behind a pooler a node cannot receive: LISTEN belongs to a session. In transaction mode the session changes each time,
and keeps listening for its next user. There the node only sends, is never `working`, and calls `on_missed` every
PROBE_SECONDS instead.

Every role of the database may listen and notify on a channel whose name it knows. So the channel has a random name,
which only roles that may read the schema know (EVENT-8). Nodes of 0.1.0 use OPEN_CHANNEL. Until the schema needs the
migration that named the channel, nodes use both. A packet on OPEN_CHANNEL is ignored if its node uses the other one.
"""

import asyncio
import contextlib
import random
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import asyncpg

from ...rules.errors import StoreUnavailableError
from ..signal_packets import PacketSignals, parse_packet
from .hosts import DatabaseSession, Hosts
from .schema import migration_number

OPEN_CHANNEL: Final = "volcano_locks"
NAMED_NODES_MAX: Final = 1_000
PACKET_BYTES_MAX: Final = 7_900  # a payload of NOTIFY is shorter than 8,000 bytes
PROBE_SECONDS: Final = 2.0
RESPONSE_SECONDS_MAX: Final = 3.0
PAUSE_SECONDS_MIN: Final = 0.05
PAUSE_SECONDS_MAX: Final = 2.0
CLOSE_SECONDS_MAX: Final = 1.0

T = TypeVar("T")

_CHANNEL: Final = re.compile(r"volcano_locks_[0-9a-f]{32}", re.ASCII)
_CHANNELS: Final = (
    "SELECT signal_channel, (SELECT max(needs) FROM volcano_locks.migration) FROM volcano_locks.newest_instant"
)


class PostgresSignals(PacketSignals):
    """The Signals of one node. Made by `PostgresDatabase`; connects when started."""

    def __init__(self, hosts: Hosts) -> None:
        super().__init__(PACKET_BYTES_MAX)
        self._hosts: Final = hosts
        self._session: DatabaseSession | None = None
        self._channels: tuple[str, ...] = ()
        self._named_since: Final = migration_number("signal_channel")
        self._named_nodes: Final[OrderedDict[str, None]] = OrderedDict()  # that use the named channel, the latest last
        self._running: asyncio.Task[None] | None = None
        self.working = False

    def start(self, on_message: Callable[[bytes], None], on_missed: Callable[[], None]) -> None:
        self._on_message, self._on_missed = on_message, on_missed
        self._running = asyncio.create_task(self._run(), name="postgres-signals")

    async def close(self) -> None:
        self._is_closed = True
        self._wake.set()
        if self._running is None:
            return
        if self._session is not None:
            await asyncio.wait([self._running], timeout=CLOSE_SECONDS_MAX)
        if self._session is not None:
            self._session.terminate()  # pending calls fail; cancelling them would make the driver send a cancel request
            await asyncio.wait([self._running], timeout=CLOSE_SECONDS_MAX)
        self._running.cancel()
        await asyncio.wait([self._running])

    async def _run(self) -> None:
        """Connect, receive and send until it fails, then again after a growing pause."""
        pause_seconds = PAUSE_SECONDS_MIN
        while not self._is_closed:
            with contextlib.suppress(StoreUnavailableError):
                session = await self._hosts.connect(generation=0)
                if await self._serve(session):
                    pause_seconds = PAUSE_SECONDS_MIN
            if self._is_closed:
                return
            self._on_missed()
            await asyncio.sleep(pause_seconds * random.uniform(0.5, 1.0))  # noqa: S311
            pause_seconds = min(PAUSE_SECONDS_MAX, 2 * pause_seconds)

    async def _serve(self, session: DatabaseSession) -> bool:
        """Receive and send on this session until it fails or its server is replaced; returns whether it worked."""
        self._session = session
        loop = asyncio.get_running_loop()
        has_worked = False
        try:
            session.connection.add_termination_listener(self._on_end)
            self._channels = await self._in_time(session, self._read_channels(session))
            for channel in self._channels if session.is_direct else ():
                await self._in_time(session, session.connection.add_listener(channel, self._on_notification))
            await self._send(session)
            self.working = has_worked = session.is_direct
            self._on_missed()
            missed_at = loop.time()
            while not self._is_closed and self._hosts.last == session.host and not session.connection.is_closed():
                await self._next(session)
                if not session.is_direct and loop.time() - missed_at >= PROBE_SECONDS:
                    self._on_missed()
                    missed_at = loop.time()
            while self._outbox and self._is_closed:
                await self._send(session)
        except (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError):
            self._outbox.lose()
        finally:
            self._session = None
            self.working = False
            session.terminate()
        return has_worked

    async def _next(self, session: DatabaseSession) -> None:
        """Send what is queued; if nothing is queued for PROBE_SECONDS, check that the server responds."""
        self._wake.clear()
        if not self._outbox:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PROBE_SECONDS):
                    await self._wake.wait()
                return
            if await self._in_time(session, self._read_channels(session)) != self._channels:
                raise ConnectionError
        else:
            await self._send(session)

    async def _send(self, session: DatabaseSession) -> None:
        """Send one packet, and wait until it comes back. Raises the connection's errors, and ConnectionError if the
        connection was lost.
        """
        packet = self._outbox.packet()
        # One message and one transaction, even behind a pooler; a packet needs no escaping in a literal.
        notify = "; ".join(f"NOTIFY {channel}, '{packet}'" for channel in self._channels)
        script = f"BEGIN; SET LOCAL synchronous_commit = off; {notify}; COMMIT"
        await self._in_time(session, session.connection.execute(script))
        if session.is_direct and self._echoed < self._outbox.number:
            await self._in_time(session, self._echo(session))

    async def _echo(self, session: DatabaseSession) -> None:
        while self._echoed < self._outbox.number:
            self._wake.clear()
            await self._wake.wait()
            if session.connection.is_closed():
                raise ConnectionError

    async def _read_channels(self, session: DatabaseSession) -> tuple[str, ...]:
        """The named channel, and OPEN_CHANNEL if a node of 0.1.0 may run. Also shows that the server responds."""
        connection = session.connection
        await connection.execute("BEGIN READ ONLY")  # one transaction, so that a pooler keeps the statement's session
        statement = await connection.prepare(_CHANNELS, name="")
        row = await statement.fetchrow()
        await connection.execute("COMMIT")
        name, needs = row if row is not None else (None, 0)
        if name is None or _CHANNEL.fullmatch(name) is None:
            return (OPEN_CHANNEL,)
        return (name,) if (needs or 0) >= self._named_since else (name, OPEN_CHANNEL)

    async def _in_time(self, session: DatabaseSession, work: Awaitable[T]) -> T:
        """Await `work`; terminate the connection, which ends it, after RESPONSE_SECONDS_MAX."""
        deadline = asyncio.get_running_loop().call_later(RESPONSE_SECONDS_MAX, session.expire)
        try:
            return await work
        finally:
            deadline.cancel()

    def _on_notification(self, connection: object, _process: int, channel: str, payload: str) -> None:
        if self._session is None or connection is not self._session.connection:
            return
        packet = parse_packet(payload)
        if packet is None:
            return
        if channel != OPEN_CHANNEL:
            self._named_nodes[packet.node] = None
            self._named_nodes.move_to_end(packet.node)
            if len(self._named_nodes) > NAMED_NODES_MAX:
                self._named_nodes.popitem(last=False)
        elif packet.node in self._named_nodes and len(self._channels) > 1:
            return  # a copy of what came on the named channel, or forged
        self._deliver_packet(packet, self._wake)

    def _on_end(self, _connection: object) -> None:
        self._wake.set()
