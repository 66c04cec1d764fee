"""Performs operations in an event loop, and sends their requests over HTTP.

The time limit of a request runs on the client's clock from its first byte to its last, so neither a trickling server
nor a suspended machine can stretch it. Redirects are not followed: the service sends none, and the service key goes
only to the configured address. No error contains a token or the service key, even if a proxy echoed them (SDK-8).

Connections belong to one event loop in one process. In another one, a transport opens its own: a child process must
never write to its parent's sockets.
"""

import asyncio
import os
import re
from collections.abc import AsyncIterator, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar
from weakref import WeakKeyDictionary

from volcano_locks import __version__
from volcano_locks.clock import Clock
from volcano_locks.config import Config
from volcano_locks.errors import TransportError, VolcanoError
from volcano_locks.http.pool import AsyncioPool, NotConnectedError, behind_proxy
from volcano_locks.http.response_reader import BrokenResponseError, Headers
from volcano_locks.protocol.effects import Effect, Operation, Request, Sleep
from volcano_locks.protocol.messages import Response

if TYPE_CHECKING:
    import httpx2

    from volcano_locks.http.stream_connection import ResponseStream

USER_AGENT = f"volcano-locks-python/{__version__}"
REDACTED = b"[hidden]"

T = TypeVar("T")


class Transport(Protocol):
    """Sends one request. Every failure except an HTTP response is raised as `TransportError`."""

    async def send(self, request: Request) -> Response:
        """Return the response, whatever its status."""

    def open_stream(self, request: Request) -> "AbstractAsyncContextManager[ResponseStream]":
        """Open the response to a request that `streams`, to be read as it arrives."""


async def perform(operation: Operation[T], transport: Transport, clock: Clock) -> T:
    """Run `operation` to its result. If cancelled, let it clean up first (`Request.shielded`)."""
    try:
        effect = next(operation)
        while True:
            try:
                response = await _perform(effect, transport, clock)
            except BaseException as error:  # noqa: BLE001 - the operation handles every failure
                effect = operation.throw(error)
            else:
                effect = operation.send(response)
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        operation.close()


async def run_shielded(work: Coroutine[Any, Any, T]) -> T:
    """Finish `work` even if the caller is cancelled meanwhile; then raise the cancellation or return the result."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None:
        return task.result()
    if not task.cancelled():
        task.exception()  # marks it as retrieved, so that asyncio does not log it
    raise cancelled


async def _perform(effect: Effect, transport: Transport, clock: Clock) -> Response | None:
    if isinstance(effect, Sleep):
        await (clock.wait(clock.now() + effect.seconds) if effect.in_wait else clock.pause(effect.seconds))
        return None
    response = _send_in_time(effect, transport, clock)
    return await (run_shielded(response) if effect.shielded else response)


async def _send_in_time(request: Request, transport: Transport, clock: Clock) -> Response:
    if request.timeout_seconds <= 0:
        raise no_time_error(request)
    try:
        return await clock.within(clock.now() + request.timeout_seconds, transport.send(request))
    except TimeoutError:
        raise timeout_error(request) from None


class ConnectionPool(Protocol):
    """Exchanges requests with the API URL. Raises NotConnectedError, BrokenResponseError, OSError."""

    async def exchange(self, method: str, path: str, headers: Headers, body: bytes, *, long: bool = False) -> Response:
        """Send one request and read its complete response. `long`: count it apart, so that it delays no short one."""

    def open_stream(self, path: str, headers: Headers) -> "AbstractAsyncContextManager[ResponseStream]":
        """Send a GET whose response is a stream; leaving closes its connection."""

    async def aclose(self) -> None:
        """Close all connections."""


class _LoopPool(NamedTuple):
    """The pool and the common headers of one event loop in one process."""

    pid: int
    pool: ConnectionPool
    headers: Headers


class HttpCodec:
    """Encodes requests, and redacts secrets in responses and failures (SDK-8)."""

    def __init__(self, config: Config) -> None:
        self._config = config

    def common_headers(self) -> Headers:
        """The header fields of every request of this process."""
        return [
            (b"Authorization", f"Bearer {self._config.service_key}".encode()),
            (b"Accept", b"application/json"),
            (b"Accept-Encoding", b"identity"),
            (b"User-Agent", USER_AGENT.encode()),
            (b"X-Volcano-Lock-Holder", self._config.holder_label().encode()),
        ]

    def encode(self, request: Request, common_headers: Headers) -> tuple[Headers, bytes]:
        """The header fields and the body of `request`."""
        fields = [*common_headers, (b"X-Volcano-Request-Id", request.request_id.encode())]
        if request.streams:
            fields = [field for field in fields if field[0] != b"Accept"] + [(b"Accept", b"text/event-stream")]
        if request.last_event_id is not None:
            fields.append((b"Last-Event-ID", request.last_event_id.encode()))
        if request.token is not None:
            fields.append((b"X-Volcano-Lock-Token", request.token.encode()))
        if request.ttl_seconds is None:
            return fields, b""
        fields.append((b"Content-Type", b"application/json"))
        if request.wait_seconds is None:
            return fields, b'{"ttl_seconds":%d}' % request.ttl_seconds
        return fields, b'{"ttl_seconds":%d,"wait_seconds":%.3f}' % (request.ttl_seconds, request.wait_seconds)

    def redact(self, response: Response, request: Request) -> Response:
        """`response` without the secrets of `request`."""
        body = self._redacted(response.body, request)
        return response if body is response.body else Response(response.status, response.headers, body)

    def failure(self, request: Request, error: Exception) -> TransportError:
        """The error for a request without a response."""
        is_ours = isinstance(error, (NotConnectedError, BrokenResponseError))
        why = str(error) if is_ours else f"{type(error).__name__}: {error}"
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


def timeout_error(request: Request) -> TransportError:
    """The error for a response that did not arrive in time."""
    reason = f"{request.method} {request.path}: no response within {request.timeout_seconds:.3g} seconds"
    return TransportError(reason, request_id=request.request_id)


class HttpTransport:
    """A `Transport` over its own connections, or through httpx2 if a `transport` is passed or a proxy is set."""

    def __init__(self, config: Config, transport: "httpx2.AsyncBaseTransport | None" = None) -> None:
        self._config = config
        self._codec = HttpCodec(config)
        self._httpx2_transport = transport
        self._pid = os.getpid()
        self._pools: WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopPool] = WeakKeyDictionary()

    @property
    def direct(self) -> bool:
        """Whether connections lead to the API URL itself."""
        return self._httpx2_transport is None and not behind_proxy(self._config.api_url)

    async def send(self, request: Request) -> Response:
        pool, common_headers = self._pool_and_headers()
        fields, body = self._codec.encode(request, common_headers)
        try:
            response = await pool.exchange(request.method, request.path, fields, body, long=bool(request.wait_seconds))
            return self._codec.redact(response, request)
        except Exception as error:
            raise self._codec.failure(request, error) from error

    @asynccontextmanager
    async def open_stream(self, request: Request) -> "AsyncIterator[ResponseStream]":
        pool, common_headers = self._pool_and_headers()
        fields, _ = self._codec.encode(request, common_headers)
        try:
            async with pool.open_stream(request.path, fields) as stream:
                yield stream
        except (NotConnectedError, BrokenResponseError, OSError) as error:
            raise self._codec.failure(request, error) from error

    async def aclose(self) -> None:
        """Close the connections of this loop and process. A later `send` would open new ones."""
        current = self._pools.pop(asyncio.get_running_loop(), None)
        if current is not None and current.pid == os.getpid():
            await current.pool.aclose()

    def _pool_and_headers(self) -> tuple[ConnectionPool, Headers]:
        pid, loop = os.getpid(), asyncio.get_running_loop()
        if self._httpx2_transport is not None and self._pid != pid:
            raise VolcanoError("a client with a transport cannot be used after a fork: create one in the child")
        current = self._pools.get(loop)
        if current is None or current.pid != pid:
            current = self._pools[loop] = _LoopPool(pid, self._new_pool(), self._codec.common_headers())
        return current.pool, current.headers

    def _new_pool(self) -> ConnectionPool:
        if self.direct:
            return AsyncioPool(self._config.api_url)
        from volcano_locks.http.httpx2_pool import Httpx2Pool  # noqa: PLC0415 - slow to load

        return Httpx2Pool(self._config.api_url, self._httpx2_transport)
