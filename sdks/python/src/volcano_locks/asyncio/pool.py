"""A pool of HTTP/1.1 connections to one address in an event loop, reduced to what a lock client needs.

A general HTTP client takes several times longer for such an exchange than everything else in a call (docs/adr/0011). A
lock's requests are small, alike and many. A connection is closed after anything except one plain response, so that no
leftover reaches another request.

Connections belong to one event loop in one process.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from volcano_locks.asyncio.connection import Connection
from volcano_locks.errors import CLOSED
from volcano_locks.http.address import Address, OutgoingRequest
from volcano_locks.http.response_reader import BrokenResponseError, ResponseReader, StreamReader, not_connected
from volcano_locks.http.transport import KEEP_ALIVE_SECONDS, RACE_SECONDS
from volcano_locks.protocol.messages import Response

if TYPE_CHECKING:
    import ssl

CONNECTIONS_MAX = 100
LONG_CONNECTIONS_MAX = 1000
IDLE_CHECK_SECONDS = 0.02


class AsyncResponseStream(Protocol):
    """A response whose body is read as it arrives. `response` has no body."""

    response: Response

    async def read(self) -> bytes:
        """Return the next bytes; none at the end. Raises BrokenResponseError."""

    def close(self) -> None:
        """Close its connection."""


class AsyncConnectionPool(Protocol):
    """Exchanges requests with a server. Raises NotConnectedError and BrokenResponseError."""

    async def exchange(self, request: OutgoingRequest, *, long: bool = False) -> Response:
        """Send one request and read its complete response. `long`: count it apart, so that it delays no short one."""

    async def open_stream(self, request: OutgoingRequest) -> AsyncResponseStream:
        """Send a request whose response is a stream, and return when it begins."""

    async def aclose(self) -> None:
        """Close all connections."""


class AsyncioPool:
    """An `AsyncConnectionPool` over TCP and TLS in one event loop. `new_reader` reads the response to a request."""

    def __init__(
        self,
        address: Address,
        tls: "ssl.SSLContext | None",
        new_reader: Callable[[bytes], ResponseReader] = ResponseReader,
    ) -> None:
        self._address = address
        self._new_reader = new_reader
        self._tls = tls
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()
        self._closed = False
        # Long exchanges count apart, so that waits cannot delay renewals.
        self._short = asyncio.Semaphore(CONNECTIONS_MAX)
        self._long = asyncio.Semaphore(LONG_CONNECTIONS_MAX)

    async def exchange(self, request: OutgoingRequest, *, long: bool = False) -> Response:
        """Send one request and read its response. Cancelling closes its connection."""
        message = self._address.encode(request)
        async with self._long if long else self._short:
            connection = await self._reuse_idle()
            if connection is None:
                connection = await self._connect()
            reader = self._new_reader(message)
            try:
                connection.send(message)
                while (response := reader.feed(await connection.receive())) is None:
                    pass
            except BaseException:
                self._close(connection)
                raise
            if reader.plain and connection.quiet:
                connection.idle_since = asyncio.get_running_loop().time()
                self._idle.append(connection)
                self._close_stale(connection.idle_since)
            else:
                self._close(connection)
            return response

    async def open_stream(self, request: OutgoingRequest) -> "ConnectionStream":
        connection = None
        await self._long.acquire()
        try:
            connection = await self._connect()
            reader = await _read_head(connection, self._address.encode(request))
        except BaseException:
            self._close_stream(connection)
            raise
        return ConnectionStream(connection, reader, self._close_stream)

    def _close_stream(self, connection: Connection | None) -> None:
        self._long.release()
        if connection is not None:
            self._close(connection)

    async def aclose(self) -> None:
        """Close all connections, including those in use. No other is opened."""
        self._closed = True
        for connection in list(self._open):
            connection.abort()
        self._open.clear()
        self._idle.clear()
        await asyncio.sleep(0)  # the event loop closes the sockets in its next iteration

    def _close(self, connection: Connection) -> None:
        self._open.discard(connection)
        connection.abort()

    async def _reuse_idle(self) -> Connection | None:
        """The connection used last, unless it is closed or has been idle for too long."""
        now = asyncio.get_running_loop().time()
        if self._idle and now - self._idle[-1].idle_since > IDLE_CHECK_SECONDS:
            await asyncio.sleep(0)  # let the event loop notice connections closed meanwhile
        while self._idle:
            connection = self._idle.pop()
            if connection.quiet and now - connection.idle_since < KEEP_ALIVE_SECONDS:
                return connection
            self._close(connection)
        return None

    def _close_stale(self, now: float) -> None:
        """Close the connections that were idle for too long."""
        while now - self._idle[0].idle_since >= KEEP_ALIVE_SECONDS:
            self._close(self._idle.pop(0))

    async def _connect(self) -> Connection:
        """Open a connection. Raises NotConnectedError."""
        try:
            if self._address.tunnel is None:
                _, connection = await self._dial(self._tls)
                return connection
            transport, proxy = await self._dial(None)
            try:
                return await self._start_tls(transport, proxy, self._address.tunnel)
            except BaseException:
                self._close(proxy)
                raise
        except (OSError, UnicodeError, BrokenResponseError) as error:
            raise not_connected(error) from error

    async def _dial(self, tls: "ssl.SSLContext | None") -> tuple[asyncio.Transport, Connection]:
        loop = asyncio.get_running_loop()
        options: dict[str, Any] = {}  # uvloop does not race addresses: it tries them in turn
        if isinstance(loop, asyncio.BaseEventLoop):
            options["happy_eyeballs_delay"] = RACE_SECONDS
        if tls is not None:
            options["server_hostname"] = self._address.host
        dialling = loop.create_task(loop.create_connection(Connection, *self._address.connect_to, ssl=tls, **options))
        try:
            transport, connection = await asyncio.shield(dialling)
        except asyncio.CancelledError:
            dialling.add_done_callback(_abort_dialled)  # cancelling the race itself would leak a socket
            raise
        if self._closed:
            connection.abort()
            raise not_connected(CLOSED)
        self._open.add(connection)
        return transport, connection

    async def _start_tls(self, transport: asyncio.Transport, proxy: Connection, tunnel: bytes) -> Connection:
        """Begin TLS with the server in a tunnel through the proxy."""
        assert self._tls is not None
        reader = await _read_head(proxy, tunnel)
        assert reader.head is not None
        self._address.check_tunnel(reader.head[0])
        connection = Connection()
        encrypted = await asyncio.get_running_loop().start_tls(
            transport, connection, self._tls, server_hostname=self._address.host
        )
        assert encrypted is not None
        connection.connection_made(encrypted)
        self._open.discard(proxy)
        self._open.add(connection)
        return connection


class ConnectionStream:
    """The response that `reader` reads, as it arrives: an `AsyncResponseStream`."""

    def __init__(self, connection: Connection, reader: StreamReader, close: Callable[[Connection], None]) -> None:
        assert reader.head is not None
        self.response = Response(*reader.head, b"")
        self._connection = connection
        self._reader = reader
        self._close = close

    async def read(self) -> bytes:
        while not self._reader.unread and not self._reader.ended:
            self._reader.feed(await self._connection.receive())
        return self._reader.take()

    def close(self) -> None:
        self._close(self._connection)


async def _read_head(connection: Connection, request: bytes) -> StreamReader:
    """Send `request` and return the reader of its response, which has begun."""
    reader = StreamReader(request)
    connection.send(request)
    while reader.head is None:
        reader.feed(await connection.receive())
    return reader


def _abort_dialled(dialling: "asyncio.Task[tuple[asyncio.Transport, Connection]]") -> None:
    if not dialling.cancelled() and dialling.exception() is None:
        dialling.result()[1].abort()
