"""What both clients share between an operation's requests and the bytes of HTTP.

The time limit of a request runs on the client's clock from its first byte to its last, so neither a trickling server
nor a suspended machine can stretch it. Redirects are not followed: the service sends none, and the service key goes
only to the configured address. No error contains a token or the service key, even if a proxy echoed them (SDK-8).
"""

import json
import re
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote

from volcano_locks import __version__
from volcano_locks.config import Config
from volcano_locks.errors import TransportError
from volcano_locks.http.address import OutgoingRequest, Proxy, proxy_refusal
from volcano_locks.http.response_reader import BrokenResponseError, NotConnectedError
from volcano_locks.protocol.effects import Request
from volcano_locks.protocol.messages import NAMING_THE_URL, Response

if TYPE_CHECKING:
    from volcano_locks.asyncio.pool import AsyncConnectionPool
    from volcano_locks.clock import Clock
    from volcano_locks.sync.pool import ConnectionPool

USER_AGENT = f"volcano-locks-python/{__version__}"
REDACTED = b"[hidden]"
KEEP_ALIVE_SECONDS = 30.0
READ_BYTES_MAX = 65_536
RACE_SECONDS = 0.25
"""How long one address of a host name is tried before the next one is tried in parallel."""


class Transport(Protocol):
    """What a test passes as `transport=` in place of the network (SDK-10)."""

    def connections(self, clock: "Clock") -> "ConnectionPool":
        """The connections of a `Client`."""

    def async_connections(self, clock: "Clock") -> "AsyncConnectionPool":
        """The connections of an `AsyncClient`."""


class HttpCodec:
    """Encodes requests, and redacts secrets in responses and failures (SDK-8)."""

    def __init__(self, config: Config, proxy: Proxy | None) -> None:
        self._config = config
        self._through = "" if proxy is None else f" (through the proxy {proxy.name})"
        self._common = [
            (b"Authorization", f"Bearer {config.service_key}".encode()),
            (b"Accept", b"application/json"),
            (b"Accept-Encoding", b"identity"),
            (b"User-Agent", USER_AGENT.encode()),
            (b"X-Volcano-Lock-Holder", config.holder_label().encode()),
        ]

    def encode(self, request: Request) -> OutgoingRequest:
        """The HTTP form of `request`."""
        fields = [*self._common, (b"X-Volcano-Request-Id", request.request_id.encode())]
        if request.streams:
            fields[1] = (b"Accept", b"text/event-stream")
        if request.last_event_id is not None:
            fields.append((b"Last-Event-ID", request.last_event_id.encode()))
        if request.token is not None:
            fields.append((b"X-Volcano-Lock-Token", request.token.encode()))
        if request.reason is not None:
            fields.append((b"X-Volcano-Reason", quote(request.reason, safe="").encode()))
        body = b""
        if request.ttl_seconds is not None:
            fields.append((b"Content-Type", b"application/json"))
            waits = b"" if request.wait_seconds is None else b',"wait_seconds":%.3f' % request.wait_seconds
            body = b'{"ttl_seconds":%d%b}' % (request.ttl_seconds, waits)
        return OutgoingRequest(request.method, request.path, fields, body)

    def redact(self, response: Response, request: Request) -> Response:
        """`response` without the secrets of `request`. A 407 names the proxy that sent it, a 401 and a 404 the URL."""
        if response.status == 407 and self._through:
            return Response(407, {}, json.dumps({"error": proxy_refusal(407) + self._through}).encode())
        body = self._redacted(response.body, request)
        if response.status in NAMING_THE_URL:
            return Response(response.status, response.headers, body, self.url_of(request))
        return response if body is response.body else Response(response.status, response.headers, body)

    def url_of(self, request: Request) -> str:
        """The URL of a request, for messages."""
        return self._config.api_url + request.path

    def failure(self, request: Request, error: Exception) -> TransportError:
        """The error for a request without a response."""
        is_ours = isinstance(error, (NotConnectedError, BrokenResponseError))
        why = (str(error) if is_ours else f"{type(error).__name__}: {error}") + self._through
        reason = self._redacted(why.encode(), request).decode()
        return TransportError(
            f"{request.method} {request.path}: {reason}",
            request_sent=not isinstance(error, NotConnectedError),
            request_id=request.request_id,
        )

    def _redacted(self, body: bytes, request: Request) -> bytes:
        body = body.replace(self._config.service_key.encode(), REDACTED)
        token = b"" if request.token is None else request.token.lower().encode()
        if not token or token not in body.lower():
            return body
        return re.sub(re.escape(token), REDACTED, body, flags=re.IGNORECASE)


def no_time_error(request: Request) -> TransportError:
    """The error for a request that was not sent because its time was up."""
    return TransportError("no time left to send the request", request_sent=False, request_id=request.request_id)


def timeout_error(request: Request, seconds: float) -> TransportError:
    """The error for a response, or the next part of one, that did not arrive in time."""
    reason = f"{request.method} {request.path}: no response within {seconds:.3g} seconds"
    return TransportError(reason, request_id=request.request_id)
