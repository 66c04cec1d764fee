"""A bare HTTP/1.1 connection for asyncio: one request at a time, and next to nothing of its own to be measured."""

import asyncio
from typing import Final, Self, cast

HEAD_END: Final = b"\r\n\r\n"


class Connection(asyncio.Protocol):
    """A kept-alive connection to 127.0.0.1. `sent` is how many requests went over all of them."""

    sent = 0

    def __init__(self, port: int) -> None:
        self._host: Final = f"127.0.0.1:{port}"
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None

    @classmethod
    async def open(cls, port: int) -> Self:
        _, connection = await asyncio.get_running_loop().create_connection(lambda: cls(port), "127.0.0.1", port)
        return connection

    def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> "asyncio.Future[tuple[int, bytes]]":
        """Status and body of the answer; the request is on its way when this returns. `a_b` is the header `a-b`."""
        assert self._transport is not None
        assert self._answer is None, "one request at a time"
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self._host}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        if body:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        self._answer = answer = asyncio.get_running_loop().create_future()
        Connection.sent += 1
        self._transport.write("\r\n".join(lines).encode() + HEAD_END + body)
        return answer

    def abort(self) -> None:
        """Break it off, as the system does for a process that was killed."""
        assert self._transport is not None
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by inheritance

    def data_received(self, data: bytes) -> None:
        self._received += data
        end = self._received.find(HEAD_END)
        if end < 0 or self._answer is None:
            return
        head = bytes(self._received[:end]).lower()
        _, found, rest = head.partition(b"\r\ncontent-length:")
        begin = end + len(HEAD_END)
        length = int(rest.split(b"\r\n", 1)[0]) if found else 0
        if len(self._received) < begin + length:
            return
        body = bytes(self._received[begin : begin + length])
        self._received.clear()
        answer, self._answer = self._answer, None
        if not answer.done():
            answer.set_result((int(head[9:12]), body))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(exc or ConnectionResetError("the server closed the connection"))
