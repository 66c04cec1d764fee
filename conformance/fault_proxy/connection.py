"""One client's connection to the fault proxy."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from .faults import ScriptedFault, SentRequests, operation_of, take_fault
from .messages import Message, altered, new_response, read_body, read_head

HOST: Final = "127.0.0.1"
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
    each connection, request, response, part of a stream and end of a connection.
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


class ClientConnection:
    """A connection of `actor`'s client. `is_idle` while no request uses it; `is_stream` once a stream has begun."""

    def __init__(self, network: Network, actor: str, sent: SentRequests) -> None:
        self.is_idle = True
        self.is_stream = False
        self._network: Final = network
        self._actor: Final = actor
        self._traffic: Final = network.traffic
        self._sent: Final = sent

    async def serve(self, peer: socket.socket) -> None:
        """Serve one request after another, until the client has gone or the connection must end."""
        self._reader, self._writer = await asyncio.open_connection(sock=peer)
        self._traffic.exchanged += 1
        try:
            while (request := await self._next_request()) is not None:
                self.is_idle = False
                if not await self._serve(request):
                    return
                self.is_idle = True
        finally:
            self._traffic.exchanged += 1
            self._writer.close()

    def reset(self) -> None:
        """Break the connection: the client sees a reset."""
        peer: socket.socket = self._writer.get_extra_info("socket")
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_CLOSE)
        self._writer.transport.abort()

    async def _next_request(self) -> Message | None:
        try:
            head = await read_head(self._reader)
            return None if head is None else await read_body(self._reader, head)
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

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
            assert leaving.exception() or not leaving.result(), "the client sent a request before the response"
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
        if fault is None:
            return await self._forward(request)
        if fault.response is not None:
            return new_response(*fault.response)
        if fault.kind == "reset":
            return None
        await self._hold(fault, "before")
        response = await self._forward(request)
        if fault.kind == "duplicate":
            response = await self._forward(request)
        await self._hold(fault, "after")
        if response is None or fault.kind == "drop_after":
            return None
        if fault.kind == "drop_within":
            return response.first_half()
        return altered(response, fault.answer) if fault.kind == "altered" else response

    async def _hold(self, fault: ScriptedFault, when: str) -> None:
        """Hang or delay the request, if the fault says so."""
        if fault.kind not in (f"hang_{when}", f"delay_{when}"):
            return
        due = asyncio.Event()
        timer = self._network.call_in(fault.delay_ms, due.set) if fault.delay_ms else None
        try:
            with self._traffic.counting("held"):
                await due.wait()
        finally:
            if timer is not None:
                timer.cancel()

    async def _forward(self, request: Message) -> Message | None:
        """The server's response; None if the server breaks the connection.

        A stream is forwarded here; the response is then empty.
        """
        with contextlib.ExitStack() as upstream, contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            with self._traffic.counting("forwarded"):
                reader, writer = await asyncio.open_connection(HOST, self._network.server_port)
                upstream.callback(writer.transport.abort)
                writer.write(request.raw)
                response = await read_head(reader)
                if response is None or not response.is_stream:
                    return None if response is None else await read_body(reader, response)
            self.is_stream = True
            with self._traffic.counting("streams"):
                part = response.head
                while part:
                    self._traffic.exchanged += 1
                    self._writer.write(part)
                    part = await reader.read(READ_BYTES)
            return Message(b"")
        return None
