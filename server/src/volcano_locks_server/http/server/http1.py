"""HTTP/1.1 on one connection (HTTP-21, HTTP-22, HTTP-24, HTTP-26).

The theory. A connection carries one request at a time. Bytes are cut so that the parser never gets more than one
message: a head and a chunked body are fed up to the next blank line, a body of declared length up to its end. Therefore
nothing of the next request is parsed while a response is due. What the client sends ahead is held as bytes, and once
there is too much of it the connection stops reading.

    state      input                            leads to
    IDLE       first byte of a request          HEAD
    HEAD       end of the head                  BODY, or RESPONSE if there is no body; the request starts
               the head of CONNECT, not HTTP    CLOSING, after an error response
               more than HEADERS_MAX fields or HEAD_BYTES_MAX bytes                 CLOSING, after 431
               an address of more than TARGET_BYTES_MAX bytes                       CLOSING, after 414
    BODY       its last byte                    RESPONSE, or IDLE if the response is complete already
               broken chunks                    CLOSING, after 400 if no response has begun, else at once
               chunks that the application has not asked for                        held, past CHUNK_BYTES_AHEAD_MAX
               chunks of more than CHUNK_BYTES_MAX bytes                            CLOSING, after 413
               the response before the end of the chunks                            CLOSING
               the response to a body of more than DISCARDED_BYTES_MAX bytes        CLOSING
    RESPONSE   the response is complete         IDLE, or CLOSING if it was the last one; held bytes are read
               bytes                            held; at HELD_BYTES_MAX reading pauses
    CLOSING    bytes                            discarded unparsed for LINGER_SECONDS_MAX, so that the response is
                                                not lost; reading stops after LINGER_BYTES_MAX, in the middle of a
                                                body after DISCARDED_BYTES_MAX
    any        disconnect                       closed; the request in progress is notified
               the client does not read         nothing more is read or parsed until it does

    A connection that stays too long in one state is closed without a response: HEAD_SECONDS_MAX, BODY_SECONDS_MAX,
    WRITE_SECONDS_MAX for a client that does not read, KEEP_ALIVE_SECONDS for IDLE, which is longer than clients keep a
    connection, so that clients close it first (case 32).

A request goes one of two ways. A plain lease request goes straight to the service once its body is complete
(`lease_requests`). Everything else goes to the ASGI application as soon as its head is complete. The parser stops at an
offer to upgrade, which this server ignores: a new parser reads the declared body.
"""

import asyncio
from enum import Enum
from typing import Final, cast

import httptools

from ...rules.errors import LockError
from ..auth import Principal
from ..codec import BODY_BYTES_MAX, FORWARDED_PROTO, TARGET_BYTES_MAX, X_FORWARDED_FOR, body_too_large
from ..lease_requests import LeaseRequest
from ..problems import MethodNotAllowedError
from ..request_head import FIELDS_KEPT, VERSIONS, RequestHead, repeated
from ..responses import closing_response
from .asgi_request import AsgiRequest, asgi_scope
from .connection_context import ConnectionContext
from .message_parts import MessageParts

HEADERS_MAX: Final = 100
HEAD_BYTES_MAX: Final = 32_768
REQUEST_LINE_BYTES_MAX: Final = TARGET_BYTES_MAX + 32  # with the longest method and line ends before it
HEAD_SECONDS_MAX: Final = 10.0
BODY_SECONDS_MAX: Final = 10.0
WRITE_SECONDS_MAX: Final = 30.0
KEEP_ALIVE_SECONDS: Final = 90
LINGER_SECONDS_MAX: Final = 2.0
HELD_BYTES_MAX: Final = 8_192  # a disconnect is only seen while reading, so some bytes are read ahead
BODY_BYTES_UNREAD_MAX: Final = 32_768  # of a body that the application has not taken
CHUNK_BYTES_AHEAD_MAX: Final = 1_024  # of chunks with their framing, parsed before the application takes them
CHUNK_BYTES_MAX: Final = 32_768  # of a chunked body with its framing: tiny chunks take much time
WRITE_BYTES_MAX: Final = 16_384  # of responses that the client has not read; more pauses writing
DISCARDED_BYTES_MAX: Final = 8 * 1024 * 1024  # of a body
LINGER_BYTES_MAX: Final = 65_536  # after the last response: more than a head and a body of legal size
METHODS: Final = "GET, POST, PATCH, DELETE"  # the methods that some address accepts
NOT_HTTP_MESSAGE: Final = "this server reads HTTP/1.1 and could not parse the request: check the client or proxy"


class State(Enum):
    IDLE = "idle"
    HEAD = "head"
    BODY = "body"
    RESPONSE = "response"
    CLOSING = "closing"


_IDLE, _HEAD, _BODY, _RESPONSE, _CLOSING = State  # a member of an enum takes long to look up
SECONDS_MAX: Final = {  # in one state
    _IDLE: KEEP_ALIVE_SECONDS,
    _HEAD: HEAD_SECONDS_MAX,
    _BODY: BODY_SECONDS_MAX,
    _CLOSING: LINGER_SECONDS_MAX,
}


class LostTransport(asyncio.Transport):
    """The transport of connections that were lost."""

    def is_closing(self) -> bool:
        return True

    def close(self) -> None: ...
    def abort(self) -> None: ...


LOST: Final = LostTransport()


class Http1Connection(asyncio.BufferedProtocol):
    """One connection."""

    transport: asyncio.Transport

    def __init__(self, context: ConnectionContext) -> None:
        self.waiting_since = context.loop.time()
        self.peer_address: str | None = None
        self.credential: tuple[bytes, Principal] | None = None
        self.state = _IDLE
        self._context: Final = context
        self._request: AsgiRequest | LeaseRequest | None = None
        self._is_reading = False
        self._is_reading_paused = False
        self._write_paused_at: float | None = None
        self._writable: asyncio.Event | None = None
        self._held = b""
        # of the message that is being parsed
        self._target = b""
        self._fields: dict[bytes, bytes] = {}
        self._field_count = 0
        self._fed_bytes = 0  # of the head; in a chunked body, since its last chunk header or data
        self._parts: Final = MessageParts()
        self._head: RequestHead | None = None  # of a plain request, until its body is complete
        self._body = b""  # of that request
        self._discarded_bytes = 0  # in CLOSING
        self._discarded_bytes_max = DISCARDED_BYTES_MAX
        self._chunk_bytes = 0  # of a chunked body with its framing
        self._chunk_bytes_ahead = 0  # of these, since the application last took what had arrived
        self._offer_head: RequestHead | None = None  # a head that offers an upgrade

    # --- the connection ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport = cast("asyncio.Transport", transport)  # uvloop's class is no subclass
        self._parser = self._new_parser()
        transport.set_write_buffer_limits(high=WRITE_BYTES_MAX)
        peer = transport.get_extra_info("peername")
        self.peer_address = peer[0] if isinstance(peer, tuple) else None
        self._context.limits.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - every cause is the same
        self._context.limits.remove(self)
        self.state = _CLOSING
        self._held = b""
        if isinstance(self._request, AsgiRequest):
            self._request.disconnect()
        self._request = None
        if self._writable is not None:
            self._writable.set()
        # Both refer to this connection. Without this, all of it, over TLS 70 KB, would wait for the garbage collector.
        del self._parser
        self.transport = LOST

    @property
    def is_known(self) -> bool:
        return self.credential is not None

    def is_idle(self) -> bool:
        """Whether no response is due to a complete request, or the client does not read."""
        return self.state is not _RESPONSE or self._write_paused_at is not None

    def close_if_overdue(self, now: float) -> None:
        """Close the connection if the client has kept it waiting too long by loop time `now`."""
        if self._write_paused_at is not None:
            if now - self._write_paused_at > WRITE_SECONDS_MAX:
                self.transport.abort()
            return
        limit = SECONDS_MAX.get(self.state)
        if limit is None or now - self.waiting_since <= limit:
            return
        if self.transport.is_closing():  # over TLS it would go on reading until the client agrees to close
            self.transport.abort()
        else:
            self.transport.close()

    def shutdown(self) -> None:
        """Close the connection as soon as no response is due."""
        if self._request is None:
            self.transport.close()
        else:
            self._request.keep_alive = False

    # --- reading ---

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - one size for all
        return self._context.read_view

    def buffer_updated(self, count: int) -> None:
        context = self._context
        if self.state is _CLOSING:
            self._discard(count)
        elif self._held or self._is_blocked:  # also while `_continue` is due: bytes are read in the order of arrival
            self._held += context.read_view[:count]
            if len(self._held) > HELD_BYTES_MAX:
                self._pause_reading()
        else:
            self._read(context.read_buffer, context.read_view[:count])

    def eof_received(self) -> None:
        return None  # closes the transport

    @property
    def _is_blocked(self) -> bool:
        """Whether what comes next has to wait: for a response, for the client to read, or for the application."""
        is_ahead = self._chunk_bytes_ahead >= CHUNK_BYTES_AHEAD_MAX
        return self.state is _RESPONSE or self._write_paused_at is not None or is_ahead

    def _read(self, data: bytes | bytearray, view: memoryview) -> None:
        """Feed the parser part by part, until `view`, the beginning of `data`, is used up or has to wait."""
        position, end = 0, len(view)
        self._is_reading = True
        try:
            while position < end and self.state is not _CLOSING:
                if self._is_blocked:
                    self._held = bytes(view[position:])
                    break
                is_body = self.state is _BODY
                is_chunked = is_body and not self._parts.body_bytes_left
                limit = min(end, position + CHUNK_BYTES_AHEAD_MAX) if is_chunked else end
                part_end = self._parts.end(data, position, limit)
                self._feed(view[position:part_end])
                if is_chunked:
                    self._count_chunks(part_end - position)
                position = part_end
            if self._head is not None:
                self._await_body(self._head)
        except LockError as error:
            self._close_with(error)
        finally:
            self._is_reading = False

    def _count_chunks(self, count: int) -> None:
        """Count what was parsed of a chunked body that goes on. Raises LockError `request_too_large`."""
        if self.state is not _BODY:
            return
        self._chunk_bytes += count
        if self._chunk_bytes > CHUNK_BYTES_MAX:
            raise body_too_large(f"more than {CHUNK_BYTES_MAX} with the framing of its chunks")
        if not (isinstance(self._request, AsgiRequest) and self._request.awaits_body):
            self._chunk_bytes_ahead += count

    def _feed(self, part: memoryview) -> None:
        """Raises LockError for what is not HTTP or exceeds a limit.

        The parser reads an address byte by byte, so it gets no more of a head before it has shown the address.
        """
        self._fed_bytes += len(part)
        is_head = self.state is not _BODY
        if is_head and self._fed_bytes > HEAD_BYTES_MAX:
            raise _head_too_large()
        try:
            if is_head and len(part) > REQUEST_LINE_BYTES_MAX:
                self._parser.feed_data(part[:REQUEST_LINE_BYTES_MAX])
                part = part[REQUEST_LINE_BYTES_MAX:]
            self._parser.feed_data(part)
        except httptools.HttpParserUpgrade:
            self._parse_offered_body()
        except httptools.HttpParserError as error:
            cause = error.__context__
            raise (cause if isinstance(cause, LockError) else _not_http()) from None
        if self._fed_bytes > HEAD_BYTES_MAX:
            raise _head_too_large()

    def _new_parser(self) -> httptools.HttpRequestParser:
        """A parser that never decides by itself that a request is the last: a trailer field `Connection: close` would
        make it skip later requests without a response.
        """
        parser = httptools.HttpRequestParser(self)
        parser.set_dangerous_leniencies(lenient_keep_alive=True)
        return parser

    def _parse_offered_body(self) -> None:
        """The parser stopped at an offer to upgrade: a new one reads the body that the head declares."""
        head = self._offer_head
        assert head is not None
        self._parser = self._new_parser()
        self._parser.feed_data(head.framing())

    def _discard(self, count: int) -> None:
        self._discarded_bytes += count
        if self._discarded_bytes > self._discarded_bytes_max:
            self._pause_reading()

    def _pause_reading(self) -> None:
        if not self._is_reading_paused:
            self._is_reading_paused = True
            self.transport.pause_reading()

    def _continue_soon(self) -> None:
        if self._held or self._is_reading_paused:
            self._context.loop.call_soon(self._continue)

    def _continue(self) -> None:
        """Read what was held, now that it need not wait."""
        if self._is_blocked or self.state is _CLOSING or self.transport.is_closing():
            return
        held, self._held = self._held, b""
        if held:
            self._read(held, memoryview(held))
        if self._is_reading_paused and len(self._held) <= HELD_BYTES_MAX and not self.transport.is_closing():
            self._is_reading_paused = False
            self.transport.resume_reading()

    # --- the parser's callbacks ---

    def on_message_begin(self) -> None:
        if self._offer_head is not None:
            return
        self.state = _HEAD
        self.waiting_since = self._context.loop.time()
        self._target = b""
        self._fields = {}
        self._field_count = self._chunk_bytes = 0

    def on_url(self, url: bytes) -> None:
        if self._offer_head is None:
            self._target += url
            if len(self._target) > TARGET_BYTES_MAX:
                raise _target_too_long()
            if b"#" in url:
                raise LockError("invalid_request", "an address has no fragment: leave out # and what follows it")

    def on_header(self, name: bytes, value: bytes) -> None:
        """A field of the head, or a trailer field, which counts too and is otherwise ignored."""
        self._field_count += 1
        if self._field_count > HEADERS_MAX:
            raise _head_too_large()
        name = name.lower()
        if name in FIELDS_KEPT:
            fields = self._fields
            fields[name] = repeated(name, fields[name], value) if name in fields else value

    def on_headers_complete(self) -> None:
        """Start the request. After an offer to upgrade, it is called twice: for the head, and for the framing."""
        head = self._offer_head
        parser = self._parser
        if head is None:
            version, method = parser.get_http_version(), parser.get_method()
            if version not in VERSIONS:
                raise _not_http()
            if method == b"CONNECT":
                raise MethodNotAllowedError(METHODS, "CONNECT is not served: this server is no proxy")
            head = RequestHead(method, version, self._fields, keep_alive=parser.should_keep_alive())
            self._fields = {}  # collects trailer fields, and the framing that is parsed again
            self._field_count = self._fed_bytes = 0
            if parser.should_upgrade():
                self._offer_head = head
                return
        self._offer_head = None
        self._field_count = self._fed_bytes = 0
        self._parts.body_bytes_left = head.body_length
        self.state = _BODY
        if head.is_plain and head.body_length <= BODY_BYTES_MAX:
            self._head = head
        else:
            self._serve_asgi(head)

    def on_chunk_header(self) -> None:
        self._fed_bytes = 0

    def on_body(self, body: bytes) -> None:
        self._fed_bytes = 0
        request = self._request
        if self._head is not None:
            self._body += body
        elif isinstance(request, AsgiRequest):
            request.add_body(body)
            if request.unread_bytes > BODY_BYTES_UNREAD_MAX:
                self._pause_reading()

    def on_message_complete(self) -> None:
        if self._offer_head is not None:
            return  # the parser that stopped at the offer ends the message before its body
        self._fed_bytes = self._chunk_bytes_ahead = 0
        request, head = self._request, self._head
        if head is not None:
            self.state = _RESPONSE
            self._head = None
            body, self._body = self._body, b""
            lease_requests = self._context.lease_requests
            if lease_requests is not None:
                self._request = lease_requests.start(self, head, self._target, body)
            if self._request is None:
                self._serve_asgi(head, body, is_complete=True)
        elif isinstance(request, AsgiRequest):
            self.state = _RESPONSE
            request.end_body()
        else:
            self._become_idle()

    # --- requests and their responses ---

    def _await_body(self, head: RequestHead) -> None:
        """Only a part of the body has arrived. Let the application refuse the request if that need not wait."""
        lease_requests = self._context.lease_requests
        if lease_requests is None or not lease_requests.awaits_body(self, head, self._target):
            self._head = None
            body, self._body = self._body, b""
            self._serve_asgi(head, body)

    def _serve_asgi(self, head: RequestHead, body: bytes = b"", *, is_complete: bool = False) -> None:
        """Serve the request by the application; `body` is what has arrived of its body."""
        is_tls = self.transport.get_extra_info("sslcontext") is not None or self._is_behind_tls(head)
        client = self.client_address(head.fields.get(X_FORWARDED_FOR))
        scope = asgi_scope(head, self._target, client=client, is_tls=is_tls)
        self._request = request = AsgiRequest(self, scope, head)
        if head.body_length > DISCARDED_BYTES_MAX:
            request.keep_alive = False
        request.add_body(body)
        if is_complete:
            request.end_body()
        lease_requests = self._context.lease_requests
        is_known = lease_requests is not None and lease_requests.is_known(self, head)
        self._context.turns.start(request.run(self._context.app), is_known=is_known)

    def _is_behind_tls(self, head: RequestHead) -> bool:
        """Whether a trusted proxy says that its client speaks TLS (UI-2)."""
        peer = self.peer_address
        is_said = head.fields.get(FORWARDED_PROTO) == b"https"
        return is_said and peer is not None and self._context.proxies.trusts(peer)

    def client_address(self, forwarded_for: bytes | None) -> str | None:
        """The address of the client that sent a request with this X-Forwarded-For (HTTP-30)."""
        peer = self.peer_address
        return None if peer is None else self._context.proxies.client_address(peer, forwarded_for)

    def is_closing(self) -> bool:
        return self.transport.is_closing()

    def write(self, data: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(data)

    def abort(self) -> None:
        self.transport.abort()

    async def drain(self) -> None:
        """Return once the client reads, or is gone."""
        while self._write_paused_at is not None and not self.transport.is_closing():
            self._writable = asyncio.Event()
            await self._writable.wait()

    def body_taken(self) -> None:
        """The application took what had arrived of the body."""
        if self.state is _BODY:
            self._chunk_bytes_ahead = 0
            self._continue_soon()

    def response_complete(self) -> None:
        """The response to the request in progress was written."""
        request, self._request = self._request, None
        if self.transport.is_closing() or self.state is _CLOSING:
            return
        if request is not None and not request.keep_alive:
            self._close_with(None)
        elif self.state is _RESPONSE:
            self._become_idle()
        else:
            self.body_taken()  # the rest of the body is read and discarded

    def _become_idle(self) -> None:
        self.state = _IDLE
        self.waiting_since = self._context.loop.time()
        if not self._is_reading:
            self._continue_soon()

    # --- writing ---

    def pause_writing(self) -> None:
        self._write_paused_at = self._context.loop.time()
        self._context.limits.unread(self)

    def resume_writing(self) -> None:
        self._write_paused_at = None
        self._context.limits.read(self)
        if self._writable is not None:
            self._writable.set()
            self._writable = None
        self._continue_soon()

    # --- the end ---

    def _close_with(self, error: LockError | None) -> None:
        """Write the error as the final response, if one may still be written, and close.

        The connection reads on for LINGER_SECONDS_MAX: closing with bytes unread would discard the response.
        """
        request, self._request = self._request, None
        has_responded = self.state is _BODY and request is None and self._head is None
        self._head = None
        if isinstance(request, AsgiRequest):
            request.disconnect()  # it waits for a body that cannot be completed
            has_responded = request.response_started
        if self.state is not _BODY:
            self._discarded_bytes_max = LINGER_BYTES_MAX
        self.state = _CLOSING
        self._held = b""
        self.waiting_since = self._context.loop.time()
        if self.transport.is_closing():
            return
        if error is not None and has_responded:
            self.transport.close()
            return
        if error is not None:
            self.transport.write(closing_response(error))
        if self.transport.can_write_eof():
            self.transport.write_eof()
            if self._is_reading_paused:
                self._is_reading_paused = False
                self.transport.resume_reading()
        else:
            self.transport.close()


def _not_http() -> LockError:
    return LockError("invalid_request", NOT_HTTP_MESSAGE)


def _target_too_long() -> LockError:
    return LockError("uri_too_long", f"the address with its query must be at most {TARGET_BYTES_MAX} bytes; got more")


def _head_too_large() -> LockError:
    limits = f"at most {HEADERS_MAX} header fields and {HEAD_BYTES_MAX} bytes, the address included"
    return LockError("headers_too_large", f"the head of a request may have {limits}; got more")
