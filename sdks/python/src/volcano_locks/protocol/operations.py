"""What each verb does, without doing it: generators that yield a `Request` or a `Sleep` and return the result.

Whoever drives a flow (`transport.perform`, or a test with nothing but a list of answers) sends each
`Request`, hands the `Answer` back, or throws in the error there was instead. So retry, the mapping of errors
and the clean-up after an uncertain acquire stand here once, for threads and asyncio alike.

SDK-1: token and request id are made before the first send and kept through every retry.
SDK-2: an acquire is sent at most twice; a refusal (4xx) is an answer. If any attempt may have been served and
the caller does not get the lease, a release with its token follows, also on cancellation.
SDK-18: if the caller keeps the token to recover the acquire, a time-out, a transport failure and a 503 send no release.

Not promised: that release arrives. Until it does the lock may stay held for one TTL; acquiring again with the
same `token` then gives the same lease.
"""

from collections.abc import Callable
from typing import TypeVar

from volcano_locks.errors import LockOwnershipLostError, ServerError, TransportError, UnavailableError, VolcanoError
from volcano_locks.protocol.effects import Flow, Pace, Request, Sleep, lease_path, lock_path
from volcano_locks.protocol.messages import Answer, Lease, LockState, lease_from, new_uuid, refusal_from, state_from

ATTEMPTS_MAX = 2
WAIT_SLICE_SECONDS = 50.0
GIVE_UP_SECONDS_MAX = 2.0
RETRY_PAUSE_SECONDS = 0.5
RETRY_PAUSE_SECONDS_MAX = 2.0

T = TypeVar("T")


def acquire(
    key: str, token: str, ttl_seconds: int, request_id: str, pace: Pace, *, recoverable: bool = False
) -> Flow[Lease]:
    """A lease whose deadline is `time before its request + ttl`; an answer later than that is no lease.

    `recoverable`: the caller can repeat this acquire with the same ids, so no release is sent for an unknown outcome.
    """
    uncertain = False
    seconds = min(pace.timeout_seconds, ttl_seconds)
    request = Request("POST", lease_path(key), request_id, seconds, token, ttl_seconds)
    attempt = 0
    try:
        while True:
            attempt += 1
            deadline = pace.now() + ttl_seconds
            try:
                return _in_time(granted(request, (yield request), 201, key, deadline), request, pace)
            except VolcanoError as error:
                uncertain = uncertain or may_have_been_served(error)
                if attempt == ATTEMPTS_MAX or not _worth_another_try(error):
                    raise
                pause = _pause_after(error)
            except BaseException:
                uncertain = True
                raise
            if pause:
                yield Sleep(pause)
    except GeneratorExit:
        raise
    except BaseException as error:
        if uncertain and recoverable and isinstance(error, VolcanoError) and _worth_another_try(error):
            error.add_note(
                f"It is unknown whether {key!r} was acquired: acquire it again with the same token and request_id"
            )
        elif uncertain:
            yield from give_up(key, token, error)
        raise


def renew(lease: Lease, ttl_seconds: int, request_id: str, pace: Pace, attempts: int) -> Flow[Lease]:
    """The same lease with a new expiry; it keeps its fencing token and its owner token."""

    def once() -> Flow[Lease]:
        deadline = pace.now() + ttl_seconds
        request = Request("PATCH", lease_path(lease.key), request_id, pace.left(), lease.token, ttl_seconds)
        return _in_time(granted(request, (yield request), 200, lease.key, deadline), request, pace)

    return (yield from retried(once, pace, attempts))


def release(key: str, token: str, request_id: str, pace: Pace, attempts: int) -> Flow[None]:
    """Nothing, once the server said that the lock is not held with this token.

    If an earlier attempt may have been served, "not yours" is what its success looks like after somebody else
    took the lock: the token holds nothing any more, which is all that was asked (case 19).
    """
    uncertain = False

    def once() -> Flow[None]:
        nonlocal uncertain
        request = Request("DELETE", lease_path(key), request_id, pace.left(), token)
        try:
            expect(request, (yield request), 204)
        except LockOwnershipLostError:
            if not uncertain:
                raise
        except VolcanoError as error:
            uncertain = uncertain or may_have_been_served(error)
            raise

    yield from retried(once, pace, attempts)


def get(key: str, request_id: str, pace: Pace) -> Flow[LockState]:
    """Whether an acquire would be refused, until when it says so, and the fencing token."""

    def once() -> Flow[LockState]:
        request = Request("GET", lock_path(key), request_id, pace.left())
        answer = expect(request, (yield request), 200)
        return state_from(answer, request_id=request_id)

    return (yield from retried(once, pace, ATTEMPTS_MAX))


def force_release(key: str, request_id: str, pace: Pace) -> Flow[None]:
    """Nothing, once the lock is free. Sent again only if it never left: a second one could evict the next holder."""

    def once() -> Flow[None]:
        request = Request("DELETE", lock_path(key), request_id, pace.left())
        expect(request, (yield request), 204)

    yield from retried(once, pace, ATTEMPTS_MAX, only_if_unsent=True)


def retried(once: Callable[[], Flow[T]], pace: Pace, attempts: int, *, only_if_unsent: bool = False) -> Flow[T]:
    """What `once` gives, tried again while that may help and there are attempts and time left."""
    attempt = 0
    while True:
        attempt += 1
        try:
            return (yield from once())
        except VolcanoError as error:
            pause = _pause_after(error)
            again = _worth_another_try(error) and not (only_if_unsent and may_have_been_served(error))
            if attempt == attempts or not again or pace.now() + pause >= pace.until:
                raise
        if pause:
            yield Sleep(pause)


def granted(request: Request, answer: Answer | None, status: int, key: str, deadline: float) -> Lease:
    """The lease that the answer to `request` grants; the refusal is raised if it has another `status`."""
    assert request.token is not None
    assert request.ttl_seconds is not None
    return lease_from(
        expect(request, answer, status),
        key=key,
        token=request.token,
        ttl_seconds=request.ttl_seconds,
        deadline=deadline,
        request_id=request.request_id,
    )


def _in_time(lease: Lease, request: Request, pace: Pace) -> Lease:
    assert lease.deadline is not None
    if pace.now() >= lease.deadline:
        late = f"the lease of {lease.key!r} had run out before the answer that granted it came"
        raise LateAnswerError(late, request_id=request.request_id)
    return lease


def expect(request: Request, answer: Answer | None, status: int) -> Answer:
    """The answer to `request` if it has this `status`; else the refusal it is gets raised."""
    assert answer is not None
    if answer.status == status:
        return answer
    refusal = refusal_from(answer, request_id=request.request_id)
    refusal.add_note(f"request {request.request_id}: {request.method} {request.path}")
    raise refusal


class LateAnswerError(TransportError):
    """A grant that came after the time it granted."""


def give_up(key: str, token: str, error: BaseException) -> Flow[None]:
    """Release what may have been acquired, or a place in the line; `error` is told how that went."""
    request = Request("DELETE", lease_path(key), new_uuid(), GIVE_UP_SECONDS_MAX, token, to_the_end=True)
    try:
        expect(request, (yield request), 204)
    except LockOwnershipLostError:
        error.add_note(f"It was unknown whether {key!r} was acquired; it was not, or is no more")
    except VolcanoError as failed:
        error.add_note(f"It is unknown whether {key!r} was acquired; giving it back failed too: {failed}")
    else:
        error.add_note(f"It was unknown whether {key!r} was acquired; it was given back")


def _worth_another_try(error: VolcanoError) -> bool:
    return isinstance(error, (TransportError, UnavailableError)) and not isinstance(error, LateAnswerError)


def may_have_been_served(error: VolcanoError) -> bool:
    """Whether the request that failed with this may have had its effect all the same."""
    if isinstance(error, TransportError):
        return error.request_sent
    return isinstance(error, ServerError) or error.status == 408


def _pause_after(error: VolcanoError) -> float:
    """A broken connection is tried anew at once; a server that asks for time gets some."""
    if not isinstance(error, UnavailableError):
        return 0.0
    return float(min(error.retry_after or RETRY_PAUSE_SECONDS, RETRY_PAUSE_SECONDS_MAX))
