"""A TCP proxy in front of a server, an engine, or between an engine's members, that delays, holds back, loses or
repeats traffic."""

import asyncio
import contextlib
import random
from collections.abc import Coroutine
from types import TracebackType
from typing import Self

DUPLICATE_SECONDS_MAX = 10


class FaultProxy:
    """Forwards a loopback port of its own to others, each connection to one of them.

    While `requests` or `responses` is cleared, that direction is held, as under packet loss: open connections stay open
    and silent, and so do new ones. Each part is delayed by up to `delay_seconds_max`. Only connections whose first part
    contains `held_if_contains` are held. With `duplicated_after_seconds_max`, each part of a request is sent again on
    a connection of its own, up to that much later, and its response is lost.
    """

    def __init__(self, *ports: int) -> None:
        self.port = 0
        self.delay_seconds_max = 0.0
        self.duplicated_after_seconds_max = 0.0
        self.held_if_contains = b""
        self.requests = asyncio.Event()
        self.responses = asyncio.Event()
        self._to = ports
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

    def forward_to(self, *ports: int) -> None:
        """Forward new connections to other ports."""
        self._to = ports

    def cut(self) -> None:
        """Reset the open connections and lose their traffic. New ones can be opened."""
        for end in self._ends:
            end.transport.abort()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._ends.add(writer)
        try:
            upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", self._random.choice(self._to))
        except OSError:  # it does not listen
            writer.transport.abort()
            return
        self._ends.add(upstream_writer)
        first_part: list[bytes] = []
        for source, sink, gate in (
            (reader, upstream_writer, self.requests),
            (upstream_reader, writer, self.responses),
        ):
            self._run(self._forward(source, sink, gate, first_part))

    def _run(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
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
                if self.duplicated_after_seconds_max and gate is self.requests:
                    self._run(self._duplicate(part, self._random.uniform(0, self.duplicated_after_seconds_max)))
                sink.write(part)
        except OSError:
            pass  # the other end is closed, so this one closes too
        finally:
            sink.close()
            self._ends.discard(sink)

    async def _duplicate(self, part: bytes, after_seconds: float) -> None:
        await asyncio.sleep(after_seconds)
        with contextlib.suppress(OSError, TimeoutError):
            reader, writer = await asyncio.open_connection("127.0.0.1", self._random.choice(self._to))
            try:
                writer.write(part)
                async with asyncio.timeout(DUPLICATE_SECONDS_MAX):
                    await reader.read(1)
            finally:
                writer.transport.abort()
