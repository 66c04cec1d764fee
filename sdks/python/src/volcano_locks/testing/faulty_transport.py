"""Fault injection: wraps any asynchronous httpx2 transport, `httpx2.ASGITransport` included.

Each request takes the next fault of the script; after the last one, `otherwise` applies. `seen` records the requests,
so that a test can distinguish a retry with the same ids from a new request.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

import httpx2

from volcano_locks.clock import Clock
from volcano_locks.testing.clock import ManualClock


class Pass:
    """Let the request through."""


class DropBeforeSend:
    """The server is unreachable: the request was certainly not served."""


class Reset:
    """The connection breaks while the request is sent: it was not served, but the client cannot know (case 32)."""


class DropAfterSend:
    """Served, and the response is lost (case 13)."""


class Duplicate:
    """Served twice; the second response is returned."""


class Hang:
    """Served, and the response never arrives: the request's own timeout ends it, on the clock."""


@dataclass(frozen=True)
class Delay:
    """Served after `seconds`; the test must move the clock by that much."""

    seconds: float


@dataclass(frozen=True)
class Takes:
    """Served, and the response arrives `seconds` later: moves the clock itself (for a caller that blocks)."""

    seconds: float


@dataclass(frozen=True)
class Answers:
    """Not served; an intermediary responds with this."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


Fault = Pass | DropBeforeSend | Reset | DropAfterSend | Duplicate | Hang | Delay | Takes | Answers


class Seen(NamedTuple):
    """One request as the client sent it."""

    method: str
    path: str
    headers: httpx2.Headers

    @property
    def token(self) -> str | None:
        """Its owner token."""
        return self.headers.get("X-Volcano-Lock-Token")

    @property
    def request_id(self) -> str | None:
        """Its request id."""
        return self.headers.get("X-Volcano-Request-Id")


class FaultyTransport(httpx2.AsyncBaseTransport):
    """`inner` with faults. `script` and `otherwise` may be changed at any time."""

    def __init__(
        self,
        inner: httpx2.AsyncBaseTransport,
        clock: Clock,
        script: Iterable[Fault] = (),
        otherwise: Fault | None = None,
    ) -> None:
        self.inner = inner
        self.clock = clock
        self.script = deque(script)
        self.otherwise: Fault = otherwise or Pass()
        self.seen: list[Seen] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Apply the next fault."""
        self.seen.append(Seen(request.method, request.url.path, request.headers))
        fault = self.script.popleft() if self.script else self.otherwise
        match fault:
            case DropBeforeSend():
                raise httpx2.ConnectError("scripted: cannot connect", request=request)
            case Reset():
                raise httpx2.ReadError("scripted: connection reset", request=request)
            case Answers(status, body, headers):
                return httpx2.Response(status, content=body, headers=headers)
            case Delay(seconds):
                await self.clock.wait(self.clock.now() + seconds)
        response = await self._serve(request)
        match fault:
            case DropAfterSend():
                raise httpx2.ReadError("scripted: connection reset", request=request)
            case Duplicate():
                response = await self._serve(request)
            case Hang():
                await self.clock.wait(inf)
            case Takes(seconds):
                assert isinstance(self.clock, ManualClock)
                self.clock.jump(seconds)
                await asyncio.sleep(0)
        return response

    async def aclose(self) -> None:
        """Close the inner transport."""
        await self.inner.aclose()

    async def _serve(self, request: httpx2.Request) -> httpx2.Response:
        response = await self.inner.handle_async_request(request)
        if response.headers.get("Content-Type") != "text/event-stream":
            await response.aread()
        return response
