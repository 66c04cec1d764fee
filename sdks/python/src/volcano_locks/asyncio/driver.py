"""Performs the operations of an asyncio client, over connections of the running loop.

A cancellation is thrown into the operation, which cleans up first (`Request.shielded`). Closing the client cancels
running acquires and waits in the same way and within a time limit; they raise `VolcanoError` (SDK-6, SDK-11). After
`close` nothing is sent, because no call would close a new connection.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Awaitable
from typing import TypeVar

from volcano_locks.asyncio.pool import AsyncConnectionPool, AsyncioPool, AsyncResponseStream
from volcano_locks.asyncio.waiting import OwnCancellation, run_shielded, sleep, within
from volcano_locks.clock import Clock
from volcano_locks.config import Config
from volcano_locks.errors import CLOSED, VolcanoError
from volcano_locks.holding.block import BlocksOfClient
from volcano_locks.http.address import Address
from volcano_locks.http.response_reader import RESPONSE_BYTES_MAX, BrokenResponseError, NotConnectedError
from volcano_locks.http.transport import HttpCodec, Transport, no_time_error, timeout_error
from volcano_locks.protocol.effects import Effect, Emit, Operation, ReadStream, Request, Result, Sleep
from volcano_locks.protocol.messages import Response
from volcano_locks.protocol.operations import BEST_EFFORT_RELEASE_SECONDS_MAX

CLEAN_UP_SECONDS_MAX = BEST_EFFORT_RELEASE_SECONDS_MAX + 1.0

T = TypeVar("T")


class _LoopState:
    """What belongs to one event loop in one process: a child must never write to its parent's sockets.

    `running`: the calls that `close` cancels.
    """

    def __init__(self, codec: HttpCodec, pool: AsyncConnectionPool) -> None:
        self.pid = os.getpid()
        self.codec = codec
        self.pool = pool
        self.running: set[OwnCancellation] = set()
        self.ended = asyncio.Event()


class AsyncDriver:
    """Performs operations in the running loop."""

    def __init__(self, config: Config, clock: Clock, transport: Transport | None, blocks: BlocksOfClient) -> None:
        self._blocks = blocks
        self._config = config
        self._clock = clock
        self._transport = transport
        self._pid = os.getpid()
        self._address = Address.of(config.api_url)
        self._tls = None if transport is not None else self._address.tls_context(config.ca_file)
        self._states: dict[asyncio.AbstractEventLoop, _LoopState] = {}
        self._closing = False
        self._closed = False

    async def run(self, operation: Operation[T]) -> T:
        """Return the operation's result."""
        try:
            effect = operation.send(None)
            while True:
                try:
                    result = await self._perform(effect, None)
                except BaseException as error:  # noqa: BLE001 - the operation handles every failure
                    effect = operation.throw(error)
                else:
                    effect = operation.send(result)
        except StopIteration as end:
            value: T = end.value
            return value
        finally:
            operation.close()

    async def iterate(self, operation: Operation[None]) -> AsyncGenerator[object, None]:
        """Yield the items that `operation` emits, until the client is closed."""
        async with contextlib.aclosing(self._items(operation)) as items:
            while True:
                try:
                    item = await self.cancel_on_close(anext(items))
                except StopAsyncIteration:
                    return
                yield item

    async def cancel_on_close(self, work: Awaitable[T]) -> T:
        """Await `work`. Closing the client cancels it, waits for its clean-up and raises `VolcanoError`."""
        state, cancellation = self._state(), OwnCancellation()
        state.running.add(cancellation)
        error: asyncio.CancelledError | None = None
        try:
            return await work
        except asyncio.CancelledError as cancelled:
            error = cancelled
            raise
        finally:
            state.running.discard(cancellation)
            state.ended.set()
            if cancellation.uncancel(error):
                raise VolcanoError(CLOSED) from None

    async def close(self) -> None:
        """Cancel the running work of this loop, then close its connections. Idempotent."""
        self._closing = True
        loop = asyncio.get_running_loop()
        state = self._states.get(loop)
        if state is None or state.pid != os.getpid():
            self._closed = True
            return
        try:
            for cancellation in list(state.running):
                cancellation.cancel()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLEAN_UP_SECONDS_MAX):
                    while state.running:
                        state.ended.clear()
                        await state.ended.wait()
        finally:
            self._closed = True
            self._states.pop(loop, None)
            await state.pool.aclose()

    async def _items(self, operation: Operation[None]) -> AsyncGenerator[object, None]:
        stream = _OpenStream()
        result: Result = None
        error: BaseException | None = None
        with contextlib.closing(stream), contextlib.closing(operation):
            while True:
                try:
                    effect = operation.send(result) if error is None else operation.throw(error)
                except StopIteration:
                    return
                result, error = None, None
                if isinstance(effect, Emit):
                    yield effect.item
                    continue
                try:
                    result = await self._perform(effect, stream)
                except BaseException as caught:  # noqa: BLE001 - the operation handles every failure
                    error = caught

    async def _perform(self, effect: Effect, stream: "_OpenStream | None") -> Result:
        if isinstance(effect, Sleep):
            if effect.in_wait or not self._clock.skip_pause(effect.seconds):
                await sleep(self._clock, self._clock.now() + effect.seconds)
            else:
                await asyncio.sleep(0)
            return None
        if isinstance(effect, ReadStream):
            assert stream is not None
            return await self._in_time(effect.request, effect.timeout_seconds, stream.read())
        assert isinstance(effect, Request)
        if self._closed or (self._closing and not effect.shielded):
            raise VolcanoError(CLOSED, request_id=effect.request_id)
        if effect.timeout_seconds <= 0:
            raise no_time_error(effect)
        response = self._in_time(effect, effect.timeout_seconds, self._send(effect, stream))
        return await (run_shielded(response) if effect.shielded else response)

    async def _send(self, request: Request, stream: "_OpenStream | None") -> Response:
        state = self._state()
        outgoing = state.codec.encode(request)
        if request.streams:
            assert stream is not None
            response = await stream.open(state.pool.open_stream(outgoing))
        else:
            response = await state.pool.exchange(outgoing, long=bool(request.wait_seconds))
        self._blocks.last_headers = response.headers
        return state.codec.redact(response, request)

    async def _in_time(self, request: Request, seconds: float, work: Awaitable[T]) -> T:
        try:
            return await within(self._clock, self._clock.now() + seconds, work)
        except TimeoutError:
            raise timeout_error(request, seconds) from None
        except (NotConnectedError, BrokenResponseError, OSError) as error:
            raise self._state().codec.failure(request, error) from error

    def _state(self) -> _LoopState:
        """The state of the running loop. Also drops the states of loops that were closed."""
        pid, loop = os.getpid(), asyncio.get_running_loop()
        if self._transport is not None and self._pid != pid:
            raise VolcanoError("a client with a transport cannot be used after a fork: create one in the child")
        state = self._states.get(loop)
        if state is None or state.pid != pid:
            for ended in [known for known in list(self._states) if known.is_closed()]:
                self._states.pop(ended, None)
            if self._transport is not None:
                pool = self._transport.async_connections(self._clock)
            else:
                pool = AsyncioPool(self._address, self._tls)
            state = self._states[loop] = _LoopState(HttpCodec(self._config, self._address.proxy), pool)
        return state


class _OpenStream:
    """The event stream of an iterating caller; opening the next one closes it."""

    def __init__(self) -> None:
        self._stream: AsyncResponseStream | None = None

    async def open(self, opening: Awaitable[AsyncResponseStream]) -> Response:
        """The response, with its body unless the status is 200."""
        self.close()
        self._stream = stream = await opening
        response = stream.response
        while response.status != 200 and len(response.body) < RESPONSE_BYTES_MAX and (more := await stream.read()):
            response = response._replace(body=response.body + more)
        return response

    async def read(self) -> bytes:
        assert self._stream is not None
        return await self._stream.read()

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None
