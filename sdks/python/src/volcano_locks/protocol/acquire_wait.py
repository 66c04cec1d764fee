"""The operation of an acquire that waits (SDK-11): it repeats one request until the lock is granted or the wait ends.

The server keeps the wait queue and responds when the waiter's turn comes. The client adds three things. It continues
over broken connections, restarts and a spent quota. It confirms a grant whose response was slow with a renewal, because
the lease began at an unknown time between request and response. And it leaves neither a lease nor a waiter behind when
it ends without the lock.

Limit: a client that is absent for longer than the server keeps its waiter loses its position (WAIT-6).
"""

from dataclasses import dataclass, field
from math import inf

from volcano_locks.errors import LockHeldError, LockOwnershipLostError, TransportError, VolcanoError
from volcano_locks.log import log
from volcano_locks.protocol.arguments import new_uuid
from volcano_locks.protocol.backoff import Backoff, is_transient
from volcano_locks.protocol.effects import Operation, Request, Sleep, TimeBudget, lease_path
from volcano_locks.protocol.lease import Lease
from volcano_locks.protocol.operations import (
    ATTEMPTS_MAX,
    WAIT_SLICE_SECONDS,
    expect_lease,
    may_have_been_served,
    release_if_acquired,
    renew,
)

EARLY_FRACTION = 1 / 2
FRESH_FRACTION = 1 / 3


class UnconfirmedError(TransportError):
    """A lease was granted, but the client could not confirm in time how long it is valid."""


def acquire(wait: "AcquireWait", budget: TimeBudget) -> Operation[Lease]:
    """Return a lease, or raise `LockHeldError` or the last failure. The wait begins with the first effect."""
    wait.until = budget.now() + wait.seconds
    log.debug("waiting up to %g seconds for lock %s", wait.seconds, wait.key)
    try:
        while True:
            try:
                return (yield from _attempt(wait, budget))
            except VolcanoError as failure:
                delay = wait.retry_delay(failure, budget.now())
                if delay is None:
                    raise
                if isinstance(failure, (UnconfirmedError, LockOwnershipLostError)):
                    yield from release_if_acquired(wait.key, wait.token, failure)
                    wait.restart_with_new_token()
            if delay:
                yield Sleep(delay, in_wait=True)
    except GeneratorExit:
        raise
    except BaseException as error:
        if wait.uncertain or (wait.queued and not isinstance(error, VolcanoError)):
            yield from release_if_acquired(wait.key, wait.token, error)
        raise


@dataclass(slots=True)
class AcquireWait:
    """The parameters and the state of one wait.

    `until`: when `seconds` have passed. `uncertain`: a request may have been served without a response. `queued`: the
    server keeps a waiter.
    """

    key: str
    token: str = field(repr=False)
    ttl_seconds: int
    request_id: str
    seconds: float
    until: float = inf
    uncertain: bool = False
    queued: bool = False
    refused_early: bool = False
    backoff: Backoff = field(default_factory=Backoff, repr=False)

    def request(self, budget: TimeBudget) -> Request:
        """The next request to send."""
        seconds = min(WAIT_SLICE_SECONDS, max(self.until - budget.now(), 0.0))
        limit = seconds + budget.timeout_seconds
        return Request(
            "POST", lease_path(self.key), self.request_id, limit, self.token, self.ttl_seconds, wait_seconds=seconds
        )

    def restart_with_new_token(self) -> None:
        """Continue with another token, because this one may be retired."""
        self.token, self.uncertain, self.queued = new_uuid(), False, False

    def retry_delay(self, failure: VolcanoError, now: float) -> float | None:
        """Seconds to pause before the next request; None if `failure` ends the wait."""
        if isinstance(failure, LockHeldError):
            if not self.refused_early:
                self.backoff.reset()
            delay = self.backoff.next_delay(failure) if self.refused_early else 0.0
        elif isinstance(failure, LockOwnershipLostError) and self.uncertain:
            delay = 0.0  # the grant of a lost response has expired
        elif is_transient(failure):
            delay = self.backoff.next_delay(failure)
        else:
            return None
        return None if now + delay >= self.until else delay


def _attempt(wait: AcquireWait, budget: TimeBudget) -> Operation[Lease]:
    """Send one request and return its lease, confirmed if the response was slow."""
    sent_at = budget.now()
    request = wait.request(budget)
    try:
        lease = expect_lease(request, (yield request), 201, wait.key, sent_at + wait.ttl_seconds)
        elapsed = budget.now() - sent_at
        return lease if elapsed <= wait.ttl_seconds * FRESH_FRACTION else (yield from _confirm(lease, budget))
    except LockHeldError:
        assert request.wait_seconds is not None
        wait.queued = True
        wait.refused_early = budget.now() - sent_at < request.wait_seconds * EARLY_FRACTION
        raise
    except VolcanoError as error:
        wait.uncertain = wait.uncertain or may_have_been_served(error)
        raise
    except BaseException:
        wait.uncertain = True
        raise


def _confirm(lease: Lease, budget: TimeBudget) -> Operation[Lease]:
    """Renew the lease to learn its deadline. It is valid for at most its TTL from now."""
    renewal_budget = TimeBudget(budget.now, budget.timeout_seconds, budget.now() + lease.ttl_seconds)
    try:
        return (yield from renew(lease, lease.ttl_seconds, new_uuid(), renewal_budget, ATTEMPTS_MAX))
    except VolcanoError as error:
        message = f"the lease of {lease.key!r} was granted after a wait but could not be confirmed: {error}"
        unconfirmed = UnconfirmedError(message, request_id=error.request_id)
        unconfirmed.retry_after = error.retry_after
        raise unconfirmed from error
