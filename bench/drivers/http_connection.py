"""A minimal HTTP/1.1 connection for asyncio: one request at a time, with little overhead of its own."""

import asyncio
from typing import Final, Self, cast

HEAD_END: Final = b"\r\n\r\n"


class Connection(asyncio.Protocol):
    """A persistent connection to 127.0.0.1. `sent` counts the requests over all connections."""

    sent = 0

    def __init__(self, port: int) -> None:
        self._host: Final = f"127.0.0.1:{port}"
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._response: asyncio.Future[tuple[int, bytes]] | None = None

    @classmethod
    async def open(cls, port: int) -> Self:
        _, connection = await asyncio.get_running_loop().create_connection(lambda: cls(port), "127.0.0.1", port)
        return connection

    def request(self, method: str, path: str, body: bytes = b"", **headers: str) -> "asyncio.Future[tuple[int, bytes]]":
        """Send a request. The future gets the status and body of the response. `a_b` is the header `a-b`."""
        assert self._transport is not None
        assert self._response is None, "one request at a time"
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self._host}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        if body:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        self._response = response = asyncio.get_running_loop().create_future()
        Connection.sent += 1
        self._transport.write("\r\n".join(lines).encode() + HEAD_END + body)
        return response

    def abort(self) -> None:
        """Abort the connection, as the system does for a killed process."""
        assert self._transport is not None
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transport does not inherit from it

    def data_received(self, data: bytes) -> None:
        self._received += data
        end = self._received.find(HEAD_END)
        if end < 0 or self._response is None:
            return
        head = bytes(self._received[:end]).lower()
        _, found, rest = head.partition(b"\r\ncontent-length:")
        begin = end + len(HEAD_END)
        length = int(rest.split(b"\r\n", 1)[0]) if found else 0
        if len(self._received) < begin + length:
            return
        body = bytes(self._received[begin : begin + length])
        self._received.clear()
        response, self._response = self._response, None
        if not response.done():
            response.set_result((int(head[9:12]), body))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._response is not None and not self._response.done():
            self._response.set_exception(exc or ConnectionResetError("the server closed the connection"))
