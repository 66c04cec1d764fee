"""Reads HTTP/1.1 messages so that their bytes can be forwarded unchanged."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus

from .faults import STREAM_TYPE

HEAD_END = b"\r\n\r\n"


@dataclass(frozen=True)
class Message:
    """A request or a response. The body of an event stream is not part of it."""

    head: bytes
    body: bytes = b""

    @property
    def raw(self) -> bytes:
        return self.head + self.body

    @property
    def start(self) -> tuple[str, str, str]:
        """The three words of the first line."""
        first, second, third = self.head.partition(b"\r\n")[0].decode("latin-1").split(" ", 2)
        return first, second, third

    def header(self, name: str) -> str | None:
        """The value of the first header with this name."""
        for line in self.head.decode("latin-1").split("\r\n")[1:]:
            found, _, value = line.partition(":")
            if found.lower() == name.lower():
                return value.strip()
        return None

    @property
    def is_stream(self) -> bool:
        """Whether an event stream follows."""
        return (self.header("Content-Type") or "").startswith(STREAM_TYPE)

    @property
    def closes(self) -> bool:
        """Whether the connection closes after this message: a header says so, or its body is cut."""
        return (self.header("Connection") or "").lower() == "close" or len(self.body) < self.length

    @property
    def length(self) -> int:
        """The length of the body by the header."""
        return int(self.header("Content-Length") or 0)

    def first_half(self) -> "Message":
        """The message with half of its body."""
        return Message(self.head, self.body[: len(self.body) // 2])


async def read_head(reader: asyncio.StreamReader) -> Message | None:
    """The next message without its body; None if the connection ends before."""
    try:
        return Message(await reader.readuntil(HEAD_END))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


async def read_body(reader: asyncio.StreamReader, message: Message) -> Message:
    """The complete message, whose body has a length."""
    assert message.header("Transfer-Encoding") is None, "only event streams are sent in chunks"
    return Message(message.head, await reader.readexactly(message.length))


def new_response(status: int, headers: Mapping[str, str], body: bytes) -> Message:
    """A response that the proxy sends itself."""
    kind = "text/html" if body.startswith(b"<") else "application/json"
    fields = {**headers, "Content-Length": str(len(body)), **({"Content-Type": kind} if body else {})}
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", *(f"{name}: {value}" for name, value in fields.items())]
    return Message("\r\n".join(lines).encode() + HEAD_END, body)


def altered(response: Message, fields: Mapping[str, object]) -> Message:
    """The response with other values of some fields of its JSON body."""
    if not response.body:
        return response
    body = json.dumps(json.loads(response.body) | fields).encode()
    headers = {"X-Volcano-Request-Id": response.header("X-Volcano-Request-Id") or ""}
    return new_response(int(response.start[1]), headers, body)
