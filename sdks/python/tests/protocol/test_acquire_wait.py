"""The requests of an acquire that waits, driven by a list of responses (SDK-11)."""

import asyncio
import math
from collections.abc import Callable
from typing import Any

import pytest

from volcano_locks import (
    AuthenticationError,
    Lease,
    LockHeldError,
    LockOwnershipLostError,
    RateLimitedError,
    ServerError,
    TransportError,
    UnavailableError,
)
from volcano_locks.protocol.backoff import BACKOFF_SECONDS_MAX, BACKOFF_SECONDS_MIN
from volcano_locks.protocol.effects import Operation, Request, Sleep
from volcano_locks.protocol.messages import Response
from volcano_locks.protocol.operations import WAIT_SLICE_SECONDS

from ..operation_driver import BUSY, DONE, GRANT, HELD, LOST, RENEWED, RESET, UNREACHABLE, OperationDriver, refused

Reply = Response | BaseException


def waiting(driver: OperationDriver, wait: float = math.inf, ttl: int = 30) -> Operation[Lease]:
    return driver.operations().acquire("k", ttl, None, None, wait)


def after(driver: OperationDriver, seconds: float, reply: Reply) -> Callable[[], Reply]:
    """A response that arrives after `seconds`."""

    def later() -> Reply:
        driver.seconds += seconds
        return reply

    return later


def posts(driver: OperationDriver) -> list[Request]:
    return [request for request in driver.requests() if request.method == "POST"]


def pauses(driver: OperationDriver) -> list[float]:
    return [effect.seconds for effect in driver.effects if isinstance(effect, Sleep)]


def test_a_wait_is_sent_in_slices_with_the_same_ids(driver: OperationDriver) -> None:
    """SDK-11: `lock_held` at the end of a slice starts the next one at once; the last one takes the rest."""
    responses = [after(driver, 50, HELD), after(driver, 50, HELD), after(driver, 5, GRANT)]
    lease = driver.run(waiting(driver, wait=110), *responses)
    assert driver.methods() == ["POST"] * 3
    assert [request.wait_seconds for request in posts(driver)] == [50.0, 50.0, 10.0]
    assert {(request.token, request.request_id) for request in posts(driver)} == {
        (lease.token, posts(driver)[0].request_id)
    }


def test_a_request_may_take_its_wait_plus_the_usual_limit(driver: OperationDriver) -> None:
    driver.run(waiting(driver), GRANT)
    assert posts(driver)[0].timeout_seconds == WAIT_SLICE_SECONDS + 10


@pytest.mark.parametrize("wait", [None, 0, 0.0])
def test_without_a_wait_it_is_a_plain_acquire(driver: OperationDriver, wait: float | None) -> None:
    with pytest.raises(LockHeldError):
        driver.run(driver.operations().acquire("k", 30, None, None, wait), HELD)
    assert [request.wait_seconds for request in posts(driver)] == [None]


def test_a_wait_that_times_out_raises_lock_held_and_releases_nothing(driver: OperationDriver) -> None:
    """SDK-11: the server responded, so nothing is uncertain."""
    with pytest.raises(LockHeldError):
        driver.run(waiting(driver, wait=25), after(driver, 25, HELD))
    assert driver.methods() == ["POST"]


@pytest.mark.parametrize(
    "failure",
    [
        RESET,
        UNREACHABLE,
        BUSY,
        refused(429, "lock_rate_limited"),
        refused(500, "internal"),
        Response(502, {}, b"<html>"),
        Response(504, {}, b"<html>"),
    ],
)
def test_transient_failures_are_waited_out(driver: OperationDriver, failure: Reply) -> None:
    """SDK-11: no response, a spent quota, a server that restarts."""
    lease = driver.run(waiting(driver), failure, failure, GRANT)
    assert {request.token for request in posts(driver)} == {lease.token}
    assert len(pauses(driver)) == (1 if isinstance(failure, TransportError) else 2)
    assert all(effect.in_wait for effect in driver.effects if isinstance(effect, Sleep))


def test_retry_after_sets_the_pause(driver: OperationDriver) -> None:
    driver.run(waiting(driver), refused(429, "lock_rate_limited", **{"retry-after": "40"}), GRANT)
    assert 40 <= pauses(driver)[0] <= 44


def test_the_backoff_grows_and_is_bounded(driver: OperationDriver) -> None:
    driver.run(waiting(driver), *[UNREACHABLE] * 50, GRANT)
    assert len(pauses(driver)) == 49
    assert all(BACKOFF_SECONDS_MIN <= pause <= BACKOFF_SECONDS_MAX for pause in pauses(driver))
    assert len(set(pauses(driver))) > 40, "they are drawn, so that many clients do not ask in effect"


def test_a_server_that_does_not_wait_causes_no_tight_loop(driver: OperationDriver) -> None:
    """SDK-11: a `lock_held` that comes too early is followed by a pause."""
    operation = waiting(driver, wait=100)
    requests_sent = 0
    with pytest.raises(LockHeldError):  # noqa: PT012
        effect = next(operation)
        while True:
            if isinstance(effect, Sleep):
                driver.seconds += effect.seconds
                effect = operation.send(None)
            else:
                requests_sent += 1
                effect = operation.send(HELD)
    assert 20 <= requests_sent <= 100, "mostly pauses of 0.2 to 5 seconds"


@pytest.mark.parametrize(("last", "kind"), [(RESET, TransportError), (BUSY, UnavailableError)])
def test_a_wait_that_ends_with_a_failure_raises_it_and_releases(
    driver: OperationDriver, last: Reply, kind: type[Exception]
) -> None:
    """SDK-2, SDK-11: it may have been granted."""
    with pytest.raises(kind):
        driver.run(waiting(driver, wait=55), after(driver, 50, HELD), after(driver, 5, last), DONE)
    assert driver.methods() == ["POST", "POST", "DELETE"]
    assert driver.requests()[-1].token == posts(driver)[0].token


def test_a_pause_longer_than_the_remaining_wait_ends_it(driver: OperationDriver) -> None:
    spent = refused(429, "lock_rate_limited", **{"retry-after": "40"})
    with pytest.raises(RateLimitedError):
        driver.run(waiting(driver, wait=30), spent)
    assert driver.methods() == ["POST"]


@pytest.mark.parametrize(
    ("response", "kind"),
    [
        (refused(401, "invalid_credentials"), AuthenticationError),
        (LOST, LockOwnershipLostError),
    ],
)
def test_other_errors_end_the_wait(driver: OperationDriver, response: Response, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        driver.run(waiting(driver), response)
    assert driver.methods() == ["POST"]


def test_a_malformed_response_ends_the_wait(driver: OperationDriver) -> None:
    with pytest.raises(ServerError):
        driver.run(waiting(driver), Response(201, {}, b"<html>"), DONE)


@pytest.mark.parametrize("interrupt", [asyncio.CancelledError(), KeyboardInterrupt()])
@pytest.mark.parametrize("before", [[], [HELD], [RESET], [HELD, HELD]])
def test_an_interrupted_wait_leaves_neither_lease_nor_waiter(
    driver: OperationDriver, before: list[Reply], interrupt: BaseException
) -> None:
    """SDK-11: no matter during which request the interrupt comes."""
    with pytest.raises(type(interrupt)):
        driver.run(waiting(driver), *before, interrupt, DONE)
    assert driver.requests()[-1].method == "DELETE"
    assert driver.requests()[-1].token == posts(driver)[0].token
    assert driver.requests()[-1].shielded


def test_a_wait_interrupted_in_a_pause_releases_its_waiter(driver: OperationDriver) -> None:
    operation = waiting(driver)
    next(operation)
    assert isinstance(operation.send(HELD), Sleep)
    release = operation.throw(asyncio.CancelledError())
    assert isinstance(release, Request)
    assert release.method == "DELETE"
    with pytest.raises(asyncio.CancelledError):
        operation.send(LOST)


def test_a_fast_grant_has_the_deadline_of_its_request(driver: OperationDriver) -> None:
    """SDK-4, SDK-11."""
    lease = driver.run(waiting(driver, ttl=30), after(driver, 10, GRANT))
    assert driver.methods() == ["POST"]
    assert lease.deadline == 130.0


@pytest.mark.parametrize("seconds", [10.1, 24.0, 34.0])
def test_a_slow_grant_is_confirmed_by_a_renewal(driver: OperationDriver, seconds: float) -> None:
    """SDK-11: the client does not know the instant of the grant; request plus TTL may be over already."""
    lease = driver.run(waiting(driver, ttl=30), after(driver, seconds, GRANT), after(driver, 1, RENEWED))
    assert driver.methods() == ["POST", "PATCH"]
    assert lease.deadline == 100.0 + seconds + 30


@pytest.mark.parametrize("failure", [LOST, refused(401, "invalid_credentials")])
def test_a_lease_that_cannot_be_confirmed_is_released_and_the_wait_continues(
    driver: OperationDriver, failure: Response
) -> None:
    """SDK-11, case 18: with a new token, because the old one may be retired."""
    lease = driver.run(waiting(driver, ttl=30), after(driver, 20, GRANT), failure, DONE, GRANT)
    assert driver.methods() == ["POST", "PATCH", "DELETE", "POST"]
    first, renewal, released, second = driver.requests()
    assert first.token == renewal.token == released.token != second.token == lease.token


def test_after_a_lost_grant_that_expired_the_wait_continues(driver: OperationDriver) -> None:
    """SDK-11, LEASE-5: the response was lost, and at the next request its lease is in the margin."""
    lease = driver.run(waiting(driver), RESET, LOST, DONE, after(driver, 5, HELD), GRANT)
    assert [effect.method for effect in driver.requests()] == ["POST", "POST", "DELETE", "POST", "POST"]
    first, again, released, *retries = driver.requests()
    assert first.token == again.token == released.token
    assert {request.token for request in retries} == {lease.token} != {first.token}


def test_a_loss_with_a_new_token_ends_the_wait(driver: OperationDriver) -> None:
    """SDK-11: a new token cannot have expired, so repeating would not help."""
    with pytest.raises(LockOwnershipLostError):
        driver.run(waiting(driver), RESET, LOST, DONE, LOST)
    assert driver.methods() == ["POST", "POST", "DELETE", "POST"]


def test_a_loss_at_the_end_of_the_wait_is_raised_and_released(driver: OperationDriver) -> None:
    with pytest.raises(LockOwnershipLostError):
        driver.run(waiting(driver, wait=20), RESET, after(driver, 20, LOST), DONE)
    assert driver.methods() == ["POST", "POST", "DELETE"]


def test_a_failed_confirmation_honours_retry_after(driver: OperationDriver) -> None:
    spent = refused(429, "lock_rate_limited", **{"retry-after": "40"})
    driver.run(waiting(driver, ttl=30), after(driver, 20, GRANT), spent, DONE, GRANT)
    assert driver.methods()[:3] == ["POST", "PATCH", "DELETE"]
    assert 40 <= pauses(driver)[0] <= 44


def test_a_confirmation_that_fails_at_the_end_of_the_wait_releases_and_raises(driver: OperationDriver) -> None:
    with pytest.raises(TransportError, match="could not be confirmed"):
        driver.run(waiting(driver, wait=20, ttl=30), after(driver, 20, GRANT), LOST, DONE)
    assert driver.methods() == ["POST", "PATCH", "DELETE"]


@pytest.mark.parametrize(
    ("wait", "kind", "message"),
    [
        (-1, ValueError, "wait must be at least 0 seconds"),
        (math.nan, ValueError, "wait must be at least 0 seconds"),
        (True, TypeError, "wait must be a number of seconds, got bool"),
        ("5", TypeError, "wait must be a number of seconds, got str"),
    ],
)
def test_an_invalid_wait_raises_before_anything_is_sent(
    driver: OperationDriver, wait: Any, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        waiting(driver, wait=wait)
