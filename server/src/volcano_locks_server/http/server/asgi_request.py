"""One request that the ASGI application serves, in a task of its own.

receive   the parts of the body, then waits for a disconnect or for the end of the response
send      head and body in one write; a stream in chunks, as fast as the client reads
"""

import asyncio
from typing import TYPE_CHECKING, Final, Protocol

from ..codec import CLIENT_IS_GONE, FIELDS_IN_SCOPE, Message, Scope
from ..request_head import HTTP_1_1, RequestHead, split_target
from ..responses import CONTINUE, head_bytes

if TYPE_CHECKING:
    from ..codec import Receive, Send


class AsgiApp(Protocol):
    async def __call__(self, scope: Scope, receive: "Receive", send: "Send") -> None: ...


class AsgiConnection(Protocol):
    """What a request needs from its connection."""

    def is_closing(self) -> bool: ...
    def write(self, data: bytes) -> None: ...
    async def drain(self) -> None: ...
    def body_taken(self) -> None: ...
    def response_complete(self) -> None: ...
    def abort(self) -> None: ...


class AsgiRequest:
    """One request and its response."""

    __slots__ = (
        "_body",
        "_connection",
        "_disconnected",
        "_end_received",
        "_expects_continue",
        "_is_chunked",
        "_is_stream",
        "_response_head",
        "_wakeup",
        "body_complete",
        "is_complete",
        "keep_alive",
        "response_started",
        "scope",
    )

    def __init__(self, connection: AsgiConnection, scope: Scope, head: RequestHead) -> None:
        self.scope: Final = scope
        self.keep_alive = head.keep_alive
        self.body_complete = False
        self.response_started = False
        self.is_complete = False
        self._connection: Final = connection
        self._expects_continue = head.expects_continue
        self._is_chunked: Final = head.is_chunked
        self._body = bytearray()  # one byte at a time: `bytes` would be copied each time
        self._disconnected = False
        self._end_received = False
        self._is_stream = False
        self._response_head: Message | None = None
        self._wakeup: asyncio.Event | None = None
        scope[CLIENT_IS_GONE] = self.client_is_gone

    async def run(self, app: AsgiApp) -> None:
        """Serve the request. If the application leaves its response incomplete, the connection is closed."""
        try:
            await app(self.scope, self.receive, self.send)
        finally:
            self.scope.pop(CLIENT_IS_GONE, None)  # it refers to this object, which is freed at once without it
            if not self.is_complete and not self._disconnected:
                self._connection.abort()

    # --- from the connection ---

    @property
    def unread_bytes(self) -> int:
        """How much of the body has arrived and was not taken by the application."""
        return len(self._body)

    @property
    def awaits_body(self) -> bool:
        """Whether the application has taken all of the body that has arrived, and waits for more."""
        return self._wakeup is not None and not self._wakeup.is_set()

    def add_body(self, part: bytes) -> None:
        self._body += part
        self._wake()

    def end_body(self) -> None:
        self.body_complete = True
        self._wake()

    def disconnect(self) -> None:
        """The client is gone, or its body will not be complete."""
        self._disconnected = True
        self._wake()

    def client_is_gone(self) -> bool:
        return self._disconnected or self._connection.is_closing()

    # --- ASGI ---

    async def receive(self) -> Message:
        if self._expects_continue and not (self.body_complete or self.response_started or self._has_ended):
            self._connection.write(CONTINUE)
        self._expects_continue = False
        while not (self._body or self._has_ended or (self.body_complete and not self._end_received)):
            self._wakeup = asyncio.Event()
            self._connection.body_taken()
            await self._wakeup.wait()
        if self._has_ended:
            return {"type": "http.disconnect"}
        self._end_received = self.body_complete
        body, self._body = bytes(self._body), bytearray()
        self._connection.body_taken()
        return {"type": "http.request", "body": body, "more_body": not self.body_complete}

    async def send(self, message: Message) -> None:
        await self._connection.drain()
        if self._disconnected:
            return
        if message["type"] == "http.response.start":
            if (self._expects_continue or self._is_chunked) and not self.body_complete:
                self.keep_alive = False  # what follows may be the next request, or takes long to parse
            self.response_started = True
            self._response_head = message
        elif message["type"] == "http.response.body" and self._response_head is not None and not self.is_complete:
            body = message.get("body", b"")
            if message.get("more_body", False):
                self._connection.write(self._part(self._response_head, body, is_last=False))
                return
            if self._is_stream:
                self._connection.write(self._part(self._response_head, body, is_last=True))
            else:
                head = self._head(self._response_head)
                self._connection.write(head if self.scope["method"] == "HEAD" else head + body)
            self.is_complete = True
            self._wake()
            self._connection.response_complete()
        else:
            raise RuntimeError(f"not expected now: {message['type']}")

    @property
    def _has_ended(self) -> bool:
        return self._disconnected or self.is_complete

    def _head(self, head: Message, *more: tuple[bytes, bytes]) -> bytes:
        return head_bytes(head["status"], [*head.get("headers", ()), *more], keep_alive=self.keep_alive)

    def _part(self, head: Message, body: bytes, *, is_last: bool) -> bytes:
        """The next part of a stream, the first one with the head. HTTP/1.0 has no chunks: closing ends the stream."""
        parts = []
        is_chunked = self.scope["http_version"] == HTTP_1_1
        if not self._is_stream:
            self._is_stream = True
            parts.append(self._head(head, (b"transfer-encoding", b"chunked")) if is_chunked else self._head(head))
        if body:
            parts += (b"%x\r\n" % len(body), body, b"\r\n") if is_chunked else (body,)
        if is_chunked and is_last:
            parts.append(b"0\r\n\r\n")
        return b"".join(parts)

    def _wake(self) -> None:
        if self._wakeup is not None:
            self._wakeup.set()


def asgi_scope(head: RequestHead, target: bytes, *, client: str | None, is_tls: bool) -> Scope:
    """The ASGI scope of a request."""
    path, query = split_target(target)
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": head.version,
        "method": head.method,
        "scheme": "https" if is_tls else "http",
        "path": path.decode("ascii"),  # as it was sent: HTTP-6
        "raw_path": path,
        "root_path": "",
        "query_string": query,
        "headers": list(head.fields.items()),
        "client": None if client is None else (client, 0),
        FIELDS_IN_SCOPE: head.fields,
    }
