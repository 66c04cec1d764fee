"""The operations of a client without I/O: generators that yield requests and pauses and return the result.

A driver (of a client, or a test with a list of responses) sends each `Request` and returns its `Response`, or throws
the error in. So retries, error mapping and the clean-up after an uncertain acquire exist once for both clients.

SDK-1: the token and the request id are made before the first send and kept through every retry.
SDK-2: an acquire is sent at most twice; a 4xx is final. If an attempt may have been served and the caller gets no
lease, a release with its token follows, even on cancellation.
SDK-18: if the caller keeps the token to recover the acquire, a time-out, a transport failure and a 503 send no release.

Limit: this release may not arrive. The lock may then stay held for one TTL; acquiring again with the same `token`
returns the same lease.
"""

from collections.abc import Callable
from typing import TypeVar

from volcano_locks.errors import LockOwnershipLostError, ServerError, TransportError, UnavailableError, VolcanoError
from volcano_locks.log import log
from volcano_locks.protocol.arguments import new_uuid
from volcano_locks.protocol.effects import (
    Operation,
    Request,
    Result,
    Sleep,
    TimeBudget,
    lease_path,
    lock_path,
    numbered_lease_path,
)
from volcano_locks.protocol.lease import Lease, LockState
from volcano_locks.protocol.messages import Response, error_from_response, parse_lease, parse_state

ATTEMPTS_MAX = 2
WAIT_SLICE_SECONDS = 50.0
BEST_EFFORT_RELEASE_SECONDS_MAX = 2.0
RETRY_PAUSE_SECONDS = 0.5
RETRY_PAUSE_SECONDS_MAX = 2.0

T = TypeVar("T")


def acquire(
    key: str, token: str, ttl_seconds: int, request_id: str, budget: TimeBudget, *, recoverable: bool = False
) -> Operation[Lease]:
    """Return a lease whose deadline is `ttl_seconds` after its request was sent; reject a response after that.

    `recoverable`: the caller can repeat this acquire with the same ids, so an unknown outcome sends no release.
    """
    uncertain = False
    seconds = min(budget.timeout_seconds, ttl_seconds)
    request = Request("POST", lease_path(key), request_id, seconds, token, ttl_seconds)
    attempt = 0
    try:
        while True:
            attempt += 1
            deadline = budget.now() + ttl_seconds
            try:
                return _not_expired(expect_lease(request, (yield request), 201, key, deadline), request, budget)
            except VolcanoError as error:
                uncertain = uncertain or may_have_been_served(error)
                if attempt == ATTEMPTS_MAX or not is_retryable(error):
                    raise
                delay = retry_delay(error)
            except BaseException:
                uncertain = True
                raise
            if delay:
                yield Sleep(delay)
    except GeneratorExit:
        raise
    except BaseException as error:
        if uncertain and recoverable and isinstance(error, VolcanoError) and is_retryable(error):
            error.add_note(
                f"It is unknown whether {key!r} was acquired: acquire it again with the same token and request_id"
            )
        elif uncertain:
            yield from release_if_acquired(key, token, error)
        raise


def renew(lease: Lease, ttl_seconds: int, request_id: str, budget: TimeBudget, attempts: int) -> Operation[Lease]:
    """Extend the lease. It keeps its fencing token and its owner token."""

    def attempt_once() -> "Operation[Lease]":
        deadline = budget.now() + ttl_seconds
        request = Request("PATCH", lease_path(lease.key), request_id, budget.remaining(), lease.token, ttl_seconds)
        return _not_expired(expect_lease(request, (yield request), 200, lease.key, deadline), request, budget)

    return (yield from with_retries(attempt_once, budget, attempts))


def release(key: str, token: str, request_id: str, budget: TimeBudget, attempts: int) -> Operation[None]:
    """Release the lock, and return when the server confirms that this token does not hold it.

    After an attempt that may have been served, `LockOwnershipLostError` means success: the lock has a new holder (case
    19).
    """
    uncertain = False

    def attempt_once() -> "Operation[None]":
        nonlocal uncertain
        request = Request("DELETE", lease_path(key), request_id, budget.remaining(), token)
        try:
            expect_status(request, (yield request), 204)
        except LockOwnershipLostError:
            if not uncertain:
                raise
        except VolcanoError as error:
            uncertain = uncertain or may_have_been_served(error)
            raise

    yield from with_retries(attempt_once, budget, attempts)
    log.debug("released lock %s", key)


def get(key: str, request_id: str, budget: TimeBudget) -> Operation[LockState]:
    """Read whether an acquire would be refused, until when, and the fencing token."""

    def attempt_once() -> "Operation[LockState]":
        request = Request("GET", lock_path(key), request_id, budget.remaining())
        response = expect_status(request, (yield request), 200)
        return parse_state(response, request_id=request_id)

    return (yield from with_retries(attempt_once, budget, ATTEMPTS_MAX))


def force_release(
    key: str, fencing_token: int | None, reason: str | None, request_id: str, budget: TimeBudget
) -> Operation[None]:
    """Free the lock; with a fencing token only from that lease (SDK-27).

    Without one, retry only if the request was never sent: a second one could evict the next holder.
    """
    path = lock_path(key) if fencing_token is None else numbered_lease_path(key, fencing_token)

    def attempt_once() -> "Operation[None]":
        request = Request("DELETE", path, request_id, budget.remaining(), reason=reason)
        expect_status(request, (yield request), 204)

    yield from with_retries(attempt_once, budget, ATTEMPTS_MAX, only_if_unsent=fencing_token is None)


def with_retries(
    attempt_once: Callable[[], Operation[T]], budget: TimeBudget, attempts: int, *, only_if_unsent: bool = False
) -> Operation[T]:
    """Run `attempt_once`, and again while the error is retryable and attempts and time are left."""
    attempt = 0
    while True:
        attempt += 1
        try:
            return (yield from attempt_once())
        except VolcanoError as error:
            delay = retry_delay(error)
            retry = is_retryable(error) and not (only_if_unsent and may_have_been_served(error))
            if attempt == attempts or not retry or budget.now() + delay >= budget.until:
                raise
        if delay:
            yield Sleep(delay)


def expect_lease(request: Request, response: Result, status: int, key: str, deadline: float) -> Lease:
    """Parse the lease that the response grants; raise its error if it has another `status`."""
    assert request.token is not None
    assert request.ttl_seconds is not None
    lease = parse_lease(
        expect_status(request, response, status),
        key=key,
        token=request.token,
        ttl_seconds=request.ttl_seconds,
        deadline=deadline,
        request_id=request.request_id,
    )
    log.debug("%s lock %s until %s", "acquired" if status == 201 else "renewed", key, lease.expires_at)
    return lease


def _not_expired(lease: Lease, request: Request, budget: TimeBudget) -> Lease:
    assert lease.deadline is not None
    if budget.now() >= lease.deadline:
        message = f"the lease of {lease.key!r} expired before the response that granted it arrived"
        raise LateResponseError(message, request_id=request.request_id)
    return lease


def expect_status(request: Request, response: Result, status: int) -> Response:
    """Return the response if it has this `status`; raise its error otherwise."""
    assert isinstance(response, Response)
    if response.status == status:
        return response
    raise _error(request, response)  # a local name for it would be a cycle: error, traceback, frame, error


def _error(request: Request, response: Response) -> VolcanoError:
    error = error_from_response(response, request_id=request.request_id, key=request.key)
    error.add_note(f"request {request.request_id}: {request.method} {request.path}")
    return error


class LateResponseError(TransportError):
    """A grant arrived after its lease had expired."""


def release_if_acquired(key: str, token: str, error: BaseException) -> Operation[None]:
    """Release what may have been acquired or queued, and add the result to `error` as a note."""
    request = Request("DELETE", lease_path(key), new_uuid(), BEST_EFFORT_RELEASE_SECONDS_MAX, token, shielded=True)
    try:
        expect_status(request, (yield request), 204)
    except LockOwnershipLostError:
        error.add_note(f"It was unknown whether {key!r} was acquired; it was not, or no longer is")
    except VolcanoError as failed:
        error.add_note(f"It is unknown whether {key!r} was acquired; releasing it failed too: {failed}")
    else:
        error.add_note(f"It was unknown whether {key!r} was acquired; it was released")


def is_retryable(error: VolcanoError) -> bool:
    return isinstance(error, (TransportError, UnavailableError)) and not isinstance(error, LateResponseError)


def may_have_been_served(error: VolcanoError) -> bool:
    """Whether the failed request may still have had its effect."""
    if isinstance(error, TransportError):
        return error.request_sent
    return isinstance(error, ServerError) or error.status == 408


def retry_delay(error: VolcanoError) -> float:
    """0 after a broken connection; the server's `Retry-After`, bounded, after a 503."""
    if not isinstance(error, UnavailableError):
        return 0.0
    return float(min(error.retry_after or RETRY_PAUSE_SECONDS, RETRY_PAUSE_SECONDS_MAX))
