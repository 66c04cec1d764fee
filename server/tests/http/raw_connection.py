"""A client connection that sends bytes as they are, to a running server."""

import asyncio
import json

from volcano_locks_server.testing import RunningServer


class RawConnection:
    """One connection. `close` it at the end, or let the fixture `connect` do so."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, running: RunningServer) -> "RawConnection":
        host, port = running.url.removeprefix("http://").rsplit(":", 1)
        return cls(*await asyncio.open_connection(host, int(port)))

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def response(self) -> tuple[int, bytes]:
        """Status and body of the next response."""
        async with asyncio.timeout(30):
            head = await self.reader.readuntil(b"\r\n\r\n")
            length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            body = await self.reader.readexactly(int(length[0].split(b":")[1])) if length else b""
        return int(head.split(b" ", 2)[1]), body

    async def status(self) -> int:
        return (await self.response())[0]

    async def problem(self) -> tuple[int, str]:
        """Status and code of the next response, which is an error."""
        status, body = await self.response()
        return status, json.loads(body)["code"]

    async def is_closed(self) -> bool:
        """Whether the server closes the connection without sending more."""
        try:
            async with asyncio.timeout(30):
                return await self.reader.read(1) == b""
        except ConnectionResetError:
            return True

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            return


def lock_request(running: RunningServer, method: str, path: str, token: str = "", body: str = "") -> bytes:
    """A request with the service key."""
    lines = [f"{method} {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {running.service_key}"]
    lines += [f"X-Volcano-Lock-Token: {token}"] if token else []
    lines += [f"Content-Length: {len(body)}", "", body]
    return "\r\n".join(lines).encode()
