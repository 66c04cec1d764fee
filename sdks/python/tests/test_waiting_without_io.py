"""SDK-11: what a waiting acquire sends, driven by a list of answers."""

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
from volcano_locks.protocol.backoff import REST_SECONDS_MAX, REST_SECONDS_MIN
from volcano_locks.protocol.effects import Flow, Request, Sleep
from volcano_locks.protocol.messages import Answer
from volcano_locks.protocol.operations import WAIT_SLICE_SECONDS

from .stage import BUSY, DONE, GRANT, HELD, LOST, RENEWED, RESET, UNREACHABLE, Stage, refused

Reply = Answer | BaseException


def waiting(stage: Stage, wait: float = math.inf, ttl: int = 30) -> Flow[Lease]:
    return stage.flows().acquire("k", ttl, None, None, wait)


def after(stage: Stage, seconds: float, reply: Reply) -> Callable[[], Reply]:
    """What comes when `seconds` have passed."""

    def later() -> Reply:
        stage.seconds += seconds
        return reply

    return later


def posts(stage: Stage) -> list[Request]:
    return [request for request in stage.requests() if request.method == "POST"]


def rests(stage: Stage) -> list[float]:
    return [step.seconds for step in stage.asked if isinstance(step, Sleep)]


def test_a_wait_is_asked_for_in_slices_with_the_same_two_ids(stage: Stage) -> None:
    """SDK-11: `lock_held` at the end of a slice is followed by the next at once, and the last is what is left."""
    answers = [after(stage, 50, HELD), after(stage, 50, HELD), after(stage, 5, GRANT)]
    lease = stage.play(waiting(stage, wait=110), *answers)
    assert stage.verbs() == ["POST"] * 3
    assert [request.wait_seconds for request in posts(stage)] == [50.0, 50.0, 10.0]
    assert {(request.token, request.request_id) for request in posts(stage)} == {
        (lease.token, posts(stage)[0].request_id)
    }


def test_a_request_may_take_its_wait_and_its_usual_time_besides(stage: Stage) -> None:
    stage.play(waiting(stage), GRANT)
    assert posts(stage)[0].timeout_seconds == WAIT_SLICE_SECONDS + 10


@pytest.mark.parametrize("wait", [None, 0, 0.0])
def test_without_a_wait_it_is_the_acquire_there_always_was(stage: Stage, wait: float | None) -> None:
    with pytest.raises(LockHeldError):
        stage.play(stage.flows().acquire("k", 30, None, None, wait), HELD)
    assert [request.wait_seconds for request in posts(stage)] == [None]


def test_the_end_of_the_wait_is_told_as_contention_and_gives_nothing_back(stage: Stage) -> None:
    """SDK-11: the server answered, so there is nothing uncertain."""
    with pytest.raises(LockHeldError):
        stage.play(waiting(stage, wait=25), after(stage, 25, HELD))
    assert stage.verbs() == ["POST"]


@pytest.mark.parametrize(
    "trouble",
    [
        RESET,
        UNREACHABLE,
        BUSY,
        refused(429, "lock_rate_limited"),
        refused(500, "internal"),
        Answer(502, {}, b"<html>"),
        Answer(504, {}, b"<html>"),
    ],
)
def test_trouble_that_passes_is_waited_out(stage: Stage, trouble: Reply) -> None:
    """SDK-11: no answer, a spent quota, a server that restarts."""
    lease = stage.play(waiting(stage), trouble, trouble, GRANT)
    assert {request.token for request in posts(stage)} == {lease.token}
    assert len(rests(stage)) == (1 if isinstance(trouble, TransportError) else 2)
    assert all(step.long for step in stage.asked if isinstance(step, Sleep))


def test_the_server_says_how_long_to_rest(stage: Stage) -> None:
    stage.play(waiting(stage), refused(429, "lock_rate_limited", **{"retry-after": "40"}), GRANT)
    assert 40 <= rests(stage)[0] <= 44


def test_rests_grow_and_are_bounded(stage: Stage) -> None:
    stage.play(waiting(stage), *[UNREACHABLE] * 50, GRANT)
    assert len(rests(stage)) == 49
    assert all(REST_SECONDS_MIN <= rest <= REST_SECONDS_MAX for rest in rests(stage))
    assert len(set(rests(stage))) > 40, "they are drawn, so that many clients do not ask in step"


def test_a_server_that_does_not_wait_is_not_asked_in_a_tight_loop(stage: Stage) -> None:
    """SDK-11: `lock_held` that comes much too soon is followed by a rest."""
    flow = waiting(stage, wait=100)
    asked = 0
    with pytest.raises(LockHeldError):  # noqa: PT012
        step = next(flow)
        while True:
            if isinstance(step, Sleep):
                stage.seconds += step.seconds
                step = flow.send(None)
            else:
                asked += 1
                step = flow.send(HELD)
    assert 20 <= asked <= 100, "mostly rests of 0.2 to 5 seconds"


@pytest.mark.parametrize(("last", "kind"), [(RESET, TransportError), (BUSY, UnavailableError)])
def test_a_wait_that_ends_in_trouble_tells_it_and_gives_back(stage: Stage, last: Reply, kind: type[Exception]) -> None:
    """SDK-2, SDK-11: it may have been granted."""
    with pytest.raises(kind):
        stage.play(waiting(stage, wait=55), after(stage, 50, HELD), after(stage, 5, last), DONE)
    assert stage.verbs() == ["POST", "POST", "DELETE"]
    assert stage.requests()[-1].token == posts(stage)[0].token


def test_a_rest_that_would_outlast_the_wait_ends_it(stage: Stage) -> None:
    spent = refused(429, "lock_rate_limited", **{"retry-after": "40"})
    with pytest.raises(RateLimitedError):
        stage.play(waiting(stage, wait=30), spent)
    assert stage.verbs() == ["POST"]


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (refused(401, "invalid_credentials"), AuthenticationError),
        (LOST, LockOwnershipLostError),
    ],
)
def test_other_refusals_end_the_wait(stage: Stage, answer: Answer, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        stage.play(waiting(stage), answer)
    assert stage.verbs() == ["POST"]


def test_an_answer_of_no_lock_service_ends_the_wait(stage: Stage) -> None:
    with pytest.raises(ServerError):
        stage.play(waiting(stage), Answer(201, {}, b"<html>"), DONE)


@pytest.mark.parametrize("interrupt", [asyncio.CancelledError(), KeyboardInterrupt()])
@pytest.mark.parametrize("before", [[], [HELD], [RESET], [HELD, HELD]])
def test_an_interrupted_wait_leaves_neither_lease_nor_place(
    stage: Stage, before: list[Reply], interrupt: BaseException
) -> None:
    """SDK-11: in whichever request it comes."""
    with pytest.raises(type(interrupt)):
        stage.play(waiting(stage), *before, interrupt, DONE)
    assert stage.requests()[-1].method == "DELETE"
    assert stage.requests()[-1].token == posts(stage)[0].token
    assert stage.requests()[-1].to_the_end


def test_a_wait_that_is_interrupted_while_it_rests_gives_its_place_back(stage: Stage) -> None:
    flow = waiting(stage)
    next(flow)
    assert isinstance(flow.send(HELD), Sleep)
    given_back = flow.throw(asyncio.CancelledError())
    assert isinstance(given_back, Request)
    assert given_back.method == "DELETE"
    with pytest.raises(asyncio.CancelledError):
        flow.send(LOST)


def test_a_lease_that_comes_soon_is_handed_out_with_the_deadline_of_its_request(stage: Stage) -> None:
    """SDK-4, SDK-11."""
    lease = stage.play(waiting(stage, ttl=30), after(stage, 10, GRANT))
    assert stage.verbs() == ["POST"]
    assert lease.deadline == 130.0


@pytest.mark.parametrize("seconds", [10.1, 24.0, 34.0])
def test_a_lease_that_comes_late_is_confirmed_by_a_renewal(stage: Stage, seconds: float) -> None:
    """SDK-11: it began at the grant, whose instant nobody knows here; also when request plus TTL is over already."""
    lease = stage.play(waiting(stage, ttl=30), after(stage, seconds, GRANT), after(stage, 1, RENEWED))
    assert stage.verbs() == ["POST", "PATCH"]
    assert lease.deadline == 100.0 + seconds + 30


@pytest.mark.parametrize("failure", [LOST, refused(401, "invalid_credentials")])
def test_a_lease_that_cannot_be_confirmed_is_given_back_and_waited_for_anew(stage: Stage, failure: Answer) -> None:
    """SDK-11, case 18: with a new token, since the old one may be retired."""
    lease = stage.play(waiting(stage, ttl=30), after(stage, 20, GRANT), failure, DONE, GRANT)
    assert stage.verbs() == ["POST", "PATCH", "DELETE", "POST"]
    first, renewal, released, second = stage.requests()
    assert first.token == renewal.token == released.token != second.token == lease.token


def test_a_grant_that_ran_out_unheard_of_is_waited_for_anew(stage: Stage) -> None:
    """SDK-11, LEASE-5: the answer was lost, and by the next request its lease is in its margin."""
    lease = stage.play(waiting(stage), RESET, LOST, DONE, after(stage, 5, HELD), GRANT)
    assert [step.method for step in stage.requests()] == ["POST", "POST", "DELETE", "POST", "POST"]
    first, again, released, *anew = stage.requests()
    assert first.token == again.token == released.token
    assert {request.token for request in anew} == {lease.token} != {first.token}


def test_a_new_token_that_is_told_of_a_loss_at_once_ends_the_wait(stage: Stage) -> None:
    """SDK-11: it cannot have lapsed, so whatever that is, asking on and on would not mend it."""
    with pytest.raises(LockOwnershipLostError):
        stage.play(waiting(stage), RESET, LOST, DONE, LOST)
    assert stage.verbs() == ["POST", "POST", "DELETE", "POST"]


def test_a_loss_at_the_end_of_the_wait_is_told_and_given_back(stage: Stage) -> None:
    with pytest.raises(LockOwnershipLostError):
        stage.play(waiting(stage, wait=20), RESET, after(stage, 20, LOST), DONE)
    assert stage.verbs() == ["POST", "POST", "DELETE"]


def test_a_confirmation_is_rested_after_as_the_server_says(stage: Stage) -> None:
    spent = refused(429, "lock_rate_limited", **{"retry-after": "40"})
    stage.play(waiting(stage, ttl=30), after(stage, 20, GRANT), spent, DONE, GRANT)
    assert stage.verbs()[:3] == ["POST", "PATCH", "DELETE"]
    assert 40 <= rests(stage)[0] <= 44


def test_a_confirmation_that_fails_at_the_end_of_the_wait_gives_back_and_says_so(stage: Stage) -> None:
    with pytest.raises(TransportError, match="could not be confirmed"):
        stage.play(waiting(stage, wait=20, ttl=30), after(stage, 20, GRANT), LOST, DONE)
    assert stage.verbs() == ["POST", "PATCH", "DELETE"]


@pytest.mark.parametrize(
    ("wait", "kind", "told"),
    [
        (-1, ValueError, "wait must be at least 0 seconds"),
        (math.nan, ValueError, "wait must be at least 0 seconds"),
        (True, TypeError, "wait must be a number of seconds, got bool"),
        ("5", TypeError, "wait must be a number of seconds, got str"),
    ],
)
def test_a_wait_that_is_none_is_refused_before_anything_is_sent(
    stage: Stage, wait: Any, kind: type[Exception], told: str
) -> None:
    with pytest.raises(kind, match=told):
        waiting(stage, wait=wait)
