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
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar
from weakref import WeakKeyDictionary

from volcano_locks import __version__
from volcano_locks.clock import Clock
from volcano_locks.config import Config
from volcano_locks.errors import TransportError, VolcanoError
from volcano_locks.flows import Flow, Request, Sleep
from volcano_locks.messages import Answer

if TYPE_CHECKING:
    import httpx2

ANSWER_BYTES_MAX = 65_536
CONNECTIONS_MAX = 100
KEEP_ALIVE_SECONDS = 30.0
USER_AGENT = f"volcano-locks-python/{__version__}"
HIDDEN = b"[hidden]"

T = TypeVar("T")


class Sender(Protocol):
    """Sends one request. Anything but an answer is raised as `TransportError`."""

    async def send(self, request: Request) -> Answer:
        """The answer, whatever its status."""


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
        await clock.pause(step.seconds)
        return None
    answer = _in_time(step, sender, clock)
    return await (to_the_end(answer) if step.to_the_end else answer)


async def _in_time(request: Request, sender: Sender, clock: Clock) -> Answer:
    if request.timeout_seconds <= 0:
        raise TransportError("no time left to ask", request_sent=False, request_id=request.request_id)
    until = clock.now() + request.timeout_seconds
    task = asyncio.ensure_future(sender.send(request))
    try:
        await clock.wait(until, task)
        if task.done():
            return task.result()
    finally:
        if not task.done():
            task.add_done_callback(_forget)
            task.cancel()
    late = f"{request.method} {request.path}: no answer within {request.timeout_seconds:.3g} seconds"
    raise TransportError(late, request_id=request.request_id)


def _forget(task: "asyncio.Task[Any]") -> None:
    if not task.cancelled():
        task.exception()


class _PerProcess(NamedTuple):
    pid: int
    client: "httpx2.AsyncClient"


class HttpSender:
    """Sends over httpx2, through `transport` when one is given, else over its own connection pool."""

    def __init__(self, config: Config, transport: "httpx2.AsyncBaseTransport | None" = None) -> None:
        self._config = config
        self._transport = transport
        self._pid = os.getpid()
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, _PerProcess] = WeakKeyDictionary()

    async def send(self, request: Request) -> Answer:
        import httpx2  # noqa: PLC0415 - loading the HTTP stack waits for the first request

        client = self._client_here()
        try:
            async with client.stream(
                request.method,
                self._config.api_url + request.path,
                headers=self._headers(request),
                json=None if request.ttl_seconds is None else {"ttl_seconds": request.ttl_seconds},
                timeout=request.timeout_seconds,
            ) as response:
                body = await self._body(request, response)
            headers = {name.lower(): value for name, value in response.headers.items()}
            return Answer(response.status_code, headers, self._without_secrets(body, request))
        except VolcanoError:
            raise
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
            raise self._failure(request, error, request_sent=False) from error
        except Exception as error:
            raise self._failure(request, error, request_sent=True) from error

    async def aclose(self) -> None:
        """Close the connections of this loop and process. The next `send` would open new ones."""
        mine = self._clients.pop(asyncio.get_running_loop(), None)
        if mine is not None and mine.pid == os.getpid():
            await mine.client.aclose()

    def _client_here(self) -> "httpx2.AsyncClient":
        pid, loop = os.getpid(), asyncio.get_running_loop()
        if self._transport is not None and self._pid != pid:
            raise VolcanoError("this client was given a transport before a fork: make a new client in the child")
        mine = self._clients.get(loop)
        if mine is None or mine.pid != pid:
            mine = self._clients[loop] = _PerProcess(pid, self._new_client())
        return mine.client

    def _new_client(self) -> "httpx2.AsyncClient":
        import ssl  # noqa: PLC0415 - see send

        import httpx2  # noqa: PLC0415 - see send

        # Reading the certificate store takes tens of milliseconds, which a plain http:// address need not pay.
        plain = self._config.api_url.startswith("http://")
        return httpx2.AsyncClient(
            verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if plain else True,
            transport=self._transport,
            follow_redirects=False,
            limits=httpx2.Limits(
                max_connections=CONNECTIONS_MAX,
                max_keepalive_connections=CONNECTIONS_MAX,
                keepalive_expiry=KEEP_ALIVE_SECONDS,
            ),
        )

    def _headers(self, request: Request) -> dict[str, str]:
        headers = {
            "Authorization": f"Bearer {self._config.service_key}",
            "Accept": "application/json",
            "Accept-Encoding": "identity",
            "User-Agent": USER_AGENT,
            "X-Volcano-Request-Id": request.request_id,
            "X-Volcano-Lock-Holder": self._config.holder_label(),
        }
        if request.token is not None:
            headers["X-Volcano-Lock-Token"] = request.token
        return headers

    async def _body(self, request: Request, response: "httpx2.Response") -> bytes:
        body = bytearray()
        async for chunk in response.aiter_bytes():
            body += chunk
            if len(body) > ANSWER_BYTES_MAX:
                raise TransportError(
                    f"{request.method} {request.path}: answer longer than {ANSWER_BYTES_MAX} bytes",
                    request_id=request.request_id,
                )
        return bytes(body)

    def _without_secrets(self, body: bytes, request: Request) -> bytes:
        body = body.replace(self._config.service_key.encode(), HIDDEN)
        return body if request.token is None else body.replace(request.token.encode(), HIDDEN)

    def _failure(self, request: Request, error: Exception, *, request_sent: bool) -> TransportError:
        told = self._without_secrets(f"{type(error).__name__}: {error}".encode(), request).decode()
        return TransportError(
            f"{request.method} {request.path}: {told} ({self._config.api_url})",
            request_sent=request_sent,
            request_id=request.request_id,
        )
