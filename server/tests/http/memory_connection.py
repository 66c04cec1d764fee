"""A connection of the HTTP/1.1 protocol without a socket, and a parser of its responses."""

import asyncio
from typing import Any, NamedTuple

from volcano_locks_server.http.server.connection_context import ConnectionContext
from volcano_locks_server.http.server.http1 import Http1Connection

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class MemoryTransport(asyncio.Transport):
    """Records what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False
        self.is_paused = False
        self.can_end = False  # whether writing can end before reading, as without TLS

    def write(self, data: Any) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close

    def can_write_eof(self) -> bool:
        return self.can_end

    def write_eof(self) -> None:
        pass

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass


class MemoryConnection:
    """A connection of the protocol. `feed` is what the client sends, `transport.written` what it gets."""

    def __init__(self, context: ConnectionContext) -> None:
        self.transport = MemoryTransport()
        self.protocol = Http1Connection(context)
        self.protocol.connection_made(self.transport)

    def feed(self, data: bytes) -> None:
        while data and not self.transport.closed:
            buffer = self.protocol.get_buffer(-1)
            count = min(len(buffer), len(data))
            buffer[:count] = data[:count]
            self.protocol.buffer_updated(count)
            data = data[count:]


class Response(NamedTuple):
    status: int
    fields: dict[bytes, bytes]
    body: bytes


def responses(written: bytes, method: bytes) -> list[Response]:
    """All final responses; the first is to a request with that method."""
    found = []
    while written:
        if written.startswith(CONTINUE):
            written = written[len(CONTINUE) :]
            continue
        head, _, written = written.partition(b"\r\n\r\n")
        status, *lines = head.split(b"\r\n")
        fields = {name: value for name, _, value in (line.partition(b": ") for line in lines)}
        length = 0 if method == b"HEAD" and not found else int(fields.get(b"content-length", 0))
        found.append(Response(int(status.split(b" ")[1]), fields, written[:length]))
        written = written[length:]
    return found
