"""The plan of renewals, asked at instants we choose: no clock, no thread, no socket (SDK-3, SDK-4)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from volcano_locks.protocol.renewal_plan import (
    ACQUISITION_SECONDS_MAX,
    BACK_OFF_SECONDS_MIN,
    MARGIN_SECONDS,
    Heartbeat,
    Lost,
    Renew,
    Wait,
)


def plan(ttl: int = 30, *, timeout: float = 10.0, jitter: float = 0.5, at: float = 0.0) -> Heartbeat:
    return Heartbeat(ttl, acquired_at=at, deadline=at + ttl, timeout_seconds=timeout, jitter=jitter)


@pytest.mark.parametrize(
    ("now", "step"),
    [
        (0.0, Wait(10.0)),
        (9.99, Wait(10.0)),
        (10.0, Renew(10.0)),
        (15.0, Renew(7.5)),
        (28.5, Renew(1.0)),
        (29.0, Wait(30.0)),
        (29.99, Wait(30.0)),
        (30.0, Lost()),
        (31.0, Lost()),
    ],
)
def test_steps_of_a_lease_of_30_seconds_without_answers(now: float, step: object) -> None:
    """SDK-3: due at a third; in the margin nothing is asked any more; SDK-4: lost at the deadline, not before."""
    assert plan().next_step(now) == step


def test_a_confirmed_renewal_moves_the_deadline_to_its_sending_time_plus_ttl() -> None:
    """SDK-4 and case 3: the deadline stays where it was until `renewed`."""
    heartbeat = plan()
    assert heartbeat.next_step(10.0) == Renew(10.0)
    assert heartbeat.deadline == 30.0
    assert heartbeat.renewed(deadline=40.0, now=12.0)
    assert heartbeat.deadline == 40.0
    assert heartbeat.next_step(12.0) == Wait(20.0)


def test_an_answer_after_the_deadline_changes_nothing() -> None:
    """case 11: what was lost for an instant stays lost."""
    heartbeat = plan()
    assert not heartbeat.renewed(deadline=59.0, now=30.0)
    assert heartbeat.next_step(30.0) == Lost()


def test_failures_back_off_and_a_success_forgets_them() -> None:
    """case 4: a failed renewal is tried again, each time a little later, while the lease lives."""
    heartbeat = plan()
    pauses = []
    now = 10.0
    for _ in range(4):
        heartbeat.failed(now)
        step = heartbeat.next_step(now)
        assert isinstance(step, Wait)
        pauses.append(step.until - now)
        now = step.until
        assert isinstance(heartbeat.next_step(now), Renew)
    assert pauses == pytest.approx([0.2, 0.4, 0.8, 1.6])
    heartbeat.renewed(now + 30, now)
    heartbeat.failed(now + 10)
    again = heartbeat.next_step(now + 10)
    assert isinstance(again, Wait)
    assert again.until == pytest.approx(now + 10.2)


def test_retry_after_is_honoured_when_it_leaves_time_for_another_try() -> None:
    """SDK-3: four seconds are waited for; an hour is cut to half of what is left."""
    heartbeat = plan()
    heartbeat.failed(10.0, retry_after=4.0)
    assert heartbeat.next_step(10.0) == Wait(14.0)
    heartbeat.failed(14.0, retry_after=3600.0)
    assert heartbeat.next_step(14.0) == Wait(21.5)


def test_jitter_spreads_holders_around_a_third() -> None:
    """SDK-3: many holders started together do not renew together."""
    assert plan(jitter=0.0).next_step(0.0) == Wait(9.0)
    latest = plan(jitter=0.999999).next_step(0.0)
    assert isinstance(latest, Wait)
    assert latest.until == pytest.approx(11.0, abs=0.001)


def test_one_acquisition_ends_after_90_days_however_often_it_is_renewed() -> None:
    """SDK-7: the server caps every renewal at the acquisition's deadline, so the client's clock does too."""
    heartbeat = plan(ttl=3_000_000)
    for sent_at in (2_000_000.0, 4_000_000.0, 6_000_000.0):
        assert heartbeat.renewed(sent_at + 3_000_000, sent_at)
    assert heartbeat.deadline == ACQUISITION_SECONDS_MAX
    assert heartbeat.next_step(7_000_000.0) == Wait(ACQUISITION_SECONDS_MAX)
    assert heartbeat.next_step(ACQUISITION_SECONDS_MAX) == Lost()


def test_a_lease_of_90_days_waits_until_its_end() -> None:
    """SDK-7: no overflow, no renewal that could not prolong it."""
    assert plan(ttl=ACQUISITION_SECONDS_MAX).next_step(0.0) == Wait(ACQUISITION_SECONDS_MAX)


ttls = st.integers(5, ACQUISITION_SECONDS_MAX - 1)
outcomes = st.lists(st.tuples(st.sampled_from(["ok", "fail", "hang"]), st.floats(0, 4000)), max_size=60)


@given(ttl=ttls, jitter=st.floats(0, 0.999), outcomes=outcomes, timeout=st.floats(0.1, 60))
def test_whatever_the_server_does_the_plan_is_safe_and_never_spins(
    ttl: int, jitter: float, outcomes: list[tuple[str, float]], timeout: float
) -> None:
    """SDK-3, SDK-4 and case 6: Lost exactly from the deadline on; no request outlives the lease; no busy loop."""
    heartbeat = plan(ttl, timeout=timeout, jitter=jitter)
    now, confirmed, last_try = 0.0, 0.0, -1.0
    for outcome, retry_after in outcomes:
        step = heartbeat.next_step(now)
        while isinstance(step, Wait):
            assert now < step.until <= heartbeat.deadline
            now = step.until
            step = heartbeat.next_step(now)
        assert heartbeat.deadline == min(confirmed + ttl, ACQUISITION_SECONDS_MAX)
        assert isinstance(step, Lost) == (now >= heartbeat.deadline)
        if isinstance(step, Lost):
            return
        assert 0 < step.timeout_seconds <= min(timeout, heartbeat.deadline - now)
        assert now < heartbeat.deadline - MARGIN_SECONDS
        assert last_try < 0 or now - last_try >= BACK_OFF_SECONDS_MIN * 0.99
        last_try = now
        if outcome == "ok":
            confirmed = now
            assert heartbeat.renewed(now + ttl, now)
        elif outcome == "fail":
            heartbeat.failed(now, retry_after)
        else:
            now += step.timeout_seconds
            heartbeat.failed(now)


@given(ttl=st.integers(5, 3600), jitter=st.floats(0, 0.999), retry_after=st.floats(0, 4000))
def test_a_single_failure_always_leaves_another_try(ttl: int, jitter: float, retry_after: float) -> None:
    """case 4: the first 429, 503 or timeout costs nobody the lease, whatever `Retry-After` says."""
    heartbeat = plan(ttl, jitter=jitter)
    first = heartbeat.next_step(0.0)
    assert isinstance(first, Wait)
    heartbeat.failed(first.until, retry_after)
    again = heartbeat.next_step(first.until)
    assert isinstance(again, Wait)
    assert again.until < heartbeat.deadline - MARGIN_SECONDS
    assert isinstance(heartbeat.next_step(again.until), Renew)
