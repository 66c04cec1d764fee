"""A way to an engine, or between its members, that delays what it carries, keeps it back, loses answers, or is cut."""

import asyncio
import random
from types import TracebackType
from typing import Self


class Wire:
    """Forwards a loopback port of its own to another.

    While `requests` or `answers` is not set, what goes that way waits, as it does while packets are lost: a
    connection stays open and is silent, a new one opens and is silent. Each part is late by up to `late_seconds`.
    Only connections are held up that begin with a part in which `held_up` is found.
    """

    def __init__(self, port: int) -> None:
        self.port = 0
        self.late_seconds = 0.0
        self.held_up = b""
        self.requests = asyncio.Event()
        self.answers = asyncio.Event()
        self._to = port
        self._dice = random.Random(3)
        self._server: asyncio.Server | None = None
        self._ways: set[asyncio.Task[None]] = set()
        self._ends: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Self:
        self.pass_all()
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for way in self._ways:
            way.cancel()
        self.cut()
        await asyncio.gather(*self._ways, return_exceptions=True)

    def pass_all(self) -> None:
        """Deliver what waits, and all that comes."""
        self.requests.set()
        self.answers.set()

    def keep_all(self) -> None:
        """Lose every packet, until `pass_all`."""
        self.requests.clear()
        self.answers.clear()

    def turn_to(self, port: int) -> None:
        """Lead there what is opened from now on."""
        self._to = port

    def cut(self) -> None:
        """Reset the connections that are open, and lose what is on its way; others may be opened."""
        for end in self._ends:
            end.transport.abort()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._ends.add(writer)
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._to)
        except OSError:  # nobody is there
            writer.transport.abort()
            return
        self._ends.add(back)
        begins: list[bytes] = []
        for source, sink, gate in ((reader, back, self.requests), (there, writer, self.answers)):
            way = asyncio.create_task(self._carry(source, sink, gate, begins))
            self._ways.add(way)
            way.add_done_callback(self._ways.discard)

    async def _carry(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, gate: asyncio.Event, begins: list[bytes]
    ) -> None:
        try:
            while part := await source.read(65_536):
                if not begins:
                    begins.append(part)
                if self.late_seconds:
                    await asyncio.sleep(self._dice.uniform(0, self.late_seconds))
                if self.held_up in begins[0]:
                    await gate.wait()
                sink.write(part)
        except OSError:
            pass  # the other end is gone, so this one goes too
        finally:
            sink.close()
            self._ends.discard(sink)
