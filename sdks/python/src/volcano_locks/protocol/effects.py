"""What a flow is made of: the requests it yields, the rests between them, and how long it may take.

A flow says what is to be sent, and not how: a driver performs each step and hands back the answer, or throws in the
error there was instead.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from math import inf
from typing import TypeVar

from volcano_locks.protocol.messages import Answer

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request below the API URL.

    `to_the_end`: cancelling the caller must not cut it short. `listens`: its answer is an event stream, which begins
    after the event `last_id`.
    """

    method: str
    path: str
    request_id: str
    timeout_seconds: float
    token: str | None = field(default=None, repr=False)
    ttl_seconds: int | None = None
    to_the_end: bool = False
    wait_seconds: float | None = None
    listens: bool = False
    last_id: str | None = None


@dataclass(frozen=True, slots=True)
class Sleep:
    """Rest before the next attempt. `long`: part of a wait, during which time is moved by others."""

    seconds: float
    long: bool = False


Flow = Generator[Request | Sleep, Answer | None, T]


@dataclass(frozen=True, slots=True)
class Pace:
    """How long a flow may take: the client's clock, the time one request has, the instant it must end by."""

    now: Callable[[], float]
    timeout_seconds: float
    until: float = inf

    def left(self) -> float:
        """Seconds the next request may take; not above 0 when the time is up."""
        return min(self.timeout_seconds, self.until - self.now())


def lease_path(key: str) -> str:
    """The address of a lock's lease; a valid key needs no escaping."""
    return f"/locks/{key}/lease"


def lock_path(key: str) -> str:
    """The address of a lock."""
    return f"/locks/{key}"
