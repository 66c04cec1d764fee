"""One client's connection to the fault proxy."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from .faults import STREAM_TYPE, ScriptedFault, SentRequests, operation_of, take_fault
from .messages import Message, altered, new_response, read_body, read_head

READ_BYTES: Final = 65_536
RESET_AT_CLOSE: Final = struct.pack("ii", 1, 0)


class Timer(Protocol):
    def cancel(self) -> None: ...


class Network(Protocol):
    """What a connection needs from its proxy."""

    @property
    def faults(self) -> Sequence[ScriptedFault]: ...

    @property
    def traffic(self) -> "Traffic": ...

    @property
    def server_port(self) -> int: ...

    def call_in(self, ms: int, call: Callable[[], None]) -> Timer:
        """Call a function after `ms` of the scenario's clock."""


@dataclass
class Traffic:
    """How many requests are in which state, and how much has happened.

    `forwarded` requests have no response of the server yet. `held` requests hang or are delayed. `exchanged` grows with
    each connection, request, response, part of a stream and end.
    """

    forwarded: int = 0
    held: int = 0
    streams: int = 0
    exchanged: int = 0

    @contextlib.contextmanager
    def counting(self, state: str) -> Iterator[None]:
        """Counts one more in this state."""
        setattr(self, state, getattr(self, state) + 1)
        try:
            yield
        finally:
            setattr(self, state, getattr(self, state) - 1)


@dataclass
class Upstream:
    """A connection to the server for one exchange, and the response on it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    response: Message = field(default_factory=lambda: Message(b""))

    @property
    def is_stream(self) -> bool:
        return (self.response.header("Content-Type") or "").startswith(STREAM_TYPE)


class ClientConnection:
    """A connection of `actor`'s client. `is_idle` between two requests; `is_stream` once a stream has begun."""

    def __init__(self, network: Network, actor: str, sent: SentRequests) -> None:
        self.is_idle = False
        self.is_stream = False
        self._network: Final = network
        self._actor: Final = actor
        self._traffic: Final = network.traffic
        self._sent: Final = sent

    async def serve(self, peer: socket.socket) -> None:
        """Serve one request after another, until the client has gone or the connection must end."""
        self._reader, self._writer = await asyncio.open_connection(sock=peer)
        try:
            self._traffic.exchanged += 1
            request = await self._next_request()
            while request is not None and await self._serve(request):
                self.is_idle = True
                request = await self._next_request()
                self.is_idle = False
        finally:
            self._traffic.exchanged += 1
            self._writer.close()

    def reset(self) -> None:
        """Break the connection: the client sees a reset."""
        peer: socket.socket = self._writer.get_extra_info("socket")
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_CLOSE)
        self._writer.transport.abort()

    async def _next_request(self) -> Message | None:
        head = await read_head(self._reader)
        return None if head is None else await read_body(self._reader, head)

    async def _serve(self, request: Message) -> bool:
        """Respond to a request. Returns whether the connection can carry another one."""
        self._traffic.exchanged += 1
        responding = asyncio.create_task(self._respond(request))
        leaving = asyncio.create_task(self._reader.read(1))
        try:
            await asyncio.wait([responding, leaving], return_when=asyncio.FIRST_COMPLETED)
        finally:
            responding.cancel()
            leaving.cancel()
            await asyncio.wait([responding, leaving])
        if responding.cancelled():
            return False
        response = responding.result()
        if response is None:
            self.reset()
            return False
        self._traffic.exchanged += 1
        self._writer.write(response.raw)
        return not (response.closes or request.closes or self.is_stream)

    async def _respond(self, request: Message) -> Message | None:
        """The response; None if the connection breaks instead."""
        method, path, _ = request.start
        operation = operation_of(method, path, request.header("Accept"))
        token, request_id = request.header("X-Volcano-Lock-Token"), request.header("X-Volcano-Request-Id")
        self._sent.add(operation, token, str(request_id))
        fault = take_fault(self._network.faults, operation, self._actor)
        if fault is not None and fault.response is not None:
            return new_response(*fault.response)
        kind = "" if fault is None else fault.kind
        if kind == "reset":
            return None
        await self._hold(fault, "before")
        response = await self._forward(request)
        if kind == "duplicate":
            response = await self._forward(request)
        if fault is not None and kind == "altered" and response is not None:
            response = altered(response, fault.answer)
        await self._hold(fault, "after")
        return None if kind == "drop_after" else response

    async def _hold(self, fault: ScriptedFault | None, when: str) -> None:
        """Hang or delay the request, if the fault says so."""
        if fault is None or fault.kind not in (f"hang_{when}", f"delay_{when}"):
            return
        due = asyncio.Event()
        timer = self._network.call_in(fault.delay_ms, due.set) if fault.kind.startswith("delay") else None
        try:
            with self._traffic.counting("held"):
                await due.wait()
        finally:
            if timer is not None:
                timer.cancel()

    async def _forward(self, request: Message) -> Message | None:
        """The server's response, after the end of the stream if it is one; None if the server breaks the connection."""
        upstream = None
        try:
            with self._traffic.counting("forwarded"):
                upstream = Upstream(*await asyncio.open_connection("127.0.0.1", self._network.server_port))
                upstream.writer.write(request.raw)
                head = await read_head(upstream.reader)
                if head is None:
                    return None
                upstream.response = head
                if not upstream.is_stream:
                    return await read_body(upstream.reader, head)
            return await self._forward_stream(upstream)
        except (ConnectionError, asyncio.IncompleteReadError):
            return None
        finally:
            if upstream is not None:
                upstream.writer.transport.abort()

    async def _forward_stream(self, upstream: Upstream) -> Message:
        self.is_stream = True
        with self._traffic.counting("streams"):
            part = upstream.response.head
            while part:
                self._traffic.exchanged += 1
                self._writer.write(part)
                part = await upstream.reader.read(READ_BYTES)
        return Message(b"")
