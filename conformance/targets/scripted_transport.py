"""A transport that fails as a scenario's outages say, between a client and its server.

A background request (a renewal) that hangs or is delayed waits on the clock, which the scenario moves. A request that
the scenario's own step waits for (`blocking`) moves the clock itself.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import Final, NamedTuple

import httpx2

from volcano_locks.testing.clock import resolve

from .client_clock import ClientClock
from .store_failures import UNLIMITED

OPERATIONS: Final = {
    ("POST", True): "acquire",
    ("PATCH", True): "renew",
    ("DELETE", True): "release",
    ("GET", False): "get",
    ("DELETE", False): "force_release",
}
STREAM: Final = "stream"
REAL_SECONDS_MAX: Final = 60.0
STREAM_TYPE: Final = "text/event-stream"


def _problem(code: str) -> bytes:
    return b'{"error": "a scripted response", "code": "%s"}' % code.encode()


RESPONSES: Final[Mapping[str, tuple[int, bytes]]] = {
    "answer_503": (503, _problem("lock_service_unavailable")),
    "answer_503_empty": (503, b""),
    "answer_403": (403, _problem("missing_permission")),
    "answer_500": (500, _problem("internal")),
    "answer_429": (429, _problem("lock_rate_limited")),
    "answer_page": (502, b"<html>Bad Gateway</html>"),
}
WITH_RETRY_AFTER: Final = frozenset({"answer_429", "answer_503"})


@dataclass
class ScriptedFault:
    """An outage of one kind for the next `left` requests among the verbs `of`, of `actor` or (None) of all actors."""

    kind: str
    left: int
    of: tuple[str, ...]
    actor: str | None
    delay_ms: int
    retry_after_seconds: int
    answer: Mapping[str, object]

    @classmethod
    def from_args(cls, args: Mapping[str, object]) -> "ScriptedFault":
        """From the arguments of the verb `outage`."""
        of = args.get("of", [*OPERATIONS.values(), STREAM])
        assert isinstance(of, list)
        actor, answer = args.get("actor"), args.get("answer", {})
        assert isinstance(answer, Mapping)
        return cls(
            kind=str(args["kind"]),
            left=int(str(args.get("count", UNLIMITED))),
            of=tuple(of),
            actor=None if actor is None else str(actor),
            delay_ms=int(str(args.get("delay_ms", 0))),
            retry_after_seconds=int(str(args.get("retry_after_seconds", 1))),
            answer=answer,
        )


class Sent(NamedTuple):
    """One request that the client sent."""

    operation: str
    token: str | None
    request_id: str | None


class ScriptedTransport(httpx2.AsyncBaseTransport):
    """`actor`'s transport to `inner`, subject to the `faults` that all actors share.

    `sent` grows until it is cleared. `waiting` is the number of requests that hang or are delayed on the clock now.
    """

    def __init__(
        self, actor: str, inner: httpx2.AsyncBaseTransport, clock: ClientClock, faults: list[ScriptedFault]
    ) -> None:
        self._actor: Final = actor
        self._inner: Final = inner
        self._clock: Final = clock
        self._faults: Final = faults
        self.blocking = False
        self.waiting = 0
        self.sent: Final[list[Sent]] = []
        self._streams: Final[set[_StreamBody]] = set()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        operation = OPERATIONS[request.method, request.url.path.endswith("/lease")]
        if request.headers.get("Accept") == STREAM_TYPE:
            operation = STREAM
        token, request_id = (request.headers.get(f"X-Volcano-{name}") for name in ("Lock-Token", "Request-Id"))
        self.sent.append(Sent(operation, token, request_id))
        fault = self._next_fault(operation)
        kind = "" if fault is None else fault.kind
        if fault is not None and kind in RESPONSES:
            status, body = RESPONSES[kind]
            headers = {"Retry-After": str(fault.retry_after_seconds)} if kind in WITH_RETRY_AFTER else {}
            return httpx2.Response(status, content=body, headers=headers)
        if kind == "drop_before":
            raise httpx2.ConnectError("scripted: no connection", request=request)
        if kind == "reset":
            raise httpx2.ReadError("scripted: connection reset", request=request)
        if kind == "hang_before":
            await self._hang(request)
        if kind == "delay_before":
            await self._delay(fault)
        response = await self._send(request)
        if kind == "duplicate":
            response = await self._send(request)
        if fault is not None and kind == "altered" and response.content:
            content = json.dumps(json.loads(response.content) | fault.answer).encode()
            response = httpx2.Response(response.status_code, content=content)
        if kind == "drop_after":
            raise httpx2.ReadError("scripted: connection reset", request=request)
        if kind == "hang_after":
            await self._hang(request)
        if kind == "delay_after":
            await self._delay(fault)
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()

    def cut(self) -> None:
        """Break the connections of all streams."""
        for stream in list(self._streams):
            stream.cut()

    def _next_fault(self, operation: str) -> ScriptedFault | None:
        for fault in self._faults:
            if fault.left > 0 and operation in fault.of and fault.actor in (None, self._actor):
                fault.left -= 1
                return fault
        return None

    async def _send(self, request: httpx2.Request) -> httpx2.Response:
        """Send the request. One with `wait_seconds` waits on the clock until its response arrives."""
        if request.headers.get("Accept") == STREAM_TYPE:
            return await self._open_stream(request)
        responded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if b"wait_seconds" not in request.content:
            return await self._exchange(request, responded)
        request_task = asyncio.ensure_future(self._exchange(request, responded))
        try:
            await self._clock.wait(inf, responded)
            return await request_task
        finally:
            request_task.add_done_callback(lambda _: request_task.cancelled() or request_task.exception())
            request_task.cancel()

    async def _open_stream(self, request: httpx2.Request) -> httpx2.Response:
        """Open a stream. It counts as in flight until it has begun."""
        with self._clock.sending():
            response = await self._inner.handle_async_request(request)
            if response.headers.get("Content-Type") != STREAM_TYPE:
                await response.aread()
                return response
        body = _StreamBody(response, self._clock, self._streams)
        return httpx2.Response(response.status_code, headers=response.headers, stream=body)

    async def _exchange(self, request: httpx2.Request, responded: "asyncio.Future[None]") -> httpx2.Response:
        with self._clock.sending():
            try:
                response = await self._inner.handle_async_request(_with_real_timeout(request))
                await response.aread()
                return response
            finally:
                responded.set_result(None)

    async def _hang(self, request: httpx2.Request) -> None:
        if self.blocking:
            self._clock.jump(request.extensions["timeout"]["read"])
        await self._wait(inf)

    async def _delay(self, fault: ScriptedFault | None) -> None:
        assert fault is not None
        seconds = fault.delay_ms / 1_000
        if self.blocking:
            self._clock.jump(seconds)
            await asyncio.sleep(0)
        else:
            await self._wait(self._clock.now() + seconds)

    async def _wait(self, until: float) -> None:
        self.waiting += 1
        try:
            await self._clock.wait(until)
        finally:
            self.waiting -= 1


def _with_real_timeout(request: httpx2.Request) -> httpx2.Request:
    """The client's timeout is in seconds of the scenario's clock, which stands still while a busy server responds."""
    timeout = dict.fromkeys(("connect", "read", "write", "pool"), REAL_SECONDS_MAX)
    return httpx2.Request(
        request.method,
        request.url,
        headers=request.headers,
        content=request.content,
        extensions={**request.extensions, "timeout": timeout},
    )


class _StreamBody(httpx2.AsyncByteStream):
    """The body of an open stream, until its connection is cut. Its reader waits on the clock."""

    def __init__(self, response: httpx2.Response, clock: ClientClock, all_: "set[_StreamBody]") -> None:
        self._chunks: Final = response.aiter_bytes()
        self._response: Final = response
        self._clock: Final = clock
        self._all: Final = all_
        self._loop: Final = asyncio.get_running_loop()
        self._broken: Final[asyncio.Future[None]] = self._loop.create_future()
        self._all.add(self)

    def cut(self) -> None:
        """From any thread."""
        self._loop.call_soon_threadsafe(resolve, self._broken)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            reading = asyncio.ensure_future(anext(self._chunks, b""))
            ready: asyncio.Future[None] = self._loop.create_future()
            for end in (reading, self._broken):
                end.add_done_callback(lambda _, ready=ready: resolve(ready))  # type: ignore[misc]
            try:
                await self._clock.wait(inf, ready)
                if self._broken.done():
                    raise httpx2.ReadError("scripted: connection reset")
                chunk = await reading
            finally:
                reading.cancel()
            if not chunk:
                return
            yield chunk

    async def aclose(self) -> None:
        self._all.discard(self)
        await self._response.aclose()
