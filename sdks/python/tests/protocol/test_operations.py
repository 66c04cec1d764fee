"""The operations of a client, driven by a list of responses (SDK-1, SDK-2, SDK-18)."""

import asyncio
import gc
import weakref
from typing import Any

import pytest

from volcano_locks import (
    ConflictError,
    Lease,
    LockHeldError,
    LockOwnershipLostError,
    LockState,
    RateLimitedError,
    ServerError,
    TransportError,
    UnavailableError,
    VolcanoError,
)
from volcano_locks.protocol.effects import Operation, Request, Sleep
from volcano_locks.protocol.messages import Response

from ..operation_driver import (
    BUSY,
    DONE,
    GRANT,
    HELD,
    LEASE,
    LOST,
    RENEWED,
    RESET,
    RID,
    TOKEN,
    UNREACHABLE,
    OperationDriver,
    refused,
)


def acquire(driver: OperationDriver, **options: Any) -> Operation[Lease]:
    return driver.operations().acquire("k", 30, options.get("token"), options.get("request_id"))


def test_a_granted_acquire_is_one_request_and_a_local_deadline(driver: OperationDriver) -> None:
    """SDK-4: the deadline is the time before the request plus the TTL, whatever the server's date."""

    def slowly() -> Response:
        driver.seconds += 4
        return GRANT

    lease = driver.run(acquire(driver), slowly)
    assert driver.methods() == ["POST"]
    assert (lease.deadline, lease.fencing_token, lease.ttl_seconds) == (130.0, 7, 30)


def test_ids_are_made_before_the_first_send_and_kept_on_retry(driver: OperationDriver) -> None:
    """SDK-1, SDK-2, case 13: the second POST has the same ids, so it can only return the same lease."""
    lease = driver.run(acquire(driver), RESET, GRANT)
    first, second = driver.requests()
    assert (first.token, first.request_id) == (second.token, second.request_id)
    assert lease.token == first.token


def test_callers_may_pass_both_ids(driver: OperationDriver) -> None:
    """SDK-1: to recover an acquire with an unknown outcome."""
    lease = driver.run(acquire(driver, token=TOKEN, request_id=RID), GRANT)
    assert (lease.token, driver.requests()[0].request_id) == (TOKEN, RID)


def test_every_acquire_has_a_token_of_its_own(driver: OperationDriver) -> None:
    """case 19: a delayed release of an old lease cannot affect a new one."""
    tokens = {driver.run(acquire(driver), GRANT).token for _ in range(20)}
    assert len(tokens) == 20


def test_a_503_is_retried_once_after_the_pause_it_asks_for(driver: OperationDriver) -> None:
    """SDK-2."""
    driver.run(acquire(driver), BUSY, GRANT)
    assert driver.methods() == ["POST", "sleep 1.0", "POST"]


@pytest.mark.parametrize(
    ("response", "kind"),
    [(HELD, LockHeldError), (LOST, LockOwnershipLostError), (refused(429, "lock_rate_limited"), RateLimitedError)],
)
def test_an_error_response_is_final(driver: OperationDriver, response: Response, kind: type[Exception]) -> None:
    """SDK-2, SDK-21: a 409 is never retried; nothing was granted, so nothing is released."""
    with pytest.raises(kind):
        driver.run(acquire(driver), response)
    assert driver.methods() == ["POST"]


@pytest.mark.parametrize(
    ("responses", "kind"),
    [
        ((RESET, RESET), TransportError),
        ((RESET, UNREACHABLE), TransportError),
        ((BUSY, BUSY), UnavailableError),
        ((RESET, HELD), LockHeldError),
        ((Response(200, {}, b"<html>"),), ServerError),
        ((Response(201, {}, b"<html>"),), ServerError),
        ((Response(302, {"location": "/"}, b""),), ServerError),
        ((asyncio.CancelledError(),), asyncio.CancelledError),
        ((RESET, KeyboardInterrupt()), KeyboardInterrupt),
    ],
)
def test_an_acquire_that_may_have_been_served_is_released(
    driver: OperationDriver, responses: tuple[Any, ...], kind: type[BaseException]
) -> None:
    """SDK-2, case 13, case 15, case 17: the release has the token of the acquire."""
    with pytest.raises(kind) as failed:
        driver.run(acquire(driver), *responses, DONE)
    release = driver.requests()[-1]
    assert (release.method, release.path) == ("DELETE", "/locks/k/lease")
    assert release.token == driver.requests()[0].token
    assert release.request_id != driver.requests()[0].request_id
    assert release.shielded
    assert release.timeout_seconds <= 2
    assert "it was released" in failed.value.__notes__[-1]


@pytest.mark.parametrize(
    "responses", [(RESET, RESET), (RESET, UNREACHABLE), (UNREACHABLE, RESET), (BUSY, BUSY), (BUSY, RESET)]
)
def test_an_uncertain_acquire_with_the_callers_token_explains_how_to_recover_it(
    driver: OperationDriver, responses: tuple[Any, ...]
) -> None:
    """SDK-18, case 50: no release is sent, so the same two ids return the lease."""
    with pytest.raises((TransportError, UnavailableError)) as failed:
        driver.run(acquire(driver, token=TOKEN, request_id=RID), *responses)
    assert "DELETE" not in driver.methods()
    assert failed.value.__notes__[-1].endswith("acquire it again with the same token and request_id")
    assert TOKEN not in "".join(failed.value.__notes__)
    assert driver.run(acquire(driver, token=TOKEN, request_id=RID), GRANT).token == TOKEN


@pytest.mark.parametrize(
    "responses",
    [
        (RESET, HELD),
        (RESET, refused(429, "lock_rate_limited")),
        (BUSY, refused(500, "internal")),
        (Response(201, {}, b"<html>"),),
        (asyncio.CancelledError(),),
        (RESET, KeyboardInterrupt()),
    ],
)
def test_the_callers_token_is_released_after_other_failures(
    driver: OperationDriver, responses: tuple[Any, ...]
) -> None:
    """SDK-18, SDK-2: a cancellation, an interrupt, and errors that do not invite a retry."""
    with pytest.raises((VolcanoError, asyncio.CancelledError, KeyboardInterrupt)) as failed:
        driver.run(acquire(driver, token=TOKEN), *responses, DONE)
    assert driver.requests()[-1].method == "DELETE"
    assert "it was released" in failed.value.__notes__[-1]


def test_a_cancellation_in_the_pause_between_attempts_releases(driver: OperationDriver) -> None:
    """SDK-2, case 17."""
    operation = acquire(driver)
    next(operation)
    assert isinstance(operation.send(BUSY), Sleep)
    release = operation.throw(asyncio.CancelledError())
    assert isinstance(release, Request)
    assert release.method == "DELETE"
    with pytest.raises(asyncio.CancelledError):
        operation.send(DONE)


def test_a_failed_release_does_not_hide_the_error(driver: OperationDriver) -> None:
    """SDK-2: best effort; a note says that the outcome is unknown."""
    with pytest.raises(TransportError, match="reset") as failed:
        driver.run(acquire(driver), RESET, RESET, UNREACHABLE)
    assert "releasing it failed too: refused" in failed.value.__notes__[-1]


def test_a_request_that_was_not_sent_needs_no_release(driver: OperationDriver) -> None:
    """An unreachable server is reported at once."""
    with pytest.raises(TransportError, match="refused"):
        driver.run(acquire(driver), UNREACHABLE, UNREACHABLE)
    assert driver.methods() == ["POST", "POST"]


def test_a_grant_later_than_its_ttl_is_released_and_raised(driver: OperationDriver) -> None:
    """case 14: an expired lease is never returned."""

    def too_late() -> Response:
        driver.seconds += 30
        return GRANT

    with pytest.raises(TransportError, match="expired before the response"):
        driver.run(acquire(driver), too_late, DONE)
    assert driver.methods() == ["POST", "DELETE"]


def test_no_request_may_take_longer_than_its_ttl(driver: OperationDriver) -> None:
    """SDK-4: a response after the TTL would be useless."""
    driver.run(driver.operations(60).acquire("k", 5, None, None), GRANT)
    assert driver.requests()[0].timeout_seconds == 5


def test_a_renewal_keeps_the_token_and_moves_the_deadline(driver: OperationDriver) -> None:
    """SDK-4, case 32: retried once after a reset; the deadline counts from the attempt that succeeded."""
    lease = driver.run(driver.operations().renew("k", LEASE, 60, None), RESET, RENEWED)
    assert (lease.token, lease.deadline, lease.ttl_seconds) == (TOKEN, 160.0, 60)
    first, second = driver.requests()
    assert first == second


def test_a_renewal_may_not_take_longer_than_the_remaining_lease(driver: OperationDriver) -> None:
    """SDK-4, case 6."""
    driver.seconds = 127.0
    driver.run(driver.operations().renew("k", LEASE, None, None), RENEWED)
    assert driver.requests()[0].timeout_seconds == 3.0


def test_a_stored_lease_has_no_local_deadline(driver: OperationDriver) -> None:
    stored = Lease.from_record(LEASE.to_record())
    driver.run(driver.operations().renew("k", stored, None, None), RENEWED)
    assert driver.requests()[0].timeout_seconds == 10.0


def test_a_refused_renewal_is_a_loss_and_not_retried(driver: OperationDriver) -> None:
    with pytest.raises(LockOwnershipLostError):
        driver.run(driver.operations().renew("k", LEASE, None, None), LOST)
    assert driver.methods() == ["PATCH"]


def test_the_renewer_sends_one_attempt(driver: OperationDriver) -> None:
    """SDK-3: the renewal plan decides on retries."""
    with pytest.raises(TransportError):
        driver.run(driver.operations().renew_once(LEASE, 2.0), RESET)
    assert driver.requests()[0].timeout_seconds == 2.0


def test_a_release_is_retried_with_the_same_token(driver: OperationDriver) -> None:
    """case 19, case 32: bound to the token, so a repeat can only free its own lease."""
    driver.run(driver.operations().release("k", LEASE, None), RESET, DONE)
    assert [request.token for request in driver.requests()] == [TOKEN, TOKEN]


def test_a_retried_release_that_finds_a_new_holder_succeeds(driver: OperationDriver) -> None:
    """case 19: the first one was served, its response was lost, and another holder acquired."""
    driver.run(driver.operations().release("k", LEASE, None), RESET, LOST)
    with pytest.raises(LockOwnershipLostError):
        driver.run(driver.operations().release("k", LEASE, None), LOST)
    with pytest.raises(LockOwnershipLostError):
        driver.run(driver.operations().release("k", LEASE, None), UNREACHABLE, LOST)


def test_a_force_release_that_may_have_been_served_is_not_retried(driver: OperationDriver) -> None:
    """case 19: the second one could evict the next holder."""
    with pytest.raises(TransportError):
        driver.run(driver.operations().force_release("k", None, None, None), RESET)
    driver.run(driver.operations().force_release("k", None, None, None), UNREACHABLE, DONE)


def test_a_force_release_of_one_lease_is_retried(driver: OperationDriver) -> None:
    """SDK-27: it can evict no other holder."""
    driver.run(driver.operations().force_release("k", 7, "it hangs", None), RESET, DONE)
    assert [(one.path, one.reason) for one in driver.requests()] == [("/locks/k/leases/7", "it hangs")] * 2
    changed = Response(409, {}, b'{"error": "look again", "code": "lock_changed"}')
    with pytest.raises(ConflictError, match="look again") as refused:
        driver.run(driver.operations().force_release("k", 7, None, None), changed)
    assert refused.value.code == "lock_changed"


@pytest.mark.parametrize("fencing_token", [0, -1, 2**53, 1.0, "7", True])
def test_a_fencing_token_out_of_range_is_refused(driver: OperationDriver, fencing_token: Any) -> None:
    """SDK-27."""
    with pytest.raises(ValueError, match="fencing_token must be an integer from 1"):
        driver.operations().force_release("k", fencing_token, None, None)


@pytest.mark.parametrize(
    "reason",
    [
        "r" * 201,
        "a\nb",
        "a\x1b[2J",
        "a\x7f",
        "a\x9b2J",
        "a\u202eb",
        "a\u2066b",
        "a\u2028b",
        "a\ud800",
        "a\u200bb",
        "a\xad",
        "\ufeffa",
        "a\U000e0041",
        7,
        b"r",
    ],
)
def test_an_invalid_reason_is_refused(driver: OperationDriver, reason: Any) -> None:
    """SDK-27: before anything is sent."""
    with pytest.raises(ValueError if isinstance(reason, str) else TypeError, match="reason must be"):
        driver.operations().force_release("k", None, reason, None)


def test_a_read_is_retried_once(driver: OperationDriver) -> None:
    assert driver.run(driver.operations().get("k", None), RESET, Response(200, {}, b'{"held": false}')) == LockState(
        False
    )
    with pytest.raises(TransportError):
        driver.run(driver.operations().get("k", None), RESET, RESET)


@pytest.mark.parametrize("status", [200, 202, 205])
def test_an_unexpected_success_status_is_an_error(driver: OperationDriver, status: int) -> None:
    """A proxy that responds 200 to a release has released nothing."""
    with pytest.raises(ServerError):
        driver.run(driver.operations().release("k", LEASE, None), Response(status, {}, b"<html>"))


def test_no_effect_shows_the_token(driver: OperationDriver) -> None:
    """SDK-8."""
    driver.run(driver.operations().release("k", LEASE, None), DONE)
    assert TOKEN not in repr(driver.effects)


def test_bad_arguments_raise_in_the_callers_frame(driver: OperationDriver) -> None:
    """Nothing is sent, and the call itself raises."""
    operations = driver.operations()
    with pytest.raises(ValueError, match="key"):
        operations.acquire("/", 30, None, None)
    with pytest.raises(ValueError, match="ttl"):
        operations.acquire("k", 4, None, None)
    with pytest.raises(ValueError, match="token"):
        operations.acquire("k", 30, "mine", None)
    with pytest.raises(ValueError, match="request_id"):
        operations.get("k", "mine")


def test_the_lease_must_be_a_lease_of_that_lock(driver: OperationDriver) -> None:
    """SDK-17: the message names the argument and both locks, and no token."""
    operations = driver.operations()
    for call in (lambda *given: operations.release(*given, None), lambda *given: operations.renew(*given, None, None)):
        with pytest.raises(ValueError, match=r"^lease must be one of the lock 'other', got a lease of 'k'") as refused:
            call("other", LEASE)
        assert TOKEN not in str(refused.value)
        for wrong in (LEASE.to_record(), LEASE.token, None):
            with pytest.raises(TypeError, match=f"^lease must be a Lease, .* got {type(wrong).__name__}$"):
                call("k", wrong)
        with pytest.raises(TypeError, match="key must be a str, got Lease"):
            call(LEASE, "k")
    assert driver.effects == []


def test_a_refused_acquire_names_the_lock_of_its_request(driver: OperationDriver) -> None:
    """SDK-9: the key comes from the request, because the response does not repeat it."""
    with pytest.raises(LockHeldError, match="'k' is held by another owner") as refusal:
        driver.run(acquire(driver), HELD)
    assert (refusal.value.key, refusal.value.holder) == ("k", None)
    assert [Request("GET", path, RID, 1.0).key for path in ("/locks?limit=1", "/locks/k?view=full")] == [None, "k"]


def test_the_error_of_a_refusal_is_freed_without_the_garbage_collector(driver: OperationDriver) -> None:
    """A worker that polls a held lock gets many of them, each with the frames of its traceback."""
    gc.disable()
    try:
        try:
            driver.run(acquire(driver), HELD)
        except LockHeldError as error:
            reference = weakref.ref(error)
        assert reference() is None
    finally:
        gc.enable()
