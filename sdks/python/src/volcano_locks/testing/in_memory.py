"""Connects clients, in threads or event loops, to a server in memory.

A server is a function that serves one request step by step: it yields each wait and returns its reply. So one server
serves both kinds of clients, and none of them blocks another.
"""

import asyncio
from collections.abc import Callable, Generator, Mapping
from typing import NamedTuple, Protocol, Self, TypeVar

from volcano_locks.asyncio.waiting import LoopWakeup, sleep
from volcano_locks.clock import Clock, Wakeup
from volcano_locks.http.address import OutgoingRequest
from volcano_locks.protocol.messages import Response
from volcano_locks.sync.call import Call, Signal

T = TypeVar("T")


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


class InMemoryTransport(Server, Protocol):
    """A `Transport` of a server in memory."""

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
        return _block(_exchange(self._server, request, Signal), until, call)

    def open_stream(self, request: OutgoingRequest, until: float, call: Call) -> "InMemoryStream":
        return InMemoryStream(_block(self._server.serve(HttpRequest.of(request), Signal), until, call))

    def close(self) -> None:
        """Nothing is kept open."""


class AsyncInMemoryPool:
    """The `AsyncConnectionPool` of a server in memory."""

    def __init__(self, server: Server, clock: Clock) -> None:
        self._server = server
        self._clock = clock

    async def exchange(self, request: OutgoingRequest, *, long: bool = False) -> Response:  # noqa: ARG002 - no limit here
        return await _wait(_exchange(self._server, request, LoopWakeup), self._clock)

    async def open_stream(self, request: OutgoingRequest) -> "AsyncInMemoryStream":
        reply = await _wait(self._server.serve(HttpRequest.of(request), LoopWakeup), self._clock)
        return AsyncInMemoryStream(reply, self._clock)

    async def aclose(self) -> None:
        """Nothing is kept open."""


class _Stream:
    def __init__(self, reply: Response | StreamedReply) -> None:
        self.response = Response(reply.status, reply.headers, b"")
        self._chunks = _chunks(reply)

    def close(self) -> None:
        """The reader has disconnected."""
        self._chunks.close()


class InMemoryStream(_Stream):
    """The `ResponseStream` of a server in memory."""

    def read(self, until: float, call: Call) -> bytes:
        return _block(_next_chunk(self._chunks), until, call)


class AsyncInMemoryStream(_Stream):
    """The `AsyncResponseStream` of a server in memory."""

    def __init__(self, reply: Response | StreamedReply, clock: Clock) -> None:
        super().__init__(reply)
        self._clock = clock

    async def read(self) -> bytes:
        return await _wait(_next_chunk(self._chunks), self._clock)


def _exchange(server: Server, request: OutgoingRequest, new_wakeup: NewWakeup) -> Generator[Pause, None, Response]:
    reply = yield from server.serve(HttpRequest.of(request), new_wakeup)
    if isinstance(reply, Response):
        return reply
    body = yield from _next_chunk(reply.chunks)
    reply.chunks.close()
    return Response(reply.status, reply.headers, body)


def _chunks(reply: Response | StreamedReply) -> Chunks:
    if isinstance(reply, StreamedReply):
        yield from reply.chunks
    elif reply.body:
        yield reply.body


def _next_chunk(chunks: Chunks) -> Generator[Pause, None, bytes]:
    for chunk in chunks:
        if isinstance(chunk, bytes):
            return chunk
        yield chunk
    return b""


def _block(serving: Generator[Pause, None, T], until: float, call: Call) -> T:
    """Perform the waits in this thread, at most until the request's own limit. Raises TimeUp and CallCancelled."""
    try:
        while True:
            pause = next(serving)
            assert isinstance(pause.wakeup, Signal)
            call.wait(min(pause.until, until), pause.wakeup)
            call.remaining(until)
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        serving.close()


async def _wait(serving: Generator[Pause, None, T], clock: Clock) -> T:
    """Perform the waits in this task."""
    try:
        while True:
            pause = next(serving)
            assert isinstance(pause.wakeup, LoopWakeup)
            await sleep(clock, pause.until, pause.wakeup)
            await asyncio.sleep(0)
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        serving.close()
