"""Messages between nodes, by LISTEN and NOTIFY on a connection of their own.

The connection is watched. A session that ends says so; a dead way to the server says nothing, so it is asked something
every PROBE_SECONDS, and cut where the answer takes more than ANSWER_SECONDS_MAX. A packet of this node must come back
to it. Whatever fails, the server is looked for anew, as for all connections, and `missed` is told: what others told
meanwhile is heard by nobody.

NOTIFY takes a lock of the whole database until its transaction is committed, so it is never part of a batch's
transaction, its commit is not waited for on disk, and what gathers while one is on its way goes out with the next.

Behind a pooler nothing can be heard: LISTEN belongs to a session, which in transaction mode is another one each
time, and stays listening after us for whoever gets it next. So there this node only tells, is never `working`, and
tells `missed` every PROBE_SECONDS instead.

Every user of the database may listen and notify on CHANNEL.
"""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from typing import Final

import asyncpg

from ...rules.errors import StoreUnavailableError
from ..signal_packets import Outbox, unpacked
from .hosts import Hosts, Link

CHANNEL: Final = "volcano_locks"
PACKET_BYTES_MAX: Final = 7_900  # a payload of NOTIFY is shorter than 8,000 bytes
PROBE_SECONDS: Final = 2.0
ANSWER_SECONDS_MAX: Final = 3.0
PAUSE_SECONDS_MIN: Final = 0.05
PAUSE_SECONDS_MAX: Final = 2.0
CLOSE_SECONDS_MAX: Final = 1.0


class PostgresSignals:
    """The Signals of one node. Made by `PostgresDatabase`; connects when started."""

    def __init__(self, hosts: Hosts) -> None:
        self._hosts: Final = hosts
        self._outbox: Final = Outbox(PACKET_BYTES_MAX)
        self._wake: Final = asyncio.Event()
        self._link: Link | None = None
        self._running: asyncio.Task[None] | None = None
        self._heard: Callable[[bytes], None] = _nothing_heard
        self._missed: Callable[[], None] = _nothing_missed
        self._echoed = 0
        self._is_closed = False
        self.working = False

    def start(self, heard: Callable[[bytes], None], missed: Callable[[], None]) -> None:
        self._heard, self._missed = heard, missed
        self._running = asyncio.create_task(self._run(), name="postgres-signals")

    def tell(self, message: bytes) -> None:
        if not self._is_closed:
            self._outbox.put(message)
            self._wake.set()

    async def close(self) -> None:
        self._is_closed = True
        self._wake.set()
        if self._running is None:
            return
        if self._link is not None:
            await asyncio.wait([self._running], timeout=CLOSE_SECONDS_MAX)
        if self._link is not None:
            self._link.cut()  # what waits for it fails; cancelling that would have the driver ask the server to
            await asyncio.wait([self._running], timeout=CLOSE_SECONDS_MAX)
        self._running.cancel()
        await asyncio.wait([self._running])

    async def _run(self) -> None:
        """Connect, hear and tell, for as long as it goes; then again after a growing pause."""
        pause_seconds = PAUSE_SECONDS_MIN
        while not self._is_closed:
            with contextlib.suppress(StoreUnavailableError):
                link = await self._hosts.connected(generation=0)
                if await self._serve(link):
                    pause_seconds = PAUSE_SECONDS_MIN
            if self._is_closed:
                return
            self._missed()
            await asyncio.sleep(pause_seconds * random.uniform(0.5, 1.0))  # noqa: S311
            pause_seconds = min(PAUSE_SECONDS_MAX, 2 * pause_seconds)

    async def _serve(self, link: Link) -> bool:
        """Hear and tell by this connection until it fails or another server took its place; whether it ever worked."""
        self._link = link
        loop = asyncio.get_running_loop()
        has_worked = False
        try:
            link.connection.add_termination_listener(self._on_end)
            if link.is_direct:
                await self._in_time(link, link.connection.add_listener(CHANNEL, self._on_notification))
            await self._send(link)
            self.working = has_worked = link.is_direct
            self._missed()
            missed_at = loop.time()
            while not self._is_closed and self._hosts.last == link.host and not link.connection.is_closed():
                await self._next(link)
                if not link.is_direct and loop.time() - missed_at >= PROBE_SECONDS:
                    self._missed()
                    missed_at = loop.time()
            while self._outbox and self._is_closed:
                await self._send(link)
        except (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError):
            self._outbox.lose()
        finally:
            self._link = None
            self.working = False
            link.cut()
        return has_worked

    async def _next(self, link: Link) -> None:
        """Send what there is to send, when there is something; ask whether the server is there, when there is not."""
        self._wake.clear()
        if not self._outbox:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PROBE_SECONDS):
                    await self._wake.wait()
                return
            await self._in_time(link, link.connection.execute("SELECT 1"))
        else:
            await self._send(link)

    async def _send(self, link: Link) -> None:
        """Send one packet, and see it come back. Raises what the connection does, ConnectionError for one lost."""
        packet = self._outbox.packet()
        # One message, one transaction, also behind a pooler; in a packet there is nothing that a literal would escape.
        script = f"BEGIN; SET LOCAL synchronous_commit = off; NOTIFY {CHANNEL}, '{packet}'; COMMIT"
        await self._in_time(link, link.connection.execute(script))
        if link.is_direct and self._echoed < self._outbox.number:
            await self._in_time(link, self._echo(link))

    async def _echo(self, link: Link) -> None:
        while self._echoed < self._outbox.number:
            self._wake.clear()
            await self._wake.wait()
            if link.connection.is_closed():
                raise ConnectionError

    async def _in_time(self, link: Link, work: Awaitable[object]) -> None:
        """Wait for it, and cut the connection, which ends it, once ANSWER_SECONDS_MAX are over."""
        deadline = asyncio.get_running_loop().call_later(ANSWER_SECONDS_MAX, link.late)
        try:
            await work
        finally:
            deadline.cancel()

    def _on_notification(self, connection: object, _process: int, _channel: str, payload: str) -> None:
        packet = unpacked(payload)
        if packet is None or self._link is None or connection is not self._link.connection:
            return
        if packet.node == self._outbox.node:
            self._echoed = packet.number
            self._wake.set()
        if not self._is_closed:
            packet.deliver(self._heard, self._missed)

    def _on_end(self, _connection: object) -> None:
        self._wake.set()


def _nothing_heard(_message: bytes) -> None:
    return


def _nothing_missed() -> None:
    return
