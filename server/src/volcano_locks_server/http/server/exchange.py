"""Writes responses: one request and its response on a connection, and the response that ends a connection."""

from typing import TYPE_CHECKING

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from ...rules.errors import LockError
from ..codec import REQUEST_ID, new_request_id
from ..problems import JSON_TYPE, STATUS_BY_CODE, error_headers, problem_body

if TYPE_CHECKING:
    from uvicorn._types import ASGISendEvent, HTTPResponseStartEvent


class Exchange(RequestResponseCycle):
    """One request and its response. Head and body go out in one write, a stream in chunks.

    Unlike uvicorn's, it does not search header fields for line breaks: no field holds text that a client chose.
    """

    _head: "HTTPResponseStartEvent | None" = None
    _is_stream = False

    async def send(self, message: "ASGISendEvent") -> None:
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        if message["type"] == "http.response.start":
            if self.waiting_for_100_continue and self.more_body:
                self.keep_alive = False  # the client may now omit its body, so the next bytes are ambiguous
            self.response_started = True
            self.waiting_for_100_continue = False
            self._head = message
        elif message["type"] == "http.response.body" and not self.response_complete and self._head is not None:
            more_body = message.get("more_body", False)
            if more_body or self._is_stream:
                self.transport.write(self._part(self._head, message.get("body", b""), more_body=more_body))
                if more_body:
                    return
            else:
                self.transport.write(self._bytes(self._head, message.get("body", b"")))
            self.response_complete = True
            self.message_event.set()
            if not self.keep_alive and not self.more_body:
                self.transport.close()
            self.on_response()
        else:
            raise RuntimeError(f"not expected now: {message['type']}")

    def _part(self, head: "HTTPResponseStartEvent", body: bytes, *, more_body: bool) -> bytes:
        """The next part of a stream, the first one with the head. HTTP/1.0 has no chunks: closing ends the stream."""
        parts = []
        is_chunked = self.scope["http_version"] != "1.0"
        if not self._is_stream:
            self._is_stream = True
            framing = [(b"transfer-encoding", b"chunked")] if is_chunked else []
            parts.append(self._bytes({**head, "headers": [*head.get("headers", ()), *framing]}, b""))
        if body:
            parts += (b"%x\r\n" % len(body), body, b"\r\n") if is_chunked else (body,)
        if is_chunked and not more_body:
            parts.append(b"0\r\n\r\n")
        return b"".join(parts)

    def _bytes(self, head: "HTTPResponseStartEvent", body: bytes) -> bytes:
        parts = [STATUS_LINE[head["status"]]]
        for name, value in self.default_headers:
            parts += (name, b": ", value, b"\r\n")
        for name, value in head.get("headers", ()):
            parts += (name, b": ", value, b"\r\n")
        parts.append(b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n")
        if self.scope["method"] != "HEAD":
            parts.append(body)
        return b"".join(parts)


def closing_response(error: LockError) -> bytes:
    """A complete response that announces the end of the connection."""
    body = problem_body(error.code, error.message)
    fields = [
        *error_headers(error),
        JSON_TYPE,
        (b"content-length", b"%d" % len(body)),
        (REQUEST_ID, new_request_id()),
        (b"connection", b"close"),
    ]
    lines = b"".join(b"%b: %b\r\n" % field for field in fields)
    return b"%b%b\r\n%b" % (STATUS_LINE[STATUS_BY_CODE[error.code]], lines, body)
