"""A network that fails by script: wraps any asynchronous httpx2 transport, `httpx2.ASGITransport` included.

Each request takes the next fault of the script; when the script is used up, `otherwise` applies. What was sent
is kept in `seen`, so that a test can tell a retry with the same ids from a new request.
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
    """Let it through."""


class DropBeforeSend:
    """The server cannot be reached: the request certainly was not served."""


class Reset:
    """The connection breaks as the request goes out: it was not served, but the client cannot know (case 32)."""


class DropAfterSend:
    """Served, and the answer is lost (case 13)."""


class Duplicate:
    """Served twice; the second answer is the one that comes back."""


class Hang:
    """Served, and the answer never comes: the request's own timeout ends it, on the clock."""


@dataclass(frozen=True)
class Delay:
    """Served only after `seconds` which somebody else moves the clock by."""

    seconds: float


@dataclass(frozen=True)
class Takes:
    """Served, and the answer comes `seconds` later: moves the clock itself (for a caller that blocks)."""

    seconds: float


@dataclass(frozen=True)
class Answers:
    """Not served; somebody in between answers this."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


Fault = Pass | DropBeforeSend | Reset | DropAfterSend | Duplicate | Hang | Delay | Takes | Answers


class Seen(NamedTuple):
    """One request as it left the client."""

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


class FlakyTransport(httpx2.AsyncBaseTransport):
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
        """Close the transport beneath."""
        await self.inner.aclose()

    async def _serve(self, request: httpx2.Request) -> httpx2.Response:
        response = await self.inner.handle_async_request(request)
        if response.headers.get("Content-Type") != "text/event-stream":
            await response.aread()
        return response
