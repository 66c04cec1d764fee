"""One connection in an event loop.

Its unread bytes are bounded: above the limit it stops reading, and the server's limits apply.
"""

import asyncio
import contextlib
from typing import cast

from volcano_locks.http.response_reader import BrokenResponseError, broken

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
        """Whether it can serve another request: it is open and has no unread bytes."""
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
