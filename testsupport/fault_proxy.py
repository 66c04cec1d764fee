"""A TCP proxy in front of an engine, or between its members, that delays, holds back or loses traffic."""

import asyncio
import random
from types import TracebackType
from typing import Self


class FaultProxy:
    """Forwards a loopback port of its own to another.

    While `requests` or `responses` is cleared, that direction is held, as under packet loss: open connections stay open
    and silent, and so do new ones. Each part is delayed by up to `delay_seconds_max`. Only connections whose first part
    contains `held_if_contains` are held.
    """

    def __init__(self, port: int) -> None:
        self.port = 0
        self.delay_seconds_max = 0.0
        self.held_if_contains = b""
        self.requests = asyncio.Event()
        self.responses = asyncio.Event()
        self._to = port
        self._random = random.Random(3)
        self._server: asyncio.Server | None = None
        self._forwarding: set[asyncio.Task[None]] = set()
        self._ends: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Self:
        self.forward_all()
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._forwarding:
            task.cancel()
        self.cut()
        await asyncio.gather(*self._forwarding, return_exceptions=True)

    def forward_all(self) -> None:
        """Deliver everything that is held, and everything that arrives."""
        self.requests.set()
        self.responses.set()

    def hold_all(self) -> None:
        """Hold both directions until `forward_all`."""
        self.requests.clear()
        self.responses.clear()

    def forward_to(self, port: int) -> None:
        """Forward new connections to another port."""
        self._to = port

    def cut(self) -> None:
        """Reset the open connections and lose their traffic. New ones can be opened."""
        for end in self._ends:
            end.transport.abort()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._ends.add(writer)
        try:
            upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", self._to)
        except OSError:  # the engine does not listen
            writer.transport.abort()
            return
        self._ends.add(upstream_writer)
        first_part: list[bytes] = []
        for source, sink, gate in (
            (reader, upstream_writer, self.requests),
            (upstream_reader, writer, self.responses),
        ):
            task = asyncio.create_task(self._forward(source, sink, gate, first_part))
            self._forwarding.add(task)
            task.add_done_callback(self._forwarding.discard)

    async def _forward(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, gate: asyncio.Event, first_part: list[bytes]
    ) -> None:
        try:
            while part := await source.read(65_536):
                if not first_part:
                    first_part.append(part)
                if self.delay_seconds_max:
                    await asyncio.sleep(self._random.uniform(0, self.delay_seconds_max))
                if self.held_if_contains in first_part[0]:
                    await gate.wait()
                sink.write(part)
        except OSError:
            pass  # the other end is closed, so this one closes too
        finally:
            sink.close()
            self._ends.discard(sink)
