"""An answer that goes on: a connection of its own, read as it comes.

h11 reads it, since such an answer is chunked. What has come and nobody has read yet is bounded: beyond that the
connection is not read from, and the server's own bounds apply.
"""

import asyncio
from collections.abc import Mapping
from typing import Protocol, cast

import h11

from volcano_locks.http.response_reader import BrokenAnswerError, check_whose, why_unreadable

UNREAD_BYTES_MAX = 65_536

_CLOSED = h11.ConnectionClosed()  # told as often as h11 is asked


class Stream(Protocol):
    """What wires give. Raises BrokenAnswerError."""

    async def head(self) -> tuple[int, Mapping[str, str]]:
        """Status and header fields, with lower-case names, once they came."""

    async def read(self) -> bytes:
        """What came next; nothing at the end."""


class Listener(asyncio.Protocol):
    """One connection for one request."""

    def __init__(self, all_: "set[Listener]", request: bytes) -> None:
        self._all = all_
        self._request = request
        self._transport: asyncio.Transport | None = None
        self._http = h11.Connection(h11.CLIENT)
        self._http.send(h11.Request(method="GET", target="/", headers=[("Host", "-")]))
        self._http.send(h11.EndOfMessage())
        self._head: tuple[int, Mapping[str, str]] | None = None
        self._unread = bytearray()
        self._end: BrokenAnswerError | None = None
        self._ended = False
        self._news = asyncio.Event()

    async def head(self) -> tuple[int, Mapping[str, str]]:
        """See `Stream`."""
        while self._head is None:
            await self._more()
        return self._head

    async def read(self) -> bytes:
        """See `Stream`."""
        while not self._unread:
            if self._ended:
                return b""
            await self._more()
        data = bytes(self._unread)
        self._unread.clear()
        if self._transport is not None:
            self._transport.resume_reading()
        return data

    def abort(self) -> None:
        """End it at once. Harmless when repeated."""
        if self._transport is not None:
            self._transport.abort()
        self._fail("the connection was ended")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one without inheriting from it
        self._all.add(self)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._http.receive_data(data)
        try:
            while (event := self._http.next_event()) not in (h11.NEED_DATA, h11.PAUSED, _CLOSED):
                self._take(event)
        except BrokenAnswerError as error:
            self._fail(str(error))
            self.abort()
        except h11.RemoteProtocolError as error:
            self._fail(why_unreadable(error, data))
            self.abort()
        if len(self._unread) > UNREAD_BYTES_MAX and self._transport is not None:
            self._transport.pause_reading()
        self._news.set()

    def eof_received(self) -> None:
        self.data_received(b"")

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._fail("the connection broke" if error is None else f"{type(error).__name__}: {error}")

    async def _more(self) -> None:
        if self._end is not None:
            raise self._end
        self._news.clear()
        await self._news.wait()

    def _take(self, event: object) -> None:
        if isinstance(event, h11.Response):
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers}
            check_whose(headers, self._request)
            self._head = event.status_code, headers
        elif isinstance(event, h11.Data):
            self._unread += event.data
        elif isinstance(event, h11.EndOfMessage):
            self._ended = True

    def _fail(self, why: str) -> None:
        self._all.discard(self)
        if self._end is None:
            self._end = BrokenAnswerError(why)
        self._news.set()
