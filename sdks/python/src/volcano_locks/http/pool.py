"""HTTP/1.1 exchanges with one address over connections that are kept: no more than a lock client needs.

A general HTTP client takes several times longer over such an exchange than all the rest of it (docs/adr/0011),
and a lock's requests are small, alike and many. So an answer that is plain (`plain_answer`) is read here, and
h11 judges every other. Whatever is not exactly one plain answer ends its connection, so that nothing of it can
reach another request.

Connections belong to one event loop in one process. Proxies are not spoken to: where one is set, httpx2 does it.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast
from urllib.parse import urlsplit

from volcano_locks.http.response_reader import BrokenAnswerError, Fields, Reader, Received

if TYPE_CHECKING:
    import ssl

    from volcano_locks.http.stream_connection import Listener

CONNECTIONS_MAX = 100
LONG_CONNECTIONS_MAX = 1000
KEEP_ALIVE_SECONDS = 30.0
HAPPY_EYEBALLS_SECONDS = 0.25
LOOK_AFTER_SECONDS = 0.02

P = TypeVar("P", bound=asyncio.BaseProtocol)


class NotConnectedError(Exception):
    """No connection could be opened, so nothing was sent."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where an API URL leads: what to connect to, what to call it, and what its paths begin with."""

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

    def request(self, method: str, path: str, headers: Fields, body: bytes) -> bytes:
        """A whole request, of parts that were checked before: all are visible ASCII but for the body."""
        return b"%b %b HTTP/1.1\r\nHost: %b\r\n%bContent-Length: %d\r\n\r\n%b" % (
            method.encode(),
            (self.path + path).encode(),
            self.authority,
            b"".join([b"%b: %b\r\n" % field for field in headers]),
            len(body),
            body,
        )

    def tls_context(self) -> "ssl.SSLContext | None":
        """What httpx2 would trust. Reading the certificates takes tens of milliseconds, which http:// need not pay."""
        if not self.tls:
            return None
        from httpx2 import create_ssl_context  # noqa: PLC0415 - loading httpx2 takes long

        return create_ssl_context()


class Rooms:
    """How many exchanges may be under way. Long ones have a room of their own: a hundred that wait for a lock must not
    keep the renewals of the locks one has waiting."""

    def __init__(self) -> None:
        self._short = asyncio.Semaphore(CONNECTIONS_MAX)
        self._long = asyncio.Semaphore(LONG_CONNECTIONS_MAX)

    def room(self, *, long: bool) -> asyncio.Semaphore:
        """To be held while one is under way."""
        return self._long if long else self._short


class Connections:
    """The connections to one API URL."""

    def __init__(self, api_url: str) -> None:
        self._address = Address.of(api_url)
        self._tls = self._address.tls_context()
        self._free: list[_Connection] = []
        self._all: set[_Connection] = set()
        self._listeners: set[Listener] = set()
        self._rooms = Rooms()

    async def exchange(self, method: str, path: str, headers: Fields, body: bytes, *, long: bool = False) -> Received:
        """Send one request and read its answer; cancelling it ends its connection.

        Raises NotConnectedError, BrokenAnswerError.
        """
        whole = self._address.request(method, path, headers, body)
        async with self._rooms.room(long=long):
            connection = await self._kept() or await self._connected()
            try:
                received = await connection.exchange(whole)
            except BaseException:
                connection.abort()
                raise
            if connection.reusable:
                connection.free_since = asyncio.get_running_loop().time()
                self._free.append(connection)
                self._end_old(connection.free_since)
            else:
                connection.abort()
            return received

    @asynccontextmanager
    async def listen(self, path: str, headers: Fields) -> "AsyncIterator[Listener]":
        """Send a GET whose answer is read as it comes. Leaving ends its connection. Raises as `exchange` does."""
        from volcano_locks.http.stream_connection import Listener  # noqa: PLC0415 - seldom needed

        whole = self._address.request("GET", path, headers, b"")
        async with self._rooms.room(long=True):
            _, listener = await connect(self._address, lambda: Listener(self._listeners, whole), self._tls)
            try:
                yield listener
            finally:
                listener.abort()

    async def aclose(self) -> None:
        """End all connections, also those in use."""
        for connection in list(self._all):
            connection.abort()
        for listener in list(self._listeners):
            listener.abort()
        self._free.clear()
        await asyncio.sleep(0)  # the event loop closes the sockets in its next round

    async def _kept(self) -> "_Connection | None":
        """The connection that was in use last, unless it is closed or has been free for too long."""
        now = asyncio.get_running_loop().time()
        if self._free and now - self._free[-1].free_since > LOOK_AFTER_SECONDS:
            await asyncio.sleep(0)  # an event loop that stood still first has to see what was closed meanwhile
        while self._free:
            connection = self._free.pop()
            if connection.reusable and now - connection.free_since < KEEP_ALIVE_SECONDS:
                return connection
            connection.abort()
        return None

    def _end_old(self, now: float) -> None:
        """Those that nobody has needed for long: a crowd that has gone leaves many."""
        while now - self._free[0].free_since >= KEEP_ALIVE_SECONDS:
            self._free.pop(0).abort()

    async def _connected(self) -> "_Connection":
        _, connection = await connect(self._address, lambda: _Connection(self._all), self._tls)
        return connection


async def connect(
    address: Address, protocol: Callable[[], P], tls: "ssl.SSLContext | None" = None
) -> tuple[asyncio.Transport, P]:
    """A new connection. Raises NotConnectedError."""
    loop = asyncio.get_running_loop()
    race: dict[str, Any] = {}  # uvloop knows no race between addresses: it tries one after the other
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
        connecting.add_done_callback(_drop)  # cancelled itself, the race between addresses would lose a socket
        raise


def _drop(connecting: "asyncio.Future[tuple[asyncio.Transport, P]]") -> None:
    if not connecting.cancelled() and connecting.exception() is None:
        connecting.result()[0].abort()


class _Connection(asyncio.Protocol):
    """One connection, which serves one request at a time."""

    def __init__(self, all_: "set[_Connection]") -> None:
        self.free_since = 0.0
        self._all = all_
        self._transport: asyncio.Transport | None = None
        self._waiting: asyncio.Future[Received] | None = None
        self._reader = Reader()

    @property
    def reusable(self) -> bool:
        """Open, and nothing but plain answers came over it."""
        return self._transport is not None and self._reader.plain

    async def exchange(self, request: bytes) -> Received:
        if self._transport is None:
            raise BrokenAnswerError("the connection broke")
        self._reader = Reader(to=request)
        self._waiting = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._waiting

    def abort(self) -> None:
        """End it at once. Harmless when repeated."""
        if self._transport is not None:
            self._transport.abort()
        self._lost("the connection was ended")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one without inheriting from it
        self._all.add(self)

    def data_received(self, data: bytes) -> None:
        self._take(data)

    def eof_received(self) -> None:
        self._take(b"")

    def connection_lost(self, error: Exception | None) -> None:
        self._lost("the connection broke" if error is None else f"{type(error).__name__}: {error}")

    def _take(self, data: bytes) -> None:
        waiting = self._waiting
        if waiting is None or waiting.done():
            self.abort()  # nobody asked, or the server has closed it
            return
        try:
            received = self._reader.take(data)
        except BrokenAnswerError as error:
            self._waiting = None
            waiting.set_exception(error)
        else:
            if received is not None:
                self._waiting = None
                waiting.set_result(received)

    def _lost(self, why: str) -> None:
        self._transport = None
        self._all.discard(self)
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done():
            waiting.set_exception(BrokenAnswerError(why))


def behind_proxy(api_url: str) -> bool:
    """Whether the environment (on macOS and Windows, the system) names a proxy that this URL may have to go through."""
    names = {api_url.partition(":")[0].lower() + "_proxy", "all_proxy"}
    if any(value and name.lower() in names for name, value in os.environ.items()):
        return True
    if sys.platform not in {"darwin", "win32"}:
        return False
    from urllib.request import getproxies  # noqa: PLC0415 - takes long, and is needed here only

    return any(f"{scheme}_proxy" in names for scheme in getproxies())
