"""HTTP/1.1 on one connection: uvicorn's protocol plus the limits that it lacks (HTTP-21, HTTP-22, HTTP-24).

    head      at most HEADERS_MAX fields and HEAD_BYTES_MAX bytes, with trailers, complete within HEAD_SECONDS_MAX
    body      complete within BODY_SECONDS_MAX; if it is not read, at most DISCARDED_BYTES_MAX are discarded
    response  taken by the client within WRITE_SECONDS_MAX
    idle      KEEP_ALIVE_SECONDS, longer than clients keep a connection, so that clients close it first (case 32)

Each request gets one response (HTTP-26). The parser stops at an offer to upgrade, which this server ignores: a new
parser reads the declared body. Input that is not HTTP or exceeds a limit gets an error as the final response, after
the responses to earlier requests. A connection that takes too long is closed without a response.

This module relies on uvicorn's internals. Therefore the uvicorn version is pinned, and server/tests/http check all of
the above.
"""

import asyncio
from typing import Any, Final

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from ...rules.errors import LockError
from ..codec import FIELDS_IN_SCOPE, SENT_REPEATEDLY
from ..problems import MethodNotAllowedError
from .connection_limits import ConnectionLimits
from .exchange import Exchange, closing_response
from .request_head import FIELDS_KEPT, HTTP_1_1, VERSIONS, RequestHead, split_target

HEADERS_MAX: Final = 100
HEAD_BYTES_MAX: Final = 32_768
HEAD_SECONDS_MAX: Final = 10.0
BODY_SECONDS_MAX: Final = 10.0
WRITE_SECONDS_MAX: Final = 30.0
KEEP_ALIVE_SECONDS: Final = 90
LINGER_SECONDS_MAX: Final = 2.0
DISCARDED_BYTES_MAX: Final = 8 * 1024 * 1024
PIPELINED_MAX: Final = 16  # a disconnect is only seen while reading, so a few requests are read ahead
METHODS: Final = "GET, POST, PATCH, DELETE"  # the methods that some address accepts
NOT_HTTP_MESSAGE: Final = "this server reads HTTP/1.1 and could not parse the request: check the client or proxy"
FULL_MESSAGE: Final = "this server has as many busy connections as it allows: try again in a moment"


class Http1Connection(HttpToolsProtocol):
    """One connection."""

    def __init__(self, config: Config, server_state: ServerState, limits: ConnectionLimits) -> None:
        super().__init__(config=config, server_state=server_state, app_state={})
        self.waiting_since = self.loop.time()
        self._limits: Final = limits
        self._in_head = False
        self._head_bytes = 0
        self._unparsed_bytes = 0  # a lower bound: bytes of a field, chunk head or blank that is not complete yet
        self._head_fields = 0
        self._discarded_bytes = 0
        self._write_paused_at: float | None = None
        self._final_response: bytes | None = None
        self._final_response_written = False
        self._running: RequestResponseCycle | None = None
        self._fields: dict[bytes, bytes] = {}
        self._upgrade_head: RequestHead | None = None
        self._set_leniencies()

    # --- the connection ---

    def connection_made(self, transport: Any) -> None:  # the type of uvicorn's own
        super().connection_made(transport)
        if not self._limits.admits(self):
            full = LockError("lock_service_unavailable", FULL_MESSAGE, retry_after_seconds=1)
            self._final_response = closing_response(full)
            self._write_final_response()

    def data_received(self, data: bytes) -> None:
        if self._final_response is not None:
            self._discard(len(data))
            return
        self._unparsed_bytes += len(data)
        counted = self._head_bytes
        try:
            self._parse(memoryview(data))
        except httptools.HttpParserError as error:
            cause = error.__context__
            self._refuse(cause if isinstance(cause, LockError) else LockError("invalid_request", NOT_HTTP_MESSAGE))
            return
        if self._head_bytes > counted:  # a field was completed
            self._unparsed_bytes = 0
        elif self._head_bytes + self._unparsed_bytes > HEAD_BYTES_MAX:
            self._refuse(_head_too_large())

    def _parse(self, data: memoryview) -> None:
        """Feed the parser. After an offer to upgrade, a new one continues with the body that the head declares."""
        while True:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as stopped:
                assert self._upgrade_head is not None
                data = data[stopped.args[0] :]
                self.parser = httptools.HttpRequestParser(self)
                self._set_leniencies()
                self.parser.feed_data(self._upgrade_head.framing())
            else:
                return

    def _set_leniencies(self) -> None:
        """Let `on_message_begin` decide whether a request is the last. The parser would decide again at the end of each
        body: a trailer field `Connection: close` makes it skip later requests without a response.
        """
        self.parser.set_dangerous_leniencies(lenient_keep_alive=True)

    def connection_lost(self, exc: Exception | None) -> None:
        running = self._running
        if running is not None and not running.response_complete:  # uvicorn notifies only the newest request
            running.disconnected = True
            running.message_event.set()
        super().connection_lost(exc)

    def is_idle(self) -> bool:
        """Whether no request is in flight, so that closing the connection costs no response."""
        return self.cycle is None or self.cycle.response_complete

    def close_if_overdue(self, now: float) -> None:
        """Close the connection if the client has kept it waiting too long by loop time `now`."""
        cycle = self.cycle
        if self._write_paused_at is not None:
            if now - self._write_paused_at > WRITE_SECONDS_MAX:
                self.transport.abort()
            return
        if self._final_response_written:
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
        if self._upgrade_head is not None:
            return
        self._unparsed_bytes = 0
        if self.cycle is not None and not self.cycle.keep_alive:
            raise LockError("invalid_request", "nothing is read after a request that ends its connection")
        self._in_head = True
        self._head_bytes = self._head_fields = self._discarded_bytes = 0
        self._fields = {}
        self.waiting_since = self.loop.time()
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        if self._upgrade_head is not None:
            return
        self._head_bytes += len(url)
        if self._head_bytes > HEAD_BYTES_MAX:
            raise _head_too_large()
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """A field of the head, or a trailer field, which counts too and is otherwise ignored."""
        self._head_bytes = size = self._head_bytes + len(name) + len(value)
        self._head_fields = count = self._head_fields + 1
        if size > HEAD_BYTES_MAX or count > HEADERS_MAX:
            raise _head_too_large()
        name = name.lower()
        if name in FIELDS_KEPT:
            fields = self._fields
            fields[name] = SENT_REPEATEDLY if name in fields else value

    def on_headers_complete(self) -> None:
        """Start the request, or queue it behind the one that runs.

        After an offer to upgrade, it is called twice: at the end of the head, and when the framing is parsed again.
        """
        head = self._upgrade_head
        if head is None:
            parser = self.parser
            keep_alive = parser.should_keep_alive()
            head = RequestHead(parser.get_method(), parser.get_http_version(), keep_alive, self._fields)
            self._fields = {}  # collects what is not in the head: trailers, and the framing that is parsed again
            self._in_head = False
            if head.version not in VERSIONS:
                raise LockError("invalid_request", NOT_HTTP_MESSAGE)
            if head.method == b"CONNECT":
                raise MethodNotAllowedError(METHODS, "CONNECT is not served: this server is no proxy")
            head.check_framing()
            if parser.should_upgrade():
                self._upgrade_head = head
                self._head_bytes = self._head_fields = 0
                return
        self._upgrade_head = None
        path, query = split_target(self.url)
        scope: dict[str, Any] = self.scope  # type: ignore[assignment]  # uvicorn's type has no keys for extensions
        scope["method"] = head.method.decode("ascii")
        scope["http_version"] = head.version
        scope["raw_path"] = path
        scope["path"] = path.decode("ascii")  # as it was sent: HTTP-6
        scope["query_string"] = query
        scope["headers"] = list(head.fields.items())
        scope[FIELDS_IN_SCOPE] = head.fields
        before = self.cycle
        self.cycle = Exchange(
            scope=self.scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=head.expects_100_continue,
            keep_alive=head.keep_alive and head.version >= HTTP_1_1,
            on_response=self.on_response_complete,
        )
        if before is None or before.response_complete:
            self._run(self.cycle)
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
        if self._upgrade_head is not None:
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
        if self._running is not None and not self._running.keep_alive:
            self._final_response = b""  # its body may still come: see `_write_final_response`
            self._write_final_response()
        elif self.pipeline:
            self._run(self.pipeline.pop()[0])
        elif self._final_response is not None:
            self._write_final_response()

    def _run(self, cycle: RequestResponseCycle) -> None:
        self._running = cycle
        self._start_asgi_task(cycle, self.app)

    # --- the final response ---

    def _refuse(self, error: LockError) -> None:
        """End the connection with an error response, after the responses that are due before it.

        If a body breaks off after the response to its request, the connection closes without another response.
        """
        self._final_response = closing_response(error)
        cycle = self.cycle
        if cycle is not None and cycle.response_complete and cycle.more_body:
            self.transport.close()
            return
        if cycle is not None and not cycle.response_complete and cycle.more_body:
            cycle.disconnected = True  # wakes the application, which waits for a body that cannot be completed
            cycle.message_event.set()
            if self.pipeline and self.pipeline[0][0] is cycle:
                self.pipeline.popleft()
            elif cycle.response_started:
                self.transport.close()
            else:
                self._write_final_response()
        elif cycle is None or cycle.response_complete:
            self._write_final_response()

    def _write_final_response(self) -> None:
        """Write it, then read on for LINGER_SECONDS_MAX: closing with bytes unread would discard the response."""
        if self._final_response is None or self._final_response_written or self.transport.is_closing():
            return
        self._final_response_written = True
        self.waiting_since = self.loop.time()
        self.transport.write(self._final_response)
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self.flow.resume_reading()
        else:
            self.transport.close()

    def _discard(self, count: int) -> None:
        self._discarded_bytes += count
        if self._discarded_bytes > DISCARDED_BYTES_MAX:
            self.transport.close()


def _head_too_large() -> LockError:
    limits = f"at most {HEADERS_MAX} header fields and {HEAD_BYTES_MAX} bytes, the address included"
    return LockError("headers_too_large", f"the head of a request may have {limits}; got more")
