"""Connects clients, in threads or event loops, to a server in memory.

A server is a function that serves one request step by step: it yields each wait and returns its reply. So one server
serves both kinds of clients, and none of them blocks another.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Generator, Mapping
from contextlib import asynccontextmanager
from typing import NamedTuple, Protocol, Self

from volcano_locks.asyncio.waiting import LoopWakeup
from volcano_locks.asyncio.waiting import sleep as sleep_in_loop
from volcano_locks.clock import Clock, Wakeup
from volcano_locks.http.address import OutgoingRequest
from volcano_locks.protocol.messages import Response
from volcano_locks.sync.call import Call, Signal


class HttpRequest(NamedTuple):
    """One request as the client sent it. Header names are in lower case; `path` includes the query."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @classmethod
    def of(cls, request: OutgoingRequest) -> Self:
        """The request as the server gets it."""
        headers = {name.decode().lower(): value.decode() for name, value in request.headers}
        return cls(request.method, request.path, headers, request.body)

    @property
    def token(self) -> str | None:
        """Its owner token."""
        return self.headers.get("x-volcano-lock-token")

    @property
    def request_id(self) -> str | None:
        """Its request id."""
        return self.headers.get("x-volcano-request-id")


class Pause(NamedTuple):
    """A wait of the server, until an instant of the clock or until `wakeup` is set."""

    until: float
    wakeup: Wakeup


NewWakeup = Callable[[], Wakeup]
Chunks = Generator[Pause | bytes, None, None]


class StreamedReply(NamedTuple):
    """A reply whose body is produced as it is read."""

    status: int
    headers: Mapping[str, str]
    chunks: Chunks


Serving = Generator[Pause, None, Response | StreamedReply]


class Server(Protocol):
    """Serves one request. Throwing an exception into the generator disconnects the client."""

    def serve(self, request: HttpRequest, new_wakeup: NewWakeup) -> Serving:
        """Yield the waits and return the reply. Raises NotConnectedError and BrokenResponseError."""


class InMemoryTransport(ABC):
    """A `Transport` of a server in memory."""

    @abstractmethod
    def serve(self, request: HttpRequest, new_wakeup: NewWakeup) -> Serving:
        """See `Server.serve`."""

    def connections(self, clock: Clock) -> "InMemoryPool":  # noqa: ARG002 - a call brings its clock
        """See `Transport`."""
        return InMemoryPool(self)

    def async_connections(self, clock: Clock) -> "AsyncInMemoryPool":
        """See `Transport`."""
        return AsyncInMemoryPool(self, clock)


class InMemoryPool:
    """The `ConnectionPool` of a server in memory."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def exchange(self, request: OutgoingRequest, until: float, call: Call) -> Response:
        reply = self._serve(request, until, call)
        if isinstance(reply, Response):
            return reply
        stream = InMemoryStream(reply)
        try:
            return Response(*stream.head(until, call), stream.read(until, call))
        finally:
            stream.close()

    def open_stream(self, request: OutgoingRequest, until: float, call: Call) -> "InMemoryStream":
        return InMemoryStream(self._serve(request, until, call))

    def close(self) -> None:
        """Nothing is kept open."""

    def _serve(self, request: OutgoingRequest, until: float, call: Call) -> Response | StreamedReply:
        serving = self._server.serve(HttpRequest.of(request), Signal)
        try:
            while True:
                block(next(serving), until, call)
        except StopIteration as end:
            reply: Response | StreamedReply = end.value
            return reply
        finally:
            serving.close()


class InMemoryStream:
    """The `ResponseStream` of a server in memory."""

    def __init__(self, reply: Response | StreamedReply) -> None:
        self._reply = reply
        self._chunks = _chunks(reply)

    def head(self, until: float, call: Call) -> tuple[int, Mapping[str, str]]:  # noqa: ARG002 - it is there already
        return self._reply.status, self._reply.headers

    def read(self, until: float, call: Call) -> bytes:
        for chunk in self._chunks:
            if isinstance(chunk, bytes):
                return chunk
            block(chunk, until, call)
        return b""

    def close(self) -> None:
        self._chunks.close()


class AsyncInMemoryPool:
    """The `AsyncConnectionPool` of a server in memory."""

    def __init__(self, server: Server, clock: Clock) -> None:
        self._server = server
        self._clock = clock

    async def exchange(self, request: OutgoingRequest, *, long: bool = False) -> Response:  # noqa: ARG002 - no limit here
        reply = await self._serve(request)
        if isinstance(reply, Response):
            return reply
        stream = AsyncInMemoryStream(reply, self._clock)
        try:
            return Response(*await stream.head(), await stream.read())
        finally:
            stream.abort()

    @asynccontextmanager
    async def open_stream(self, request: OutgoingRequest) -> "AsyncIterator[AsyncInMemoryStream]":
        stream = AsyncInMemoryStream(await self._serve(request), self._clock)
        try:
            yield stream
        finally:
            stream.abort()

    async def aclose(self) -> None:
        """Nothing is kept open."""

    async def _serve(self, request: OutgoingRequest) -> Response | StreamedReply:
        serving = self._server.serve(HttpRequest.of(request), LoopWakeup)
        try:
            while True:
                await _wait(next(serving), self._clock)
        except StopIteration as end:
            reply: Response | StreamedReply = end.value
            return reply
        finally:
            serving.close()


class AsyncInMemoryStream:
    """The `AsyncResponseStream` of a server in memory."""

    def __init__(self, reply: Response | StreamedReply, clock: Clock) -> None:
        self._reply = reply
        self._clock = clock
        self._chunks = _chunks(reply)

    async def head(self) -> tuple[int, Mapping[str, str]]:
        return self._reply.status, self._reply.headers

    async def read(self) -> bytes:
        for chunk in self._chunks:
            if isinstance(chunk, bytes):
                return chunk
            await _wait(chunk, self._clock)
        return b""

    def abort(self) -> None:
        self._chunks.close()


def block(pause: Pause, until: float, call: Call) -> None:
    """Wait in this thread, at most until the request's own limit. Raises TimeUp and CallCancelled."""
    assert isinstance(pause.wakeup, Signal)
    call.wait(min(pause.until, until), pause.wakeup)
    call.remaining(until)


async def _wait(pause: Pause, clock: Clock) -> None:
    assert isinstance(pause.wakeup, LoopWakeup)
    await sleep_in_loop(clock, pause.until, pause.wakeup)
    await asyncio.sleep(0)


def _chunks(reply: Response | StreamedReply) -> Chunks:
    if isinstance(reply, StreamedReply):
        yield from reply.chunks
    elif reply.body:
        yield reply.body
