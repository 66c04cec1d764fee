"""A connection whose response is a stream, read as it arrives.

The unread bytes are bounded: above the limit the connection stops reading, and the server's limits apply.
"""

import asyncio
from collections.abc import Mapping
from typing import Protocol, cast

from volcano_locks.http.response_reader import BrokenResponseError, StreamReader, broken

UNREAD_BYTES_MAX = 65_536


class AsyncResponseStream(Protocol):
    """A response that is read as it arrives. Raises BrokenResponseError."""

    async def head(self) -> tuple[int, Mapping[str, str]]:
        """Return status and header fields, with lower-case names, when they have arrived."""

    async def read(self) -> bytes:
        """Return the next bytes; none at the end."""

    def abort(self) -> None:
        """Close its connection at once. May be repeated."""


class StreamConnection(asyncio.Protocol):
    """One connection for one streamed response: an `AsyncResponseStream`."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._reader: StreamReader | None = None
        self._error: BrokenResponseError | None = None
        self._changed = asyncio.Event()

    def send(self, request: bytes) -> None:
        """Send the request, after the connection was opened."""
        self._reader = StreamReader(request)
        if self._transport is not None:
            self._transport.write(request)

    async def head(self) -> tuple[int, Mapping[str, str]]:
        reader = self._reader
        assert reader is not None
        while reader.head is None:
            await self._wait_for_change()
        return reader.head

    async def read(self) -> bytes:
        reader = self._reader
        assert reader is not None
        while not reader.unread and not reader.ended:
            await self._wait_for_change()
        if self._transport is not None:
            self._transport.resume_reading()
        return reader.take()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        self._fail("the connection was closed")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transport does not inherit from it

    def data_received(self, data: bytes) -> None:
        if self._reader is None:
            self.abort()  # unsolicited data
            return
        try:
            self._reader.feed(data)
        except BrokenResponseError as error:
            self._fail(error)
            self.abort()
        if len(self._reader.unread) > UNREAD_BYTES_MAX and self._transport is not None:
            self._transport.pause_reading()
        self._changed.set()

    def eof_received(self) -> None:
        self.data_received(b"")

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._fail("the connection broke" if error is None else error)

    async def _wait_for_change(self) -> None:
        if self._error is not None:
            raise self._error
        self._changed.clear()
        await self._changed.wait()

    def _fail(self, why: object) -> None:
        if self._error is None:
            self._error = why if isinstance(why, BrokenResponseError) else broken(why)
        self._changed.set()
