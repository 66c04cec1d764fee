"""Flows performed: one driver, and the sender which puts a request on the wire.

The time a request takes is measured on the client's clock from its first byte to its last, so that a server
which trickles, or a machine that was suspended, cannot stretch it. Redirects are not followed: the service
sends none, and the service key goes to the configured address only. Nothing raised here holds a token or the
service key, also when a proxy echoed them (SDK-8).

Connections belong to one event loop in one process. Used in another, a sender opens its own there: a child
process must never write on its parent's sockets.
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
from volcano_locks.http.pool import Connections, NotConnectedError, behind_proxy
from volcano_locks.http.response_reader import BrokenAnswerError, Fields, Received
from volcano_locks.protocol.effects import Flow, Request, Sleep
from volcano_locks.protocol.messages import Answer

if TYPE_CHECKING:
    import httpx2

    from volcano_locks.http.stream_connection import Stream

USER_AGENT = f"volcano-locks-python/{__version__}"
HIDDEN = b"[hidden]"

T = TypeVar("T")


class Sender(Protocol):
    """Sends one request. Anything but an answer is raised as `TransportError`."""

    async def send(self, request: Request) -> Answer:
        """The answer, whatever its status."""

    def listen(self, request: Request) -> "AbstractAsyncContextManager[Stream]":
        """The answer to a request that `listens`, as it comes."""


async def perform(flow: Flow[T], sender: Sender, clock: Clock) -> T:
    """Drive `flow` to its result. Cancelling it lets the flow clean up first (`Request.to_the_end`)."""
    try:
        step = next(flow)
        while True:
            try:
                answer = await _step(step, sender, clock)
            except BaseException as error:  # noqa: BLE001 - the flow decides what each failure means
                step = flow.throw(error)
            else:
                step = flow.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        flow.close()


async def to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """`work`'s result even if the caller is cancelled meanwhile; the cancellation is raised after it."""
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
        task.exception()  # looked at, so that asyncio does not report it as forgotten
    raise cancelled


async def _step(step: Request | Sleep, sender: Sender, clock: Clock) -> Answer | None:
    if isinstance(step, Sleep):
        await (clock.wait(clock.now() + step.seconds) if step.long else clock.pause(step.seconds))
        return None
    answer = _in_time(step, sender, clock)
    return await (to_the_end(answer) if step.to_the_end else answer)


async def _in_time(request: Request, sender: Sender, clock: Clock) -> Answer:
    if request.timeout_seconds <= 0:
        raise no_time(request)
    try:
        return await clock.within(clock.now() + request.timeout_seconds, sender.send(request))
    except TimeoutError:
        raise late(request) from None


class Wire(Protocol):
    """Performs exchanges with the API URL. Raises NotConnectedError, BrokenAnswerError, OSError."""

    async def exchange(self, method: str, path: str, headers: Fields, body: bytes, *, long: bool = False) -> Received:
        """One request, and its whole answer. `long`: it may take long, and must not keep others waiting."""

    def listen(self, path: str, headers: Fields) -> "AbstractAsyncContextManager[Stream]":
        """A GET whose answer goes on; leaving ends its connection."""

    async def aclose(self) -> None:
        """End all connections."""


class _Here(NamedTuple):
    """What one event loop of one process sends with."""

    pid: int
    wire: Wire
    headers: Fields


class Envelope:
    """How one client's requests and answers look on the wire. Nothing that leaves it holds a secret (SDK-8)."""

    def __init__(self, config: Config) -> None:
        self._config = config

    def usual(self) -> Fields:
        """What every request of this process carries."""
        return [
            (b"Authorization", f"Bearer {self._config.service_key}".encode()),
            (b"Accept", b"application/json"),
            (b"Accept-Encoding", b"identity"),
            (b"User-Agent", USER_AGENT.encode()),
            (b"X-Volcano-Lock-Holder", self._config.holder_label().encode()),
        ]

    def outgoing(self, request: Request, usual: Fields) -> tuple[Fields, bytes]:
        """Header fields and body."""
        fields = [*usual, (b"X-Volcano-Request-Id", request.request_id.encode())]
        if request.listens:
            fields = [field for field in fields if field[0] != b"Accept"] + [(b"Accept", b"text/event-stream")]
        if request.last_id is not None:
            fields.append((b"Last-Event-ID", request.last_id.encode()))
        if request.token is not None:
            fields.append((b"X-Volcano-Lock-Token", request.token.encode()))
        if request.ttl_seconds is None:
            return fields, b""
        fields.append((b"Content-Type", b"application/json"))
        if request.wait_seconds is None:
            return fields, b'{"ttl_seconds":%d}' % request.ttl_seconds
        return fields, b'{"ttl_seconds":%d,"wait_seconds":%.3f}' % (request.ttl_seconds, request.wait_seconds)

    def answer(self, request: Request, received: Received) -> Answer:
        """What came."""
        return Answer(received.status, received.headers, self._without_secrets(received.body, request))

    def failure(self, request: Request, error: Exception) -> TransportError:
        """That nothing came."""
        known = isinstance(error, (NotConnectedError, BrokenAnswerError))
        why = str(error) if known else f"{type(error).__name__}: {error}"
        told = self._without_secrets(why.encode(), request).decode()
        return TransportError(
            f"{request.method} {request.path}: {told}",
            request_sent=not isinstance(error, NotConnectedError),
            request_id=request.request_id,
        )

    def _without_secrets(self, body: bytes, request: Request) -> bytes:
        body = body.replace(self._config.service_key.encode(), HIDDEN)
        token = b"" if request.token is None else request.token.lower().encode()
        if not token or token not in body.lower():
            return body
        return re.sub(re.escape(token), HIDDEN, body, flags=re.IGNORECASE)


def no_time(request: Request) -> TransportError:
    """That there was no use in sending."""
    return TransportError("no time left to ask", request_sent=False, request_id=request.request_id)


def late(request: Request) -> TransportError:
    """That nothing came in time."""
    told = f"{request.method} {request.path}: no answer within {request.timeout_seconds:.3g} seconds"
    return TransportError(told, request_id=request.request_id)


class HttpSender:
    """Sends over connections of its own; through httpx2 where a `transport` is given or a proxy is set."""

    def __init__(self, config: Config, transport: "httpx2.AsyncBaseTransport | None" = None) -> None:
        self._config = config
        self._envelope = Envelope(config)
        self._transport = transport
        self._pid = os.getpid()
        self._here: WeakKeyDictionary[asyncio.AbstractEventLoop, _Here] = WeakKeyDictionary()

    @property
    def direct(self) -> bool:
        """Whether connections lead to the address itself."""
        return self._transport is None and not behind_proxy(self._config.api_url)

    async def send(self, request: Request) -> Answer:
        wire, usual = self._wire_and_headers()
        fields, body = self._envelope.outgoing(request, usual)
        try:
            received = await wire.exchange(request.method, request.path, fields, body, long=bool(request.wait_seconds))
            return self._envelope.answer(request, received)
        except Exception as error:
            raise self._envelope.failure(request, error) from error

    @asynccontextmanager
    async def listen(self, request: Request) -> "AsyncIterator[Stream]":
        """See `Sender`."""
        wire, usual = self._wire_and_headers()
        fields, _ = self._envelope.outgoing(request, usual)
        try:
            async with wire.listen(request.path, fields) as stream:
                yield stream
        except (NotConnectedError, BrokenAnswerError, OSError) as error:
            raise self._envelope.failure(request, error) from error

    async def aclose(self) -> None:
        """Close the connections of this loop and process. The next `send` would open new ones."""
        mine = self._here.pop(asyncio.get_running_loop(), None)
        if mine is not None and mine.pid == os.getpid():
            await mine.wire.aclose()

    def _wire_and_headers(self) -> tuple[Wire, Fields]:
        pid, loop = os.getpid(), asyncio.get_running_loop()
        if self._transport is not None and self._pid != pid:
            raise VolcanoError("this client was given a transport before a fork: make a new client in the child")
        mine = self._here.get(loop)
        if mine is None or mine.pid != pid:
            mine = self._here[loop] = _Here(pid, self._new_wire(), self._envelope.usual())
        return mine.wire, mine.headers

    def _new_wire(self) -> Wire:
        if self.direct:
            return Connections(self._config.api_url)
        from volcano_locks.http.httpx2_transport import ThroughHttpx2  # noqa: PLC0415 - loading httpx2 takes long

        return ThroughHttpx2(self._config.api_url, self._transport)
