"""The transport of an asyncio client, which refuses requests after the client was closed.

A connection opened after `close` would never be closed. Closing first cancels running acquires and waits: each releases
what it may have acquired, bounded in time, and raises that the client is closed (SDK-6, SDK-11).
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, TypeVar

from volcano_locks.asyncio.own_cancellation import OwnCancellation
from volcano_locks.errors import CLOSED, VolcanoError
from volcano_locks.http.transport import HttpTransport
from volcano_locks.protocol.effects import Request
from volcano_locks.protocol.messages import Response
from volcano_locks.protocol.operations import BEST_EFFORT_RELEASE_SECONDS_MAX

if TYPE_CHECKING:
    from volcano_locks.http.stream_connection import ResponseStream

CLEAN_UP_SECONDS_MAX = BEST_EFFORT_RELEASE_SECONDS_MAX + 1.0

T = TypeVar("T")


class ClosingTransport:
    """A `Transport` that sends over `transport` until the client is closed."""

    def __init__(self, transport: HttpTransport) -> None:
        self._transport = transport
        self._closing = False
        self._closed = False
        self._running: set[OwnCancellation] = set()
        self._ended = asyncio.Event()

    async def send(self, request: Request) -> Response:
        if self._closed or (self._closing and not request.shielded):
            raise VolcanoError(CLOSED, request_id=request.request_id)
        return await self._transport.send(request)

    def open_stream(self, request: Request) -> "AbstractAsyncContextManager[ResponseStream]":
        if self._closing:
            raise VolcanoError(CLOSED, request_id=request.request_id)
        return self._transport.open_stream(request)

    async def cancel_on_close(self, work: Awaitable[T]) -> T:
        """Await `work`. Closing the client cancels it, waits for its clean-up and raises `VolcanoError`."""
        cancellation = OwnCancellation()
        self._running.add(cancellation)
        error: asyncio.CancelledError | None = None
        try:
            return await work
        except asyncio.CancelledError as cancelled:
            error = cancelled
            raise
        finally:
            self._running.discard(cancellation)
            self._ended.set()
            if cancellation.uncancel(error):
                raise VolcanoError(CLOSED) from None

    async def iterate(self, items: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
        """Yield the items until the client is closed."""
        async with contextlib.aclosing(items):
            while True:
                try:
                    item = await self.cancel_on_close(anext(items))
                except StopAsyncIteration:
                    return
                yield item

    async def close(self) -> None:
        """Cancel the running work, then close the connections. Idempotent."""
        self._closing = True
        try:
            for cancellation in list(self._running):
                cancellation.cancel()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLEAN_UP_SECONDS_MAX):
                    while self._running:
                        self._ended.clear()
                        await self._ended.wait()
        finally:
            self._closed = True
            await self._transport.aclose()
