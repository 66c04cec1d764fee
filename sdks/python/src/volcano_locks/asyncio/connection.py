"""One connection in an event loop.

Its unread bytes are bounded: above the limit it stops reading, and the server's limits apply.
"""

import asyncio
import contextlib
from collections.abc import Mapping
from typing import cast

from volcano_locks.http.response_reader import BrokenResponseError, StreamReader, broken

UNREAD_BYTES_MAX = 65_536


class Connection(asyncio.Protocol):
    """Sends and receives bytes. One task uses it at a time."""

    def __init__(self) -> None:
        self.idle_since = 0.0
        self._transport: asyncio.Transport | None = None
        self._unread = bytearray()
        self._ended: BrokenResponseError | None = None
        self._at_eof = False
        self._changed: asyncio.Future[None] | None = None

    @property
    def quiet(self) -> bool:
        """Whether it is open and received nothing that was not read: only then it serves another request."""
        return self._transport is not None and not self._unread and not self._at_eof

    def send(self, data: bytes) -> None:
        """Send `data`, which is short. Raises BrokenResponseError."""
        if self._transport is None:
            raise self._ended or broken("the connection broke")
        self._transport.write(data)

    async def receive(self) -> bytes:
        """The next bytes; none at the end. Raises BrokenResponseError."""
        while not self._unread:
            if self._at_eof:
                return b""
            if self._ended is not None:
                raise self._ended
            self._changed = asyncio.get_running_loop().create_future()
            await self._changed
        data = bytes(self._unread)
        self._unread.clear()
        if self._transport is not None:
            self._transport.resume_reading()
        return data

    def abort(self) -> None:
        """Close it at once. May be repeated."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            if self._transport is not None:
                self._transport.abort()
            self._end(broken("the connection was closed"))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transport does not inherit from it

    def data_received(self, data: bytes) -> None:
        self._unread += data
        if len(self._unread) > UNREAD_BYTES_MAX and self._transport is not None:
            self._transport.pause_reading()
        self._notify()

    def eof_received(self) -> None:
        self._at_eof = True
        self._notify()

    def connection_lost(self, error: Exception | None) -> None:
        self._end(broken("the connection broke" if error is None else error))

    def _end(self, error: BrokenResponseError) -> None:
        self._transport = None
        self._ended = self._ended or error
        self._notify()

    def _notify(self) -> None:
        changed, self._changed = self._changed, None
        if changed is not None and not changed.done():
            changed.set_result(None)


class ConnectionStream:
    """The response to `request`, read as it arrives: an `AsyncResponseStream`."""

    def __init__(self, connection: Connection, request: bytes) -> None:
        self._connection = connection
        self._reader = StreamReader(request)
        connection.send(request)

    async def head(self) -> tuple[int, Mapping[str, str]]:
        while self._reader.head is None:
            self._reader.feed(await self._connection.receive())
        return self._reader.head

    async def read(self) -> bytes:
        while not self._reader.unread and not self._reader.ended:
            self._reader.feed(await self._connection.receive())
        return self._reader.take()
