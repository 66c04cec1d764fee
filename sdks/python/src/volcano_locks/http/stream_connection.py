"""A connection whose response is a stream, read as it arrives.

h11 reads it, because such a response is chunked. The unread bytes are bounded: above the limit the connection stops
reading, and the server's limits apply.
"""

import asyncio
from collections.abc import Mapping
from typing import Protocol, cast

import h11

from volcano_locks.http.response_reader import BrokenResponseError, check_request_id, describe_broken

UNREAD_BYTES_MAX = 65_536

_CLOSED = h11.ConnectionClosed()  # h11 returns it on every further call


class ResponseStream(Protocol):
    """A streamed response. Raises BrokenResponseError."""

    async def head(self) -> tuple[int, Mapping[str, str]]:
        """Return status and header fields, with lower-case names, when they have arrived."""

    async def read(self) -> bytes:
        """Return the next bytes; none at the end."""


class StreamConnection(asyncio.Protocol):
    """One connection for one streamed response: a `ResponseStream`."""

    def __init__(self, connections: "set[StreamConnection]", request: bytes) -> None:
        self._all = connections
        self._request = request
        self._transport: asyncio.Transport | None = None
        self._http = h11.Connection(h11.CLIENT)
        self._http.send(h11.Request(method="GET", target="/", headers=[("Host", "-")]))
        self._http.send(h11.EndOfMessage())
        self._head: tuple[int, Mapping[str, str]] | None = None
        self._unread = bytearray()
        self._error: BrokenResponseError | None = None
        self._ended = False
        self._changed = asyncio.Event()

    async def head(self) -> tuple[int, Mapping[str, str]]:
        while self._head is None:
            await self._wait_for_change()
        return self._head

    async def read(self) -> bytes:
        while not self._unread:
            if self._ended:
                return b""
            await self._wait_for_change()
        data = bytes(self._unread)
        self._unread.clear()
        if self._transport is not None:
            self._transport.resume_reading()
        return data

    def abort(self) -> None:
        """Close it at once. May be repeated."""
        if self._transport is not None:
            self._transport.abort()
        self._fail("the connection was closed")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transport does not inherit from it
        self._all.add(self)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._http.receive_data(data)
        try:
            while (event := self._http.next_event()) not in (h11.NEED_DATA, h11.PAUSED, _CLOSED):
                self._handle(event)
        except BrokenResponseError as error:
            self._fail(str(error))
            self.abort()
        except h11.RemoteProtocolError as error:
            self._fail(describe_broken(error, data))
            self.abort()
        if len(self._unread) > UNREAD_BYTES_MAX and self._transport is not None:
            self._transport.pause_reading()
        self._changed.set()

    def eof_received(self) -> None:
        self.data_received(b"")

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._fail("the connection broke" if error is None else f"{type(error).__name__}: {error}")

    async def _wait_for_change(self) -> None:
        if self._error is not None:
            raise self._error
        self._changed.clear()
        await self._changed.wait()

    def _handle(self, event: object) -> None:
        if isinstance(event, h11.Response):
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers}
            check_request_id(headers, self._request)
            self._head = event.status_code, headers
        elif isinstance(event, h11.Data):
            self._unread += event.data
        elif isinstance(event, h11.EndOfMessage):
            self._ended = True

    def _fail(self, why: str) -> None:
        self._all.discard(self)
        if self._error is None:
            self._error = BrokenResponseError(why)
        self._changed.set()
