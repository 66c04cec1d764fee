"""A network that fails as a scenario says, between a client and its server.

Time on the way. A request of the background (a renewal) that hangs or is delayed waits on the clock, which the
scenario moves. A request that somebody blocks for (`blocking`) moves the clock itself, because nobody else would.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import Final, NamedTuple

import httpx2

from volcano_locks.testing.clock import done

from .clock import FaceClock
from .faulty_store import ENDLESS

OPERATIONS: Final = {
    ("POST", True): "acquire",
    ("PATCH", True): "renew",
    ("DELETE", True): "release",
    ("GET", False): "get",
    ("DELETE", False): "force_release",
}
STREAM: Final = "stream"
STREAM_TYPE: Final = "text/event-stream"


def _problem(code: str) -> bytes:
    return b'{"error": "this answer was scripted", "code": "%s"}' % code.encode()


ANSWERS: Final[Mapping[str, tuple[int, bytes]]] = {
    "answer_503": (503, _problem("lock_service_unavailable")),
    "answer_503_empty": (503, b""),
    "answer_403": (403, _problem("missing_permission")),
    "answer_500": (500, _problem("internal")),
    "answer_429": (429, _problem("lock_rate_limited")),
    "answer_page": (502, b"<html>Bad Gateway</html>"),
}
WITH_RETRY_AFTER: Final = frozenset({"answer_429", "answer_503"})


@dataclass
class Outage:
    """Trouble of one kind for the next `left` requests that are among `of`, of `actor` or of everyone."""

    kind: str
    left: int
    of: tuple[str, ...]
    actor: str | None
    delay_ms: int
    retry_after_seconds: int
    answer: Mapping[str, object]

    @classmethod
    def told(cls, args: Mapping[str, object]) -> "Outage":
        """From the arguments of the verb `outage`."""
        of = args.get("of", [*OPERATIONS.values(), STREAM])
        assert isinstance(of, list)
        actor, answer = args.get("actor"), args.get("answer", {})
        assert isinstance(answer, Mapping)
        return cls(
            kind=str(args["kind"]),
            left=int(str(args.get("count", ENDLESS))),
            of=tuple(of),
            actor=None if actor is None else str(actor),
            delay_ms=int(str(args.get("delay_ms", 0))),
            retry_after_seconds=int(str(args.get("retry_after_seconds", 1))),
            answer=answer,
        )


class Sent(NamedTuple):
    """One request as it left the client."""

    operation: str
    token: str | None
    request_id: str | None


class OutageTransport(httpx2.AsyncBaseTransport):
    """`actor`'s way to `inner`, under the `outages` that all actors share.

    `sent` is kept until it is taken; `waiting` is how many requests hang or are delayed on the clock now.
    """

    def __init__(self, actor: str, inner: httpx2.AsyncBaseTransport, clock: FaceClock, outages: list[Outage]) -> None:
        self._actor: Final = actor
        self._inner: Final = inner
        self._clock: Final = clock
        self._outages: Final = outages
        self.blocking = False
        self.waiting = 0
        self.sent: Final[list[Sent]] = []
        self._followed: Final[set[_Followed]] = set()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        operation = OPERATIONS[request.method, request.url.path.endswith("/lease")]
        if request.headers.get("Accept") == STREAM_TYPE:
            operation = STREAM
        token, request_id = (request.headers.get(f"X-Volcano-{name}") for name in ("Lock-Token", "Request-Id"))
        self.sent.append(Sent(operation, token, request_id))
        outage = self._striking(operation)
        kind = "" if outage is None else outage.kind
        if outage is not None and kind in ANSWERS:
            status, body = ANSWERS[kind]
            headers = {"Retry-After": str(outage.retry_after_seconds)} if kind in WITH_RETRY_AFTER else {}
            return httpx2.Response(status, content=body, headers=headers)
        if kind == "drop_before":
            raise httpx2.ConnectError("scripted: no connection", request=request)
        if kind == "reset":
            raise httpx2.ReadError("scripted: connection reset", request=request)
        if kind == "hang_before":
            await self._never(request)
        if kind == "delay_before":
            await self._later(outage)
        response = await self._served(request)
        if kind == "duplicate":
            response = await self._served(request)
        if outage is not None and kind == "altered" and response.content:
            content = json.dumps(json.loads(response.content) | outage.answer).encode()
            response = httpx2.Response(response.status_code, content=content)
        if kind == "drop_after":
            raise httpx2.ReadError("scripted: connection reset", request=request)
        if kind == "hang_after":
            await self._never(request)
        if kind == "delay_after":
            await self._later(outage)
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()

    def cut(self) -> None:
        """Break the connections of all streams."""
        for followed in list(self._followed):
            followed.cut()

    def _striking(self, operation: str) -> Outage | None:
        for outage in self._outages:
            if outage.left > 0 and operation in outage.of and outage.actor in (None, self._actor):
                outage.left -= 1
                return outage
        return None

    async def _served(self, request: httpx2.Request) -> httpx2.Response:
        """A request that waits in a line rests on the clock meanwhile."""
        if request.headers.get("Accept") == STREAM_TYPE:
            return await self._begun(request)
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if b"wait_seconds" not in request.content:
            return await self._answered(request, answered)
        asking = asyncio.ensure_future(self._answered(request, answered))
        try:
            await self._clock.wait(inf, answered)
            return await asking
        finally:
            asking.add_done_callback(lambda _: asking.cancelled() or asking.exception())
            asking.cancel()

    async def _begun(self, request: httpx2.Request) -> httpx2.Response:
        """A stream, which is under way until it has begun."""
        with self._clock.sending():
            response = await self._inner.handle_async_request(request)
            if response.headers.get("Content-Type") != STREAM_TYPE:
                await response.aread()
                return response
        followed = _Followed(response, self._clock, self._followed)
        return httpx2.Response(response.status_code, headers=response.headers, stream=followed)

    async def _answered(self, request: httpx2.Request, answered: "asyncio.Future[None]") -> httpx2.Response:
        with self._clock.sending():
            try:
                response = await self._inner.handle_async_request(request)
                await response.aread()
                return response
            finally:
                answered.set_result(None)

    async def _never(self, request: httpx2.Request) -> None:
        if self.blocking:
            self._clock.jump(request.extensions["timeout"]["read"])
        await self._wait(inf)

    async def _later(self, outage: Outage | None) -> None:
        assert outage is not None
        seconds = outage.delay_ms / 1_000
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


class _Followed(httpx2.AsyncByteStream):
    """A stream that was begun, until its connection is cut. Who reads it rests on the clock."""

    def __init__(self, response: httpx2.Response, clock: FaceClock, all_: "set[_Followed]") -> None:
        self._chunks: Final = response.aiter_bytes()
        self._response: Final = response
        self._clock: Final = clock
        self._all: Final = all_
        self._loop: Final = asyncio.get_running_loop()
        self._broken: Final[asyncio.Future[None]] = self._loop.create_future()
        self._all.add(self)

    def cut(self) -> None:
        """From any thread."""
        self._loop.call_soon_threadsafe(done, self._broken)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            reading = asyncio.ensure_future(anext(self._chunks, b""))
            news: asyncio.Future[None] = self._loop.create_future()
            for end in (reading, self._broken):
                end.add_done_callback(lambda _, news=news: done(news))  # type: ignore[misc]
            try:
                await self._clock.wait(inf, news)
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
