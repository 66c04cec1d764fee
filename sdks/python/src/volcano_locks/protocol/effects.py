"""What an operation yields: requests to send, pauses, reads of an event stream, and items for an iterating caller.

An operation is a generator without I/O. A driver performs each effect and sends the result back into the generator, or
throws the error in.
"""

from collections.abc import Callable, Generator
from math import inf
from typing import NamedTuple, TypeVar

from volcano_locks.protocol.messages import Response

T = TypeVar("T")


class Request(NamedTuple):
    """One HTTP request below the API URL. Its result is the `Response`.

    `shielded`: neither cancelling the caller nor closing the client cancels it. `streams`: the response is an event
    stream, which begins after the event `last_event_id`; the result has no body, and `ReadStream` reads the stream.
    `reason`: why an operator forces the lock free.
    """

    method: str
    path: str
    request_id: str
    timeout_seconds: float
    token: str | None = None
    ttl_seconds: int | None = None
    shielded: bool = False
    wait_seconds: float | None = None
    streams: bool = False
    last_event_id: str | None = None
    reason: str | None = None

    def __repr__(self) -> str:
        return f"Request({self.method} {self.path}, {self.request_id})"

    @property
    def key(self) -> str | None:
        """The key in the path, None if the request is about no single lock."""
        parts = self.path.partition("?")[0].split("/")
        return parts[2] if len(parts) > 2 else None


class Sleep(NamedTuple):
    """Pause before the next attempt. `in_wait`: the pause belongs to a wait, so a test's clock does not skip it."""

    seconds: float
    in_wait: bool = False


class ReadStream(NamedTuple):
    """The next bytes of the event stream that `request` opened last, empty at its end."""

    request: Request
    timeout_seconds: float


class Emit(NamedTuple):
    """An item for the caller, who iterates. The operation continues when the caller asks for the next."""

    item: object


Effect = Request | Sleep | ReadStream | Emit
Result = Response | bytes | None
Operation = Generator[Effect, Result, T]


class TimeBudget(NamedTuple):
    """How long an operation may take: the client's clock, the limit of one request, and the instant of its end."""

    now: Callable[[], float]
    timeout_seconds: float
    until: float = inf

    def remaining(self) -> float:
        """Seconds that the next request may take; 0 or less when the time is up."""
        return min(self.timeout_seconds, self.until - self.now())


def lease_path(key: str) -> str:
    """The path of a lock's lease; a valid key needs no escaping."""
    return f"/locks/{key}/lease"


def lock_path(key: str) -> str:
    """The path of a lock."""
    return f"/locks/{key}"


def numbered_lease_path(key: str, fencing_token: int) -> str:
    """The path of the lease with this fencing token."""
    return f"/locks/{key}/leases/{fencing_token}"
