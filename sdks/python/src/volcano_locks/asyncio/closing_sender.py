"""What an asyncio client sends with, until it is closed.

A connection opened later would be closed by nobody, so nothing is sent then. Closing first ends what is not to be cut
off half done, an acquire or a wait: each gives back what it may have acquired, bounded in time, and its caller is told
that the client is closed (SDK-6, SDK-11).
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, TypeVar

from volcano_locks.asyncio.own_cancellation import Interrupt
from volcano_locks.errors import CLOSED, VolcanoError
from volcano_locks.http.transport import HttpSender
from volcano_locks.protocol.effects import Request
from volcano_locks.protocol.messages import Answer
from volcano_locks.protocol.operations import GIVE_UP_SECONDS_MAX

if TYPE_CHECKING:
    from volcano_locks.http.stream_connection import Stream

CLEAN_UP_SECONDS_MAX = GIVE_UP_SECONDS_MAX + 1.0

T = TypeVar("T")


class UntilClosed:
    """Sends over `sender` until the client is closed."""

    def __init__(self, sender: HttpSender) -> None:
        self._sender = sender
        self._closing = False
        self._closed = False
        self._under_way: set[Interrupt] = set()
        self._ended = asyncio.Event()

    async def send(self, request: Request) -> Answer:
        """See `Sender`."""
        if self._closed or (self._closing and not request.to_the_end):
            raise VolcanoError(CLOSED, request_id=request.request_id)
        return await self._sender.send(request)

    def listen(self, request: Request) -> "AbstractAsyncContextManager[Stream]":
        """See `Sender`."""
        if self._closing:
            raise VolcanoError(CLOSED, request_id=request.request_id)
        return self._sender.listen(request)

    async def ending(self, work: Awaitable[T]) -> T:
        """`work`'s result. Closing the client cancels it and waits for its cleaning up; then `VolcanoError`."""
        interrupt = Interrupt()
        self._under_way.add(interrupt)
        error: asyncio.CancelledError | None = None
        try:
            return await work
        except asyncio.CancelledError as cancelled:
            error = cancelled
            raise
        finally:
            self._under_way.discard(interrupt)
            self._ended.set()
            if interrupt.take_back(error):
                raise VolcanoError(CLOSED) from None

    async def iterate(self, items: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
        """The items, until the client is closed."""
        async with contextlib.aclosing(items):
            while True:
                try:
                    item = await self.ending(anext(items))
                except StopAsyncIteration:
                    return
                yield item

    async def close(self) -> None:
        """End what is under way, then the connections. Idempotent."""
        self._closing = True
        try:
            for interrupt in list(self._under_way):
                interrupt.send()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLEAN_UP_SECONDS_MAX):
                    while self._under_way:
                        self._ended.clear()
                        await self._ended.wait()
        finally:
            self._closed = True
            await self._sender.aclose()
