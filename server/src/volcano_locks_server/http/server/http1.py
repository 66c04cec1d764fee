"""HTTP/1.1 on one connection: uvicorn's protocol, with the limits it leaves to others (HTTP-21, HTTP-22).

    head     at most HEADERS_MAX fields and HEAD_BYTES_MAX bytes, trailer fields included, whole within HEAD_SECONDS_MAX
    body     whole within BODY_SECONDS_MAX; of one nobody reads, at most DISCARDED_BYTES_MAX pass by
    answer   taken by the client within WRITE_SECONDS_MAX
    between  KEEP_ALIVE_SECONDS, longer than clients keep a connection, so that it is they who close it (case 32)

Each request gets one response (HTTP-26): its declared body is always read as its body. The parser stops at an offer to
upgrade and leaves the rest to another protocol. This server has no other, so it has a new parser read the body.

What is not HTTP, or too much of it, is answered with a problem and then closed, after the answers that are due
before it. What takes too long is closed without a word. This file knows uvicorn from the inside, therefore its
release is pinned and server/tests/http hold it to all of the above.
"""

import asyncio
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from ...rules.errors import LockError
from ...rules.values import shown
from ..codec import CONTENT_LENGTH, HEADERS_READ, SENT_REPEATEDLY, new_request_id
from ..problems import STATUS_BY_CODE, UNAVAILABLE_MESSAGE, MethodNotAllowedError, problem_body, problem_headers
from .connection_limits import Connections

if TYPE_CHECKING:
    from uvicorn._types import ASGISendEvent, HTTPResponseStartEvent

HEADERS_MAX: Final = 100
HEAD_BYTES_MAX: Final = 32_768
HEAD_SECONDS_MAX: Final = 10.0
BODY_SECONDS_MAX: Final = 10.0
WRITE_SECONDS_MAX: Final = 30.0
KEEP_ALIVE_SECONDS: Final = 90
LINGER_SECONDS_MAX: Final = 2.0
DISCARDED_BYTES_MAX: Final = 8 * 1024 * 1024
HTTP_1_1: Final = "1.1"
VERSIONS: Final = ("1.0", HTTP_1_1)  # the parser reads HTTP/0.9 and HTTP/2.0 as if they were one of these
METHODS: Final = "GET, POST, PATCH, DELETE"  # those that at least one address takes
NOT_HTTP_MESSAGE: Final = "this is not HTTP/1.1 as this server reads it"
LENGTH_DIGITS_MAX: Final = 20  # as many as the longest length that the parser can count to
_EXPECT: Final = b"expect"
_TRANSFER_ENCODING: Final = b"transfer-encoding"
_FRAMING: Final = (CONTENT_LENGTH, _TRANSFER_ENCODING)
_KEPT: Final = HEADERS_READ | {_EXPECT, *_FRAMING}
PIPELINED_MAX: Final = 16  # requests that are read behind one that is served; a hang-up shows only while we read


class _Head(NamedTuple):
    """A request's head without its address; of its fields, those that are read."""

    method: bytes
    version: str
    keep_alive: bool
    fields: dict[bytes, bytes]


class BoundedHttpProtocol(HttpToolsProtocol):
    """One connection."""

    def __init__(self, config: Config, server_state: ServerState, connections: Connections) -> None:
        super().__init__(config=config, server_state=server_state, app_state={})
        self.waiting_since = self.loop.time()
        self._all: Final = connections
        self._in_head = False
        self._head_bytes = 0
        self._unparsed_bytes = 0  # of a field, a chunk's head or a blank that is not whole; at least so many
        self._head_fields = 0
        self._discarded_bytes = 0
        self._write_paused_at: float | None = None
        self._last_words: bytes | None = None
        self._said_last_words = False
        self._served: RequestResponseCycle | None = None
        self._kept: dict[bytes, bytes] = {}
        self._offer: _Head | None = None
        self._set_leniencies()

    # --- the connection ---

    def connection_made(self, transport: Any) -> None:  # the type of uvicorn's own
        super().connection_made(transport)
        if not self._all.has_room(self):
            full = LockError("lock_service_unavailable", UNAVAILABLE_MESSAGE, retry_after_seconds=1)
            self._last_words = _answer(full)
            self._say_last_words()

    def data_received(self, data: bytes) -> None:
        if self._last_words is not None:
            self._discard(len(data))
            return
        self._unparsed_bytes += len(data)
        counted = self._head_bytes
        try:
            self._parse(memoryview(data))
        except httptools.HttpParserError as error:
            why = error.__context__
            self._refuse(why if isinstance(why, LockError) else LockError("invalid_request", NOT_HTTP_MESSAGE))
            return
        if self._head_bytes > counted:  # a field ended
            self._unparsed_bytes = 0
        elif self._head_bytes + self._unparsed_bytes > HEAD_BYTES_MAX:
            self._refuse(_too_large())

    def _parse(self, data: memoryview) -> None:
        """Feed the parser. Past an offer to upgrade, a new one reads on from the body that the head declares."""
        while True:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as stopped:
                data = data[stopped.args[0] :]
                self.parser = httptools.HttpRequestParser(self)
                self._set_leniencies()
                self.parser.feed_data(self._framing())
            else:
                return

    def _set_leniencies(self) -> None:
        """Let `on_message_begin` decide whether a request is the last. The parser decides it anew at the end of each
        body: a trailer field `Connection: close` makes it skip later requests without a response.
        """
        self.parser.set_dangerous_leniencies(lenient_keep_alive=True)

    def _framing(self) -> bytes:
        """The head with the offer, reduced to what tells where its body ends."""
        assert self._offer is not None
        fields = [b"%b: %b\r\n" % field for field in self._offer.fields.items() if field[0] in _FRAMING]
        return b"POST / HTTP/1.1\r\n%b\r\n" % b"".join(fields)

    def connection_lost(self, exc: Exception | None) -> None:
        served = self._served
        if served is not None and not served.response_complete:  # uvicorn tells only the newest request
            served.disconnected = True
            served.message_event.set()
        super().connection_lost(exc)

    def makes_room(self) -> bool:
        """Whether no request is in flight: nobody loses an answer if this connection goes."""
        return self.cycle is None or self.cycle.response_complete

    def hang_up_if_overdue(self, now: float) -> None:
        """Close the connection if the client has kept it waiting too long by loop time `now`."""
        cycle = self.cycle
        if self._write_paused_at is not None:
            if now - self._write_paused_at > WRITE_SECONDS_MAX:
                self.transport.abort()
            return
        if self._said_last_words:
            limit: float = LINGER_SECONDS_MAX
        elif self._in_head:
            limit = HEAD_SECONDS_MAX
        elif cycle is not None and cycle.more_body:
            limit = BODY_SECONDS_MAX
        elif cycle is None or cycle.response_complete:
            limit = KEEP_ALIVE_SECONDS
        else:
            return
        if now - self.waiting_since > limit:
            self.transport.close()

    def pause_writing(self) -> None:
        self._write_paused_at = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        self._write_paused_at = None
        super().resume_writing()

    # --- the parser's callbacks ---

    def on_message_begin(self) -> None:
        if self._offer is not None:
            return
        self._unparsed_bytes = 0
        if self.cycle is not None and not self.cycle.keep_alive:
            raise LockError("invalid_request", "nothing is read behind a request that ends its connection")
        self._in_head = True
        self._head_bytes = self._head_fields = self._discarded_bytes = 0
        self._kept = {}
        self.waiting_since = self.loop.time()
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        if self._offer is not None:
            return
        self._head_bytes += len(url)
        if self._head_bytes > HEAD_BYTES_MAX:
            raise _too_large()
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """A field of the head, or a trailer field, which counts too and is otherwise ignored."""
        self._head_bytes = size = self._head_bytes + len(name) + len(value)
        self._head_fields = count = self._head_fields + 1
        if size > HEAD_BYTES_MAX or count > HEADERS_MAX:
            raise _too_large()
        name = name.lower()
        if name in _KEPT:
            kept = self._kept
            kept[name] = SENT_REPEATEDLY if name in kept else value

    def on_headers_complete(self) -> None:
        """As uvicorn does it, without what it does for applications that are not ours, and with `_Cycle`.

        After an offer to upgrade, it is called twice: at the end of the head, and when its framing is parsed again.
        """
        head = self._offer
        if head is None:
            parser = self.parser
            head = _Head(parser.get_method(), parser.get_http_version(), parser.should_keep_alive(), self._kept)
            self._kept = {}  # for what is not a header: trailers, and the framing that is parsed again
            self._in_head = False
            if head.version not in VERSIONS:
                raise LockError("invalid_request", NOT_HTTP_MESSAGE)
            if head.method == b"CONNECT":
                raise MethodNotAllowedError(METHODS, "CONNECT is not served: this server is no proxy")
            _refuse_ambiguous_length(head.fields, head.version)
            if parser.should_upgrade():
                self._offer = head
                self._head_bytes = self._head_fields = 0
                return
        self._offer = None
        path, query = _address(self.url)
        scope = self.scope
        scope["method"] = head.method.decode("ascii")
        scope["http_version"] = head.version
        scope["raw_path"] = path
        scope["path"] = path.decode("ascii")  # as it was sent: HTTP-6
        scope["query_string"] = query
        scope["headers"] = list(head.fields.items())
        before = self.cycle
        self.cycle = _Cycle(
            scope=scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=head.fields.get(_EXPECT, b"").lower() == b"100-continue" and head.version >= HTTP_1_1,
            keep_alive=head.keep_alive and head.version >= HTTP_1_1,
            on_response=self.on_response_complete,
        )
        if before is None or before.response_complete:
            self._serve(self.cycle)
        else:
            self.pipeline.appendleft((self.cycle, self.app))
            if len(self.pipeline) >= PIPELINED_MAX:
                self.flow.pause_reading()

    def on_chunk_header(self) -> None:
        self._unparsed_bytes = 0

    def on_body(self, body: bytes) -> None:
        self._unparsed_bytes = 0
        if self.cycle.response_complete:
            self._discard(len(body))
            return
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._offer is not None:
            return  # the parser that stopped at the offer ends the message before its body
        self._head_bytes = self._unparsed_bytes = 0
        self.cycle.more_body = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.waiting_since = self.loop.time()
        self.flow.resume_reading()
        if self._served is not None and not self._served.keep_alive:  # its body may still come: see `_say_last_words`
            self._last_words = b""
            self._say_last_words()
        elif self.pipeline:
            self._serve(self.pipeline.pop()[0])
        elif self._last_words is not None:
            self._say_last_words()

    def _serve(self, cycle: RequestResponseCycle) -> None:
        self._served = cycle
        self._start_asgi_task(cycle, self.app)

    # --- refusing ---

    def _refuse(self, error: LockError) -> None:
        """Answer what could not be read, after the answers that are due before, and close.

        A request that was answered before its body broke off has had its response: the connection just closes.
        """
        self._last_words = _answer(error)
        cycle = self.cycle
        if cycle is not None and cycle.response_complete and cycle.more_body:
            self.transport.close()
            return
        if cycle is not None and not cycle.response_complete and cycle.more_body:
            cycle.disconnected = True  # its body will never be whole: who waits for it is told so
            cycle.message_event.set()
            if self.pipeline and self.pipeline[0][0] is cycle:
                self.pipeline.popleft()
            elif cycle.response_started:
                self.transport.close()
            else:
                self._say_last_words()
        elif cycle is None or cycle.response_complete:
            self._say_last_words()

    def _say_last_words(self) -> None:
        """Answer, and read on for LINGER_SECONDS_MAX: closing on unread bytes would take the answer from the client."""
        if self._last_words is None or self._said_last_words or self.transport.is_closing():
            return
        self._said_last_words = True
        self.waiting_since = self.loop.time()
        self.transport.write(self._last_words)
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self.flow.resume_reading()
        else:
            self.transport.close()

    def _discard(self, count: int) -> None:
        self._discarded_bytes += count
        if self._discarded_bytes > DISCARDED_BYTES_MAX:
            self.transport.close()


class _Cycle(RequestResponseCycle):
    """One request and its answer, mostly given whole: head and body in one write. A stream comes in chunks.

    Unlike uvicorn's, it does not look for line breaks in headers: none of ours holds anything a caller chose.
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
                self.keep_alive = False  # the client may leave its body out: what follows cannot be told from it
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
        """A chunk of a stream, the first one with the head. HTTP/1.0 knows no chunks: there the stream's end is that of
        the connection.
        """
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


def _address(target: bytes) -> tuple[bytes, bytes]:
    """Path and query of a request's target, whose characters the parser has judged; neither is decoded."""
    target = target.partition(b"#")[0]
    path, _, query = target.partition(b"?")
    if not path.startswith(b"/"):
        _, has_scheme, rest = path.partition(b"://")  # the absolute form
        path = b"/" + rest.partition(b"/")[2] if has_scheme else path
    return path, query


def _refuse_ambiguous_length(fields: dict[bytes, bytes], version: str) -> None:
    """LockError `invalid_request` for a body whose length the parser accepts and others may read in another way."""
    if len(fields.get(CONTENT_LENGTH, b"")) > LENGTH_DIGITS_MAX:
        raise LockError("invalid_request", f"Content-Length must be at most {LENGTH_DIGITS_MAX} digits; got more")
    coding = fields.get(_TRANSFER_ENCODING)
    if coding is None:
        return
    if coding.lower() != b"chunked":
        sent = shown(coding.decode("latin-1"))
        raise LockError("invalid_request", f"Transfer-Encoding must be chunked or be left out; got {sent}")
    if version < HTTP_1_1:
        raise LockError("invalid_request", f"Transfer-Encoding needs HTTP/{HTTP_1_1}; got HTTP/{version}")


def _too_large() -> LockError:
    limits = f"at most {HEADERS_MAX} header fields and {HEAD_BYTES_MAX} bytes of them, the address included"
    return LockError("headers_too_large", f"a request may have {limits}; got more")


def _answer(error: LockError) -> bytes:
    """A whole answer that ends the connection."""
    body = problem_body(error.code, error.message)
    headers = [
        *problem_headers(error.code, error.retry_after_seconds),
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"x-volcano-request-id", new_request_id()),
        (b"connection", b"close"),
    ]
    if isinstance(error, MethodNotAllowedError):
        headers.append((b"allow", error.allowed.encode()))
    lines = b"".join(b"%b: %b\r\n" % header for header in headers)
    return b"%b%b\r\n%b" % (STATUS_LINE[STATUS_BY_CODE[error.code]], lines, body)
