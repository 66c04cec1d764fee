"""A transport that fails as a scenario's outages say, between a client and its server.

A background request (a renewal) that hangs or is delayed waits on the clock, which the scenario moves. A request that
the scenario's own step waits for (`blocking`) moves the clock itself.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from math import inf
from typing import Final

import httpx2

from volcano_locks.testing.clock import resolve

from ..fault_proxy import ScriptedFault, SentRequests
from ..fault_proxy.faults import REFUSED, STREAM_TYPE, operation_of, take_fault
from .client_clock import ClientClock

REAL_SECONDS_MAX: Final = 60.0


class ScriptedTransport(httpx2.AsyncBaseTransport):
    """`actor`'s transport to `inner`, subject to the `faults` that all actors share.

    `waiting` is the number of requests that hang or are delayed on the clock now.
    """

    def __init__(
        self, actor: str, inner: httpx2.AsyncBaseTransport, clock: ClientClock, faults: list[ScriptedFault]
    ) -> None:
        self._actor: Final = actor
        self._inner: Final = inner
        self._clock: Final = clock
        self._faults: Final = faults
        self.blocking = False
        self.waiting = 0
        self.sent: Final = SentRequests()
        self._streams: Final[set[_StreamBody]] = set()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        faults = self._active_faults()
        if any(one.kind == REFUSED and one.actor in (None, self._actor) for one in faults):
            raise httpx2.ConnectError("scripted: no connection", request=request)
        operation = operation_of(request.method, request.url.path, request.headers.get("Accept"))
        token, request_id = (request.headers.get(f"X-Volcano-{name}") for name in ("Lock-Token", "Request-Id"))
        self.sent.add(operation, token, str(request_id))
        fault = take_fault(faults, operation, self._actor)
        kind = "" if fault is None else fault.kind
        if fault is not None and fault.response is not None:
            status, headers, body = fault.response
            return httpx2.Response(status, content=body, headers=headers)
        if kind == "reset":
            raise httpx2.ReadError("scripted: connection reset", request=request)
        if kind == "hang_before":
            await self._hang(request)
        if kind == "delay_before":
            await self._delay(fault)
        response = await self._send(request)
        if kind == "duplicate":
            response = await self._send(request)
        if fault is not None and kind == "altered" and response.content:
            content = json.dumps(json.loads(response.content) | fault.answer).encode()
            response = httpx2.Response(response.status_code, content=content)
        if kind in ("drop_after", "drop_within"):
            raise httpx2.ReadError("scripted: connection reset", request=request)
        if kind == "hang_after":
            await self._hang(request)
        if kind == "delay_after":
            await self._delay(fault)
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()

    def cut(self) -> None:
        """Break the connections of all streams."""
        for stream in list(self._streams):
            stream.cut()

    def _active_faults(self) -> list[ScriptedFault]:
        now = self._clock.now()
        return [one for one in self._faults if now < one.until]

    async def _send(self, request: httpx2.Request) -> httpx2.Response:
        """Send the request. One with `wait_seconds` waits on the clock until its response arrives."""
        if request.headers.get("Accept") == STREAM_TYPE:
            return await self._open_stream(request)
        responded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if b"wait_seconds" not in request.content:
            return await self._exchange(request, responded)
        request_task = asyncio.ensure_future(self._exchange(request, responded))
        try:
            await self._clock.wait(inf, responded)
            return await request_task
        finally:
            request_task.add_done_callback(lambda _: request_task.cancelled() or request_task.exception())
            request_task.cancel()

    async def _open_stream(self, request: httpx2.Request) -> httpx2.Response:
        """Open a stream. It counts as in flight until it has begun."""
        with self._clock.sending():
            response = await self._inner.handle_async_request(request)
            if response.headers.get("Content-Type") != STREAM_TYPE:
                await response.aread()
                return response
        body = _StreamBody(response, self._clock, self._streams)
        return httpx2.Response(response.status_code, headers=response.headers, stream=body)

    async def _exchange(self, request: httpx2.Request, responded: "asyncio.Future[None]") -> httpx2.Response:
        with self._clock.sending():
            try:
                response = await self._inner.handle_async_request(_with_real_timeout(request))
                await response.aread()
                return response
            finally:
                responded.set_result(None)

    async def _hang(self, request: httpx2.Request) -> None:
        if self.blocking:
            self._clock.jump(request.extensions["timeout"]["read"])
        await self._wait(inf)

    async def _delay(self, fault: ScriptedFault | None) -> None:
        assert fault is not None
        seconds = fault.delay_ms / 1_000
        if self.blocking:
            self._clock.jump(seconds)
            await asyncio.sleep(0)
        else:
            await self._wait(self._clock.now() + seconds)

    async def _wait(self, until: float) -> None:
        self.waiting += 1
        try:
            await self._clock.wait(until)
        finally:
            self.waiting -= 1


def _with_real_timeout(request: httpx2.Request) -> httpx2.Request:
    """The client's timeout is in seconds of the scenario's clock, which stands still while a busy server responds."""
    timeout = dict.fromkeys(("connect", "read", "write", "pool"), REAL_SECONDS_MAX)
    return httpx2.Request(
        request.method,
        request.url,
        headers=request.headers,
        content=request.content,
        extensions={**request.extensions, "timeout": timeout},
    )


class _StreamBody(httpx2.AsyncByteStream):
    """The body of an open stream, until its connection is cut. Its reader waits on the clock."""

    def __init__(self, response: httpx2.Response, clock: ClientClock, all_: "set[_StreamBody]") -> None:
        self._chunks: Final = response.aiter_bytes()
        self._response: Final = response
        self._clock: Final = clock
        self._all: Final = all_
        self._loop: Final = asyncio.get_running_loop()
        self._broken: Final[asyncio.Future[None]] = self._loop.create_future()
        self._all.add(self)

    def cut(self) -> None:
        """From any thread."""
        self._loop.call_soon_threadsafe(resolve, self._broken)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            reading = asyncio.ensure_future(anext(self._chunks, b""))
            ready: asyncio.Future[None] = self._loop.create_future()
            for end in (reading, self._broken):
                end.add_done_callback(lambda _, ready=ready: resolve(ready))  # type: ignore[misc]
            try:
                await self._clock.wait(inf, ready)
                if self._broken.done():
                    raise httpx2.ReadError("scripted: connection reset")
                chunk = await reading
            finally:
                reading.cancel()
            if not chunk:
                return
            yield chunk

    async def aclose(self) -> None:
        self._all.discard(self)
        await self._response.aclose()
