"""Acquire that waits, as a flow (SDK-11): asks again with one token until the lock is granted or the time is up.

The server keeps the line and answers when it is this caller's turn; here is what a client adds. It goes on over
broken connections, restarts and a spent quota. It never hands out a lease of which it does not know how long it is
good: the lease began at the grant, somewhere between the request and its answer, so an answer that took long is
confirmed by a renewal. And it leaves neither a lease nor a place behind when it ends without the lock.

Not promised: a place in line over an absence longer than the server keeps it (WAIT-6).
"""

from dataclasses import dataclass, field
from math import inf

from volcano_locks.errors import LockHeldError, LockOwnershipLostError, TransportError, VolcanoError
from volcano_locks.protocol.backoff import Rests, passes_by
from volcano_locks.protocol.effects import Flow, Pace, Request, Sleep, lease_path
from volcano_locks.protocol.messages import Lease, new_uuid
from volcano_locks.protocol.operations import (
    ATTEMPTS_MAX,
    WAIT_SLICE_SECONDS,
    give_up,
    granted,
    may_have_been_served,
    renew,
)

SOON_FRACTION = 1 / 2
FRESH_FRACTION = 1 / 3


class UnconfirmedError(TransportError):
    """A lease was granted, and it could not be found out in time how long it is good."""


def acquire(wait: "Wait", pace: Pace) -> Flow[Lease]:
    """A lease, or `LockHeldError` or the last failure once the wait is over. The wait begins with the first step."""
    wait.until = pace.now() + wait.seconds
    try:
        while True:
            try:
                return (yield from _ask(wait, pace))
            except VolcanoError as failure:
                rest = wait.rest_after(failure, pace.now())
                if rest is None:
                    raise
                if isinstance(failure, (UnconfirmedError, LockOwnershipLostError)):
                    yield from give_up(wait.key, wait.token, failure)
                    wait.begin_anew()
            if rest:
                yield Sleep(rest, long=True)
    except GeneratorExit:
        raise
    except BaseException as error:
        if wait.uncertain or (wait.in_line and not isinstance(error, VolcanoError)):
            yield from give_up(wait.key, wait.token, error)
        raise


@dataclass(slots=True)
class Wait:
    """What one wait is for, and how it stands.

    `until`: when `seconds` are over. `uncertain`: a request may have been served and nobody knows how. `in_line`: the
    server keeps a place.
    """

    key: str
    token: str = field(repr=False)
    ttl_seconds: int
    request_id: str
    seconds: float
    until: float = inf
    uncertain: bool = False
    in_line: bool = False
    too_soon: bool = False
    rests: Rests = field(default_factory=Rests, repr=False)

    def request(self, pace: Pace) -> Request:
        """The next one to send, now."""
        seconds = min(WAIT_SLICE_SECONDS, max(self.until - pace.now(), 0.0))
        most = seconds + pace.timeout_seconds
        return Request(
            "POST", lease_path(self.key), self.request_id, most, self.token, self.ttl_seconds, wait_seconds=seconds
        )

    def begin_anew(self) -> None:
        """With another token: this one may be retired."""
        self.token, self.uncertain, self.in_line = new_uuid(), False, False

    def rest_after(self, failure: VolcanoError, now: float) -> float | None:
        """How long to rest before asking again; None if `failure` ends the wait."""
        if isinstance(failure, LockHeldError):
            if not self.too_soon:
                self.rests.over()
            rest = self.rests.seconds(failure) if self.too_soon else 0.0
        elif isinstance(failure, LockOwnershipLostError) and self.uncertain:
            rest = 0.0  # what an answer that nobody got had granted is over
        elif passes_by(failure):
            rest = self.rests.seconds(failure)
        else:
            return None
        return None if now + rest >= self.until else rest


def _ask(wait: Wait, pace: Pace) -> Flow[Lease]:
    """The lease that one request brings, confirmed if its answer took long."""
    sent_at = pace.now()
    request = wait.request(pace)
    try:
        lease = granted(request, (yield request), 201, wait.key, sent_at + wait.ttl_seconds)
        took = pace.now() - sent_at
        return lease if took <= wait.ttl_seconds * FRESH_FRACTION else (yield from _confirmed(lease, pace))
    except LockHeldError:
        assert request.wait_seconds is not None
        wait.in_line = True
        wait.too_soon = pace.now() - sent_at < request.wait_seconds * SOON_FRACTION
        raise
    except VolcanoError as error:
        wait.uncertain = wait.uncertain or may_have_been_served(error)
        raise
    except BaseException:
        wait.uncertain = True
        raise


def _confirmed(lease: Lease, pace: Pace) -> Flow[Lease]:
    """The lease, with a deadline counted from a renewal. It is good for at most its TTL from now."""
    within = Pace(pace.now, pace.timeout_seconds, pace.now() + lease.ttl_seconds)
    try:
        return (yield from renew(lease, lease.ttl_seconds, new_uuid(), within, ATTEMPTS_MAX))
    except VolcanoError as error:
        told = f"the lease of {lease.key!r} that was waited for could not be confirmed: {error}"
        unconfirmed = UnconfirmedError(told, request_id=error.request_id)
        unconfirmed.retry_after = error.retry_after
        raise unconfirmed from error
