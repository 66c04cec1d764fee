"""CLI-5: how `-w` asks again, without waiting for it."""

import pytest

from volcano_locks.cli.waiting import REST_SECONDS_FIRST, REST_SECONDS_MAX, Patience, patiently
from volcano_locks.errors import AuthenticationError, LockHeldError


class Time:
    """A clock the test moves."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def now(self) -> float:
        return self.seconds


def rests(patience: Patience, time: Time) -> list[float]:
    found = []
    while (rest := patience.rest_seconds()) is not None:
        found.append(rest)
        time.seconds += rest
    return found


def test_rests_grow_to_their_limit_and_the_last_attempt_is_at_the_end() -> None:
    time = Time()
    found = rests(Patience(60, time.now, lambda: 1.0), time)
    assert found[0] == REST_SECONDS_FIRST
    assert max(found) == REST_SECONDS_MAX
    assert found[:-1] == sorted(found[:-1])
    assert time.seconds == pytest.approx(1060.0)


def test_chance_spreads_a_rest_by_half() -> None:
    assert Patience(60, Time().now, lambda: 0.0).rest_seconds() == REST_SECONDS_FIRST / 2


def test_without_patience_there_is_one_attempt() -> None:
    attempts = []

    def attempt() -> None:
        attempts.append(1)
        raise LockHeldError("held")

    with pytest.raises(LockHeldError):
        patiently(attempt, Patience(0, Time().now))
    assert attempts == [1]


def test_the_servers_wish_to_be_left_alone_is_granted() -> None:
    """Retry-After is not undercut, and one that ends after our patience ends the waiting now."""
    patience = Patience(10, Time().now)
    assert patience.rest_seconds(retry_after=7.0) == 7.0
    assert patience.rest_seconds(retry_after=11.0) is None


def test_a_refusal_that_time_does_not_heal_is_final() -> None:
    def attempt() -> None:
        raise AuthenticationError("no")

    with pytest.raises(AuthenticationError):
        patiently(attempt, Patience(3600, Time().now))
