"""Fault injection between a client and the fake, for threads and asyncio.

Each request takes the next fault of the script; after the last one, `otherwise` applies. `seen` records the requests,
so that a test can distinguish a retry with the same ids from a new request.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf

from volcano_locks.clock import Clock
from volcano_locks.http.response_reader import BrokenResponseError, NotConnectedError
from volcano_locks.protocol.messages import Response
from volcano_locks.testing.clock import ManualClock
from volcano_locks.testing.in_memory import HttpRequest, InMemoryTransport, NewWakeup, Pause, Server, Serving


class Pass:
    """Let the request through."""


class DropBeforeSend:
    """The server is unreachable: the request was certainly not served."""


class Reset:
    """The connection breaks while the request is sent: it was not served, but the client cannot know."""


class DropAfterSend:
    """Served, and the response is lost."""


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


class FaultyTransport(InMemoryTransport):
    """`inner` with faults. `script` and `otherwise` may be changed at any time."""

    def __init__(
        self, inner: Server, clock: Clock, script: Iterable[Fault] = (), otherwise: Fault | None = None
    ) -> None:
        self.inner = inner
        self.clock = clock
        self.script = deque(script)
        self.otherwise: Fault = otherwise or Pass()
        self.seen: list[HttpRequest] = []

    def serve(self, request: HttpRequest, new_wakeup: NewWakeup) -> Serving:
        """Apply the next fault."""
        self.seen.append(request)
        fault = self.script.popleft() if self.script else self.otherwise
        match fault:
            case DropBeforeSend():
                raise NotConnectedError("scripted: cannot connect")
            case Reset():
                raise BrokenResponseError("scripted: connection reset")
            case Answers(status, body, headers):
                return Response(status, {name.lower(): value for name, value in headers.items()}, body)
            case Delay(seconds):
                yield Pause(self.clock.now() + seconds, new_wakeup())
        reply = yield from self.inner.serve(request, new_wakeup)
        match fault:
            case DropAfterSend():
                raise BrokenResponseError("scripted: connection reset")
            case Duplicate():
                reply = yield from self.inner.serve(request, new_wakeup)
            case Hang():
                while True:
                    yield Pause(inf, new_wakeup())
            case Takes(seconds):
                assert isinstance(self.clock, ManualClock)
                self.clock.jump(seconds)
        return reply
