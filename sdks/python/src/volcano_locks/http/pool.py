"""A pool of HTTP/1.1 connections to one address in an event loop, reduced to what a lock client needs.

A general HTTP client takes several times longer for such an exchange than everything else in a call (docs/adr/0011). A
lock's requests are small, alike and many. So a plain response is read here and h11 reads every other
(`response_reader`). A connection is closed after anything except one plain response, so that no leftover reaches
another request.

Connections belong to one event loop in one process. Proxies are left to httpx2.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast
from urllib.parse import urlsplit

from volcano_locks.http.response_reader import BrokenResponseError, Headers, ResponseReader
from volcano_locks.protocol.messages import Response

if TYPE_CHECKING:
    import ssl

    from volcano_locks.http.stream_connection import StreamConnection

CONNECTIONS_MAX = 100
LONG_CONNECTIONS_MAX = 1000
KEEP_ALIVE_SECONDS = 30.0
HAPPY_EYEBALLS_SECONDS = 0.25
IDLE_CHECK_SECONDS = 0.02

P = TypeVar("P", bound=asyncio.BaseProtocol)


class NotConnectedError(Exception):
    """No connection could be opened, so nothing was sent."""


@dataclass(frozen=True, slots=True)
class Address:
    """The target of an API URL: where to connect, the Host header, and the prefix of every path."""

    host: str
    port: int
    tls: bool
    authority: bytes
    path: str

    @classmethod
    def of(cls, api_url: str) -> Self:
        """The address of a URL that `config` has checked."""
        parts = urlsplit(api_url)
        assert parts.hostname is not None
        tls = parts.scheme == "https"
        return cls(parts.hostname, parts.port or (443 if tls else 80), tls, parts.netloc.encode(), parts.path)

    def request(self, method: str, path: str, headers: Headers, body: bytes) -> bytes:
        """Encode a whole request. Its parts were checked before and are visible ASCII, except the body."""
        return b"%b %b HTTP/1.1\r\nHost: %b\r\n%bContent-Length: %d\r\n\r\n%b" % (
            method.encode(),
            (self.path + path).encode(),
            self.authority,
            b"".join([b"%b: %b\r\n" % field for field in headers]),
            len(body),
            body,
        )

    def tls_context(self) -> "ssl.SSLContext | None":
        """The trust settings of httpx2. None for http://, because loading certificates takes tens of milliseconds."""
        if not self.tls:
            return None
        from httpx2 import create_ssl_context  # noqa: PLC0415 - slow to load

        return create_ssl_context()


class ConnectionLimits:
    """Limits how many exchanges run at once. Long ones count apart, so that waits cannot delay renewals."""

    def __init__(self) -> None:
        self._short = asyncio.Semaphore(CONNECTIONS_MAX)
        self._long = asyncio.Semaphore(LONG_CONNECTIONS_MAX)

    def limit(self, *, long: bool) -> asyncio.Semaphore:
        """The semaphore to hold during an exchange."""
        return self._long if long else self._short


class AsyncioPool:
    """A `ConnectionPool` for one API URL in one event loop."""

    def __init__(self, api_url: str) -> None:
        self._address = Address.of(api_url)
        self._tls = self._address.tls_context()
        self._idle: list[_Connection] = []
        self._all: set[_Connection] = set()
        self._streams: set[StreamConnection] = set()
        self._limits = ConnectionLimits()

    async def exchange(self, method: str, path: str, headers: Headers, body: bytes, *, long: bool = False) -> Response:
        """Send one request and read its response. Cancelling closes its connection. Raises as `ConnectionPool` does."""
        message = self._address.request(method, path, headers, body)
        async with self._limits.limit(long=long):
            connection = await self._reuse_idle() or await self._open()
            try:
                response = await connection.exchange(message)
            except BaseException:
                connection.abort()
                raise
            if connection.reusable:
                connection.idle_since = asyncio.get_running_loop().time()
                self._idle.append(connection)
                self._close_stale(connection.idle_since)
            else:
                connection.abort()
            return response

    @asynccontextmanager
    async def open_stream(self, path: str, headers: Headers) -> "AsyncIterator[StreamConnection]":
        """Send a GET whose response is read as it arrives. Leaving closes its connection. Raises as `exchange` does."""
        from volcano_locks.http.stream_connection import StreamConnection  # noqa: PLC0415 - rarely needed

        message = self._address.request("GET", path, headers, b"")
        async with self._limits.limit(long=True):
            _, stream = await connect(self._address, lambda: StreamConnection(self._streams, message), self._tls)
            try:
                yield stream
            finally:
                stream.abort()

    async def aclose(self) -> None:
        """Close all connections, including those in use."""
        for connection in list(self._all):
            connection.abort()
        for stream in list(self._streams):
            stream.abort()
        self._idle.clear()
        await asyncio.sleep(0)  # the event loop closes the sockets in its next iteration

    async def _reuse_idle(self) -> "_Connection | None":
        """The connection used last, unless it is closed or has been idle for too long."""
        now = asyncio.get_running_loop().time()
        if self._idle and now - self._idle[-1].idle_since > IDLE_CHECK_SECONDS:
            await asyncio.sleep(0)  # let the event loop notice connections closed meanwhile
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable and now - connection.idle_since < KEEP_ALIVE_SECONDS:
                return connection
            connection.abort()
        return None

    def _close_stale(self, now: float) -> None:
        """Close the connections that were idle for too long."""
        while now - self._idle[0].idle_since >= KEEP_ALIVE_SECONDS:
            self._idle.pop(0).abort()

    async def _open(self) -> "_Connection":
        _, connection = await connect(self._address, lambda: _Connection(self._all), self._tls)
        return connection


async def connect(
    address: Address, protocol: Callable[[], P], tls: "ssl.SSLContext | None" = None
) -> tuple[asyncio.Transport, P]:
    """Open a connection. Raises NotConnectedError."""
    loop = asyncio.get_running_loop()
    race: dict[str, Any] = {}  # uvloop does not race addresses: it tries them in turn
    if isinstance(loop, asyncio.BaseEventLoop):
        race["happy_eyeballs_delay"] = HAPPY_EYEBALLS_SECONDS
    connecting = asyncio.ensure_future(
        loop.create_connection(
            protocol,
            address.host,
            address.port,
            ssl=tls,
            server_hostname=None if tls is None else address.host,
            **race,
        )
    )
    try:
        return await asyncio.shield(connecting)
    except OSError as error:
        raise NotConnectedError(f"cannot connect: {type(error).__name__}: {error}") from error
    except asyncio.CancelledError:
        connecting.add_done_callback(_abort_connected)  # cancelling the race itself would leak a socket
        raise


def _abort_connected(connecting: "asyncio.Future[tuple[asyncio.Transport, P]]") -> None:
    if not connecting.cancelled() and connecting.exception() is None:
        connecting.result()[0].abort()


class _Connection(asyncio.Protocol):
    """One connection, which serves one request at a time."""

    def __init__(self, connections: "set[_Connection]") -> None:
        self.idle_since = 0.0
        self._all = connections
        self._transport: asyncio.Transport | None = None
        self._pending: asyncio.Future[Response] | None = None
        self._reader = ResponseReader()

    @property
    def reusable(self) -> bool:
        """Whether it is open and carried only plain responses."""
        return self._transport is not None and self._reader.plain

    async def exchange(self, request: bytes) -> Response:
        if self._transport is None:
            raise BrokenResponseError("the connection broke")
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
        self._all.add(self)

    def data_received(self, data: bytes) -> None:
        self._feed(data)

    def eof_received(self) -> None:
        self._feed(b"")

    def connection_lost(self, error: Exception | None) -> None:
        self._fail("the connection broke" if error is None else f"{type(error).__name__}: {error}")

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

    def _fail(self, why: str) -> None:
        self._transport = None
        self._all.discard(self)
        pending, self._pending = self._pending, None
        if pending is not None and not pending.done():
            pending.set_exception(BrokenResponseError(why))


def behind_proxy(api_url: str) -> bool:
    """Whether the environment (on macOS and Windows, the system) sets a proxy that may apply to this URL."""
    names = {api_url.partition(":")[0].lower() + "_proxy", "all_proxy"}
    if any(value and name.lower() in names for name, value in os.environ.items()):
        return True
    if sys.platform not in {"darwin", "win32"}:
        return False
    from urllib.request import getproxies  # noqa: PLC0415 - slow to load, and needed only here

    return any(f"{scheme}_proxy" in names for scheme in getproxies())
