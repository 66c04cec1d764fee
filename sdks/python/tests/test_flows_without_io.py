"""The verbs' flows, driven by a list of answers: no network, no event loop, no waiting."""

import asyncio
from typing import Any

import pytest

from volcano_locks import (
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
from volcano_locks.protocol.effects import Flow, Request, Sleep
from volcano_locks.protocol.messages import Answer

from .stage import BUSY, DONE, GRANT, HELD, LEASE, LOST, RENEWED, RESET, RID, TOKEN, UNREACHABLE, Stage, refused


def acquiring(stage: Stage, **options: Any) -> Flow[Lease]:
    return stage.flows().acquire("k", 30, options.get("token"), options.get("request_id"))


def test_a_granted_acquire_is_one_request_and_a_local_deadline(stage: Stage) -> None:
    """SDK-4: the deadline is the time before the request plus the TTL, whatever the server's date says."""

    def slowly() -> Answer:
        stage.seconds += 4
        return GRANT

    lease = stage.play(acquiring(stage), slowly)
    assert stage.verbs() == ["POST"]
    assert (lease.deadline, lease.fencing_token, lease.ttl_seconds) == (130.0, 7, 30)


def test_ids_are_made_before_the_first_send_and_kept_on_retry(stage: Stage) -> None:
    """SDK-1, SDK-2, case 13: the second POST carries the same two ids, so that it can only be the same lease."""
    lease = stage.play(acquiring(stage), RESET, GRANT)
    first, second = stage.requests()
    assert (first.token, first.request_id) == (second.token, second.request_id)
    assert lease.token == first.token


def test_callers_may_pass_both_ids(stage: Stage) -> None:
    """SDK-1: to recover an acquire whose outcome they do not know."""
    lease = stage.play(acquiring(stage, token=TOKEN, request_id=RID), GRANT)
    assert (lease.token, stage.requests()[0].request_id) == (TOKEN, RID)


def test_every_acquire_has_a_token_of_its_own(stage: Stage) -> None:
    """case 19: a delayed release of an old lease cannot touch a new one."""
    tokens = {stage.play(acquiring(stage), GRANT).token for _ in range(20)}
    assert len(tokens) == 20


def test_a_503_is_retried_once_after_the_pause_it_asks_for(stage: Stage) -> None:
    """SDK-2."""
    stage.play(acquiring(stage), BUSY, GRANT)
    assert stage.verbs() == ["POST", "sleep 1.0", "POST"]


@pytest.mark.parametrize(
    ("answer", "kind"),
    [(HELD, LockHeldError), (LOST, LockOwnershipLostError), (refused(429, "lock_rate_limited"), RateLimitedError)],
)
def test_a_refusal_is_an_answer(stage: Stage, answer: Answer, kind: type[Exception]) -> None:
    """SDK-2, SDK-21: a 409 is never retried; nothing was granted, so nothing is given back."""
    with pytest.raises(kind):
        stage.play(acquiring(stage), answer)
    assert stage.verbs() == ["POST"]


@pytest.mark.parametrize(
    ("answers", "kind"),
    [
        ((RESET, RESET), TransportError),
        ((RESET, UNREACHABLE), TransportError),
        ((BUSY, BUSY), UnavailableError),
        ((RESET, HELD), LockHeldError),
        ((Answer(200, {}, b"<html>"),), ServerError),
        ((Answer(201, {}, b"<html>"),), ServerError),
        ((Answer(302, {"location": "/"}, b""),), ServerError),
        ((asyncio.CancelledError(),), asyncio.CancelledError),
        ((RESET, KeyboardInterrupt()), KeyboardInterrupt),
    ],
)
def test_an_acquire_that_may_have_been_served_is_given_back(
    stage: Stage, answers: tuple[Any, ...], kind: type[BaseException]
) -> None:
    """SDK-2, case 13, case 15, case 17: whatever ends it, the release carries the token of the acquire."""
    with pytest.raises(kind) as failed:
        stage.play(acquiring(stage), *answers, DONE)
    given_back = stage.requests()[-1]
    assert (given_back.method, given_back.path) == ("DELETE", "/locks/k/lease")
    assert given_back.token == stage.requests()[0].token
    assert given_back.request_id != stage.requests()[0].request_id
    assert given_back.to_the_end
    assert given_back.timeout_seconds <= 2
    assert "it was given back" in failed.value.__notes__[-1]


@pytest.mark.parametrize(
    "answers", [(RESET, RESET), (RESET, UNREACHABLE), (UNREACHABLE, RESET), (BUSY, BUSY), (BUSY, RESET)]
)
def test_an_uncertain_acquire_with_the_callers_own_token_says_how_to_recover_it(
    stage: Stage, answers: tuple[Any, ...]
) -> None:
    """SDK-18, case 50: no release is sent, so the same two ids return the lease."""
    with pytest.raises((TransportError, UnavailableError)) as failed:
        stage.play(acquiring(stage, token=TOKEN, request_id=RID), *answers)
    assert "DELETE" not in stage.verbs()
    assert failed.value.__notes__[-1].endswith("acquire it again with the same token and request_id")
    assert TOKEN not in "".join(failed.value.__notes__)
    assert stage.play(acquiring(stage, token=TOKEN, request_id=RID), GRANT).token == TOKEN


@pytest.mark.parametrize(
    "answers",
    [
        (RESET, HELD),
        (RESET, refused(429, "lock_rate_limited")),
        (BUSY, refused(500, "internal")),
        (Answer(201, {}, b"<html>"),),
        (asyncio.CancelledError(),),
        (RESET, KeyboardInterrupt()),
    ],
)
def test_the_callers_own_token_is_released_when_the_acquire_ends_otherwise(
    stage: Stage, answers: tuple[Any, ...]
) -> None:
    """SDK-18, SDK-2: a cancellation, an interrupt, and errors that do not invite the same request again."""
    with pytest.raises((VolcanoError, asyncio.CancelledError, KeyboardInterrupt)) as failed:
        stage.play(acquiring(stage, token=TOKEN), *answers, DONE)
    assert stage.requests()[-1].method == "DELETE"
    assert "it was given back" in failed.value.__notes__[-1]


def test_a_cancellation_in_the_pause_between_two_attempts_gives_back_too(stage: Stage) -> None:
    """SDK-2, case 17."""
    flow = acquiring(stage)
    next(flow)
    assert isinstance(flow.send(BUSY), Sleep)
    given_back = flow.throw(asyncio.CancelledError())
    assert isinstance(given_back, Request)
    assert given_back.method == "DELETE"
    with pytest.raises(asyncio.CancelledError):
        flow.send(DONE)


def test_a_give_back_that_fails_does_not_hide_the_error(stage: Stage) -> None:
    """SDK-2: best effort; the caller is told that the outcome is unknown."""
    with pytest.raises(TransportError, match="reset") as failed:
        stage.play(acquiring(stage), RESET, RESET, UNREACHABLE)
    assert "giving it back failed too: refused" in failed.value.__notes__[-1]


def test_a_request_that_never_left_needs_no_give_back(stage: Stage) -> None:
    """A server that is down is told of at once."""
    with pytest.raises(TransportError, match="refused"):
        stage.play(acquiring(stage), UNREACHABLE, UNREACHABLE)
    assert stage.verbs() == ["POST", "POST"]


def test_a_grant_that_comes_after_its_own_ttl_is_given_back_and_reported(stage: Stage) -> None:
    """case 14: an expired lease is never returned."""

    def too_late() -> Answer:
        stage.seconds += 30
        return GRANT

    with pytest.raises(TransportError, match="had run out before the answer"):
        stage.play(acquiring(stage), too_late, DONE)
    assert stage.verbs() == ["POST", "DELETE"]


def test_no_request_is_given_longer_than_the_lease_it_asks_for(stage: Stage) -> None:
    """SDK-4: an answer after the TTL would be useless."""
    stage.play(stage.flows(60).acquire("k", 5, None, None), GRANT)
    assert stage.requests()[0].timeout_seconds == 5


def test_a_renewal_keeps_the_token_and_moves_the_deadline(stage: Stage) -> None:
    """SDK-4, case 32: retried once after a reset; the deadline counts from the attempt that was answered."""
    lease = stage.play(stage.flows().renew("k", LEASE, 60, None), RESET, RENEWED)
    assert (lease.token, lease.deadline, lease.ttl_seconds) == (TOKEN, 160.0, 60)
    first, second = stage.requests()
    assert first == second


def test_a_renewal_may_not_take_longer_than_what_is_left_of_the_lease(stage: Stage) -> None:
    """SDK-4, case 6."""
    stage.seconds = 127.0
    stage.play(stage.flows().renew("k", LEASE, None, None), RENEWED)
    assert stage.requests()[0].timeout_seconds == 3.0


def test_a_stored_lease_has_no_local_deadline_and_asks_the_server(stage: Stage) -> None:
    stored = Lease.from_record(LEASE.to_record())
    stage.play(stage.flows().renew("k", stored, None, None), RENEWED)
    assert stage.requests()[0].timeout_seconds == 10.0


def test_a_refused_renewal_is_a_loss_and_not_repeated(stage: Stage) -> None:
    with pytest.raises(LockOwnershipLostError):
        stage.play(stage.flows().renew("k", LEASE, None, None), LOST)
    assert stage.verbs() == ["PATCH"]


def test_the_heartbeats_renewal_is_one_attempt(stage: Stage) -> None:
    """SDK-3: the plan decides when to try again."""
    with pytest.raises(TransportError):
        stage.play(stage.flows().renew_once(LEASE, 2.0), RESET)
    assert stage.requests()[0].timeout_seconds == 2.0


def test_a_release_is_repeated_with_the_same_token(stage: Stage) -> None:
    """case 19, case 32: bound to the token, so a second one can only free its own lease."""
    stage.play(stage.flows().release("k", LEASE, None), RESET, DONE)
    assert [request.token for request in stage.requests()] == [TOKEN, TOKEN]


def test_a_repeated_release_that_finds_a_new_holder_was_a_release(stage: Stage) -> None:
    """case 19: the first was served, its answer lost, somebody else holds the lock by now."""
    stage.play(stage.flows().release("k", LEASE, None), RESET, LOST)
    with pytest.raises(LockOwnershipLostError):
        stage.play(stage.flows().release("k", LEASE, None), LOST)
    with pytest.raises(LockOwnershipLostError):
        stage.play(stage.flows().release("k", LEASE, None), UNREACHABLE, LOST)


def test_a_force_release_is_not_repeated_once_it_may_have_been_served(stage: Stage) -> None:
    """case 19: the second one could evict the next holder."""
    with pytest.raises(TransportError):
        stage.play(stage.flows().force_release("k", None), RESET)
    stage.play(stage.flows().force_release("k", None), UNREACHABLE, DONE)


def test_a_read_is_repeated_once(stage: Stage) -> None:
    assert stage.play(stage.flows().get("k", None), RESET, Answer(200, {}, b'{"held": false}')) == LockState(False)
    with pytest.raises(TransportError):
        stage.play(stage.flows().get("k", None), RESET, RESET)


@pytest.mark.parametrize("status", [200, 202, 205])
def test_another_success_than_the_promised_one_is_a_failure(stage: Stage, status: int) -> None:
    """A proxy that answers 200 to a release has released nothing."""
    with pytest.raises(ServerError):
        stage.play(stage.flows().release("k", LEASE, None), Answer(status, {}, b"<html>"))


def test_no_step_shows_the_token(stage: Stage) -> None:
    """SDK-8."""
    stage.play(stage.flows().release("k", LEASE, None), DONE)
    assert TOKEN not in repr(stage.asked)


def test_bad_arguments_are_refused_in_the_callers_frame(stage: Stage) -> None:
    """Nothing is sent, and the error is raised by the call, not by its awaiting."""
    flows = stage.flows()
    with pytest.raises(ValueError, match="key"):
        flows.acquire("/", 30, None, None)
    with pytest.raises(ValueError, match="ttl"):
        flows.acquire("k", 4, None, None)
    with pytest.raises(ValueError, match="token"):
        flows.acquire("k", 30, "mine", None)
    with pytest.raises(ValueError, match="request_id"):
        flows.get("k", "mine")


def test_a_lease_must_be_one_and_of_the_lock_that_is_named(stage: Stage) -> None:
    """SDK-17: the message names the argument and both locks, and shows no token."""
    flows = stage.flows()
    for call in (lambda *given: flows.release(*given, None), lambda *given: flows.renew(*given, None, None)):
        with pytest.raises(ValueError, match=r"^lease must be one of the lock 'other', got a lease of 'k'") as refused:
            call("other", LEASE)
        assert TOKEN not in str(refused.value)
        for wrong in (LEASE.to_record(), LEASE.token, None):
            with pytest.raises(TypeError, match=f"^lease must be a Lease, .* got {type(wrong).__name__}$"):
                call("k", wrong)
        with pytest.raises(TypeError, match="key must be a str, got Lease"):
            call(LEASE, "k")
    assert stage.asked == []
