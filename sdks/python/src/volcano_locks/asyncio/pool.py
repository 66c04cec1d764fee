"""A pool of HTTP/1.1 connections to one address in an event loop, reduced to what a lock client needs.

A general HTTP client takes several times longer for such an exchange than everything else in a call (docs/adr/0011). A
lock's requests are small, alike and many. A connection is closed after anything except one plain response, so that no
leftover reaches another request.

Connections belong to one event loop in one process.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from volcano_locks.http.address import Address, OutgoingRequest
from volcano_locks.http.response_reader import (
    BrokenResponseError,
    ResponseReader,
    broken,
    not_connected,
)
from volcano_locks.http.transport import KEEP_ALIVE_SECONDS, RACE_SECONDS
from volcano_locks.protocol.messages import Response

if TYPE_CHECKING:
    import ssl

    from volcano_locks.asyncio.stream_connection import AsyncResponseStream

CONNECTIONS_MAX = 100
LONG_CONNECTIONS_MAX = 1000
IDLE_CHECK_SECONDS = 0.02

P = TypeVar("P", bound=asyncio.BaseProtocol)


class AsyncConnectionPool(Protocol):
    """Exchanges requests with a server. Raises NotConnectedError and BrokenResponseError."""

    async def exchange(self, request: OutgoingRequest, *, long: bool = False) -> Response:
        """Send one request and read its complete response. `long`: count it apart, so that it delays no short one."""

    def open_stream(self, request: OutgoingRequest) -> "AbstractAsyncContextManager[AsyncResponseStream]":
        """Send a request whose response is a stream; leaving closes its connection."""

    async def aclose(self) -> None:
        """Close all connections."""


class AsyncioPool:
    """An `AsyncConnectionPool` over TCP and TLS in one event loop."""

    def __init__(self, address: Address, ca_file: str | None) -> None:
        self._address = address
        self._tls = address.tls_context(ca_file)
        self._idle: list[_Connection] = []
        self._open: set[_Connection | AsyncResponseStream] = set()
        # Long exchanges count apart, so that waits cannot delay renewals.
        self._short = asyncio.Semaphore(CONNECTIONS_MAX)
        self._long = asyncio.Semaphore(LONG_CONNECTIONS_MAX)

    async def exchange(self, request: OutgoingRequest, *, long: bool = False) -> Response:
        """Send one request and read its response. Cancelling closes its connection."""
        message = self._address.encode(request)
        async with self._long if long else self._short:
            connection = await self._reuse_idle()
            if connection is None:
                connection = await self._connect(_Connection)
                self._open.add(connection)
            try:
                response = await connection.exchange(message)
            except BaseException:
                self._close(connection)
                raise
            if connection.reusable:
                connection.idle_since = asyncio.get_running_loop().time()
                self._idle.append(connection)
                self._close_stale(connection.idle_since)
            else:
                self._close(connection)
            return response

    @asynccontextmanager
    async def open_stream(self, request: OutgoingRequest) -> "AsyncIterator[AsyncResponseStream]":
        from volcano_locks.asyncio.stream_connection import StreamConnection  # noqa: PLC0415 - rarely needed

        async with self._long:
            stream = await self._connect(StreamConnection)
            self._open.add(stream)
            try:
                stream.send(self._address.encode(request))
                yield stream
            finally:
                self._open.discard(stream)
                stream.abort()

    async def aclose(self) -> None:
        """Close all connections, including those in use."""
        for connection in list(self._open):
            connection.abort()
        self._open.clear()
        self._idle.clear()
        await asyncio.sleep(0)  # the event loop closes the sockets in its next iteration

    def _close(self, connection: "_Connection") -> None:
        self._open.discard(connection)
        connection.abort()

    async def _reuse_idle(self) -> "_Connection | None":
        """The connection used last, unless it is closed or has been idle for too long."""
        now = asyncio.get_running_loop().time()
        if self._idle and now - self._idle[-1].idle_since > IDLE_CHECK_SECONDS:
            await asyncio.sleep(0)  # let the event loop notice connections closed meanwhile
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable and now - connection.idle_since < KEEP_ALIVE_SECONDS:
                return connection
            self._close(connection)
        return None

    def _close_stale(self, now: float) -> None:
        """Close the connections that were idle for too long."""
        while now - self._idle[0].idle_since >= KEEP_ALIVE_SECONDS:
            self._close(self._idle.pop(0))

    async def _connect(self, protocol: Callable[[], P]) -> P:
        """Open a connection. Raises NotConnectedError."""
        connecting = asyncio.ensure_future(_connect(self._address, protocol, self._tls))
        try:
            return (await asyncio.shield(connecting))[1]
        except OSError as error:
            raise not_connected(error) from error
        except asyncio.CancelledError:
            connecting.add_done_callback(_abort_connected)  # cancelling the race itself would leak a socket
            raise


async def _connect(
    address: Address, protocol: Callable[[], P], tls: "ssl.SSLContext | None"
) -> tuple[asyncio.Transport, P]:
    loop = asyncio.get_running_loop()
    options: dict[str, Any] = {}  # uvloop does not race addresses: it tries them in turn
    if isinstance(loop, asyncio.BaseEventLoop):
        options["happy_eyeballs_delay"] = RACE_SECONDS
    server_name = None if tls is None else address.host
    tunnel = address.tunnel
    if tunnel is None:
        return await loop.create_connection(
            protocol, *address.connect_to, ssl=tls, server_hostname=server_name, **options
        )
    from volcano_locks.asyncio.stream_connection import StreamConnection  # noqa: PLC0415 - only through a proxy

    assert tls is not None
    transport, proxy = await loop.create_connection(StreamConnection, *address.connect_to, **options)
    try:
        proxy.send(tunnel)
        address.check_tunnel((await proxy.head())[0])
        inside = protocol()
        encrypted = await loop.start_tls(transport, inside, tls, server_hostname=server_name)
    except BrokenResponseError as error:
        transport.abort()
        raise not_connected(error) from error
    except BaseException:
        transport.abort()
        raise
    assert encrypted is not None
    inside.connection_made(encrypted)
    return encrypted, inside


def _abort_connected(connecting: "asyncio.Future[tuple[asyncio.Transport, P]]") -> None:
    if not connecting.cancelled() and connecting.exception() is None:
        connecting.result()[0].abort()


class _Connection(asyncio.Protocol):
    """One connection, which serves one request at a time."""

    def __init__(self) -> None:
        self.idle_since = 0.0
        self._transport: asyncio.Transport | None = None
        self._pending: asyncio.Future[Response] | None = None
        self._reader = ResponseReader()

    @property
    def reusable(self) -> bool:
        """Whether it is open and carried only plain responses."""
        return self._transport is not None and self._reader.plain

    async def exchange(self, request: bytes) -> Response:
        if self._transport is None:
            raise broken("the connection broke")
        self._reader = ResponseReader(request)
        self._pending = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._pending

    def abort(self) -> None:
        """Close it at once. May be repeated."""
        if self._transport is not None:
            self._transport.abort()
        self._fail("the connection was closed")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transport does not inherit from it

    def data_received(self, data: bytes) -> None:
        self._feed(data)

    def eof_received(self) -> None:
        self._feed(b"")

    def connection_lost(self, error: Exception | None) -> None:
        self._fail("the connection broke" if error is None else error)

    def _feed(self, data: bytes) -> None:
        pending = self._pending
        if pending is None or pending.done():
            self.abort()  # unsolicited data, or the server closed it
            return
        try:
            response = self._reader.feed(data)
        except BrokenResponseError as error:
            self._pending = None
            pending.set_exception(error)
        else:
            if response is not None:
                self._pending = None
                pending.set_result(response)

    def _fail(self, why: object) -> None:
        self._transport = None
        pending, self._pending = self._pending, None
        if pending is not None and not pending.done():
            pending.set_exception(broken(why))
