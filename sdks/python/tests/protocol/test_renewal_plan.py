"""The renewal plan at chosen instants: no clock, no thread, no socket (SDK-3, SDK-4)."""

from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from volcano_locks.protocol.arguments import checked_renew_every
from volcano_locks.protocol.renewal_plan import (
    ACQUISITION_SECONDS_MAX,
    MARGIN_SECONDS,
    RETRY_SECONDS_MIN,
    UNLIMITED,
    Lost,
    Renew,
    RenewalPlan,
    SeenQuota,
    Wait,
)


def new_plan(ttl: int = 30, *, timeout: float = 10.0, jitter: float = 0.5, at: float = 0.0) -> RenewalPlan:
    return RenewalPlan(ttl, acquired_at=at, deadline=at + ttl, timeout_seconds=timeout, jitter=jitter)


@pytest.mark.parametrize(
    ("now", "action"),
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
def test_actions_of_a_lease_of_30_seconds_without_renewals(now: float, action: object) -> None:
    """SDK-3: due at a third, nothing in the margin; SDK-4: lost at the deadline, not before."""
    assert new_plan().next_action(now) == action


def test_a_confirmed_renewal_moves_the_deadline_to_its_sending_time_plus_ttl() -> None:
    """SDK-4 and case 3: the deadline does not move before `renewed`."""
    plan = new_plan()
    assert plan.next_action(10.0) == Renew(10.0)
    assert plan.deadline == 30.0
    assert plan.renewed(deadline=40.0, now=12.0)
    assert plan.deadline == 40.0
    assert plan.next_action(12.0) == Wait(20.0)


def test_a_renewal_confirmed_after_the_deadline_is_ignored() -> None:
    """case 11: a loss is final."""
    plan = new_plan()
    assert not plan.renewed(deadline=59.0, now=30.0)
    assert plan.next_action(30.0) == Lost()


def test_failures_back_off_and_a_success_resets_them() -> None:
    """case 4: a failed renewal is retried with growing delays while the lease lives."""
    plan = new_plan()
    delays = []
    now = 10.0
    for _ in range(4):
        plan.failed(now)
        action = plan.next_action(now)
        assert isinstance(action, Wait)
        delays.append(action.until - now)
        now = action.until
        assert isinstance(plan.next_action(now), Renew)
    assert delays == pytest.approx([0.2, 0.4, 0.8, 1.6])
    plan.renewed(now + 30, now)
    plan.failed(now + 10)
    again = plan.next_action(now + 10)
    assert isinstance(again, Wait)
    assert again.until == pytest.approx(now + 10.2)


def test_retry_after_is_honoured_if_it_leaves_time_for_another_attempt() -> None:
    """SDK-3: four seconds are honoured; an hour is cut to half of the remaining time."""
    plan = new_plan()
    plan.failed(10.0, retry_after=4.0)
    assert plan.next_action(10.0) == Wait(14.0)
    plan.failed(14.0, retry_after=3600.0)
    assert plan.next_action(14.0) == Wait(21.5)


def test_jitter_spreads_holders_around_a_third() -> None:
    """SDK-3: many holders started together do not renew together."""
    assert new_plan(jitter=0.0).next_action(0.0) == Wait(9.0)
    latest = new_plan(jitter=0.999999).next_action(0.0)
    assert isinstance(latest, Wait)
    assert latest.until == pytest.approx(11.0, abs=0.001)


def test_one_acquisition_ends_after_90_days_however_often_it_is_renewed() -> None:
    """SDK-7: the server caps renewals at the acquisition's deadline, so the client does too."""
    plan = new_plan(ttl=3_000_000)
    for sent_at in (2_000_000.0, 4_000_000.0, 6_000_000.0):
        assert plan.renewed(sent_at + 3_000_000, sent_at)
    assert plan.deadline == ACQUISITION_SECONDS_MAX
    assert plan.next_action(ACQUISITION_SECONDS_MAX - MARGIN_SECONDS) == Wait(ACQUISITION_SECONDS_MAX)
    assert plan.next_action(ACQUISITION_SECONDS_MAX) == Lost()


@pytest.mark.parametrize("ttl", [201, 86_400, ACQUISITION_SECONDS_MAX])
def test_a_long_lease_is_renewed_within_a_minute(ttl: int) -> None:
    """SDK-3, case 51: also a lease of 90 days, which no renewal extends; jitter only shortens the minute."""
    assert new_plan(ttl, jitter=0.0).next_action(0.0) == Wait(60.0)
    plan = new_plan(ttl, jitter=0.5)
    assert plan.next_action(0.0) == Wait(57.0)
    assert plan.renewed(57.0 + ttl, 57.0)
    assert plan.next_action(57.0) == Wait(114.0)


@pytest.mark.parametrize(
    ("limit", "remaining", "at"), [(0, 0, 57.0), (600, 301, 57.0), (600, 300, 200.0), (600, 0, 200.0), (1, 0, 200.0)]
)
def test_a_project_short_of_its_quota_renews_at_a_third(limit: int, remaining: int, at: float) -> None:
    """SDK-3: the minute holds above half of the limit, or without a limit."""
    quota = SeenQuota(limit, remaining)
    started = RenewalPlan(600, acquired_at=0.0, deadline=600.0, timeout_seconds=10.0, quota=quota)
    assert started.next_action(0.0) == Wait(at)
    renewed = new_plan(600)
    assert renewed.renewed(600.0, 0.0, quota)
    assert renewed.next_action(0.0) == Wait(at)


def test_a_renewal_without_quota_headers_keeps_the_last_quota() -> None:
    plan = RenewalPlan(600, acquired_at=0.0, deadline=600.0, timeout_seconds=10.0, quota=SeenQuota(10, 1))
    assert plan.renewed(800.0, 200.0)
    assert plan.next_action(200.0) == Wait(400.0)


@pytest.mark.parametrize("quota", [UNLIMITED, SeenQuota(10, 0)])
def test_renew_every_replaces_third_and_minute(quota: SeenQuota) -> None:
    """SDK-3: also if the interval is longer than a minute; jitter only shortens it."""
    plans = [
        RenewalPlan(3600, 0.0, 3600.0, 10.0, jitter, renew_every=1000.0, quota=quota) for jitter in (0.0, 0.5, 0.999999)
    ]
    assert [plan.next_action(0.0) for plan in plans[:2]] == [Wait(1000.0), Wait(950.0)]
    latest = plans[2].next_action(0.0)
    assert isinstance(latest, Wait)
    assert latest.until == pytest.approx(900.0, abs=0.01)


@pytest.mark.parametrize(("renew_every", "ttl"), [(1, 5), (1.5, 5), (10, 30), (20, 60), (2_592_000, 7_776_000)])
def test_a_valid_renewal_interval(renew_every: float, ttl: int) -> None:
    """SDK-3."""
    assert checked_renew_every(renew_every, ttl) == renew_every
    assert checked_renew_every(None, ttl) is None


@pytest.mark.parametrize("renew_every", [0, 0.99, 10.01, -1, inf, nan])
def test_a_renewal_interval_out_of_range(renew_every: float) -> None:
    """SDK-3: from 1 second to a third of the TTL."""
    with pytest.raises(ValueError, match="renew_every"):
        checked_renew_every(renew_every, 30)


@pytest.mark.parametrize("renew_every", ["10", True, b"1"])
def test_a_renewal_interval_of_another_type(renew_every: object) -> None:
    with pytest.raises(TypeError, match="renew_every"):
        checked_renew_every(renew_every, 30)


ttls = st.integers(5, ACQUISITION_SECONDS_MAX)
outcomes = st.lists(st.tuples(st.sampled_from(["ok", "fail", "hang"]), st.floats(0, 4000)), max_size=60)


@given(ttl=ttls, jitter=st.floats(0, 0.999), outcomes=outcomes, timeout=st.floats(0.1, 60))
def test_for_any_responses_the_plan_is_safe_and_never_spins(
    ttl: int, jitter: float, outcomes: list[tuple[str, float]], timeout: float
) -> None:
    """SDK-3, SDK-4 and case 6: Lost exactly from the deadline on; no request outlives the lease."""
    plan = new_plan(ttl, timeout=timeout, jitter=jitter)
    now, confirmed, last_attempt = 0.0, 0.0, -1.0
    for outcome, retry_after in outcomes:
        action = plan.next_action(now)
        while isinstance(action, Wait):
            assert now < action.until <= plan.deadline
            now = action.until
            action = plan.next_action(now)
        assert plan.deadline == min(confirmed + ttl, ACQUISITION_SECONDS_MAX)
        assert isinstance(action, Lost) == (now >= plan.deadline)
        if isinstance(action, Lost):
            return
        assert 0 < action.timeout_seconds <= min(timeout, plan.deadline - now)
        assert now < plan.deadline - MARGIN_SECONDS
        assert last_attempt < 0 or now - last_attempt >= RETRY_SECONDS_MIN * 0.99
        last_attempt = now
        if outcome == "ok":
            confirmed = now
            assert plan.renewed(now + ttl, now)
        elif outcome == "fail":
            plan.failed(now, retry_after)
        else:
            now += action.timeout_seconds
            plan.failed(now)


@given(ttl=st.integers(5, 3600), jitter=st.floats(0, 0.999), retry_after=st.floats(0, 4000))
def test_a_single_failure_always_leaves_another_attempt(ttl: int, jitter: float, retry_after: float) -> None:
    """case 4: the first 429, 503 or time-out never costs the lease, whatever its `Retry-After`."""
    plan = new_plan(ttl, jitter=jitter)
    first = plan.next_action(0.0)
    assert isinstance(first, Wait)
    plan.failed(first.until, retry_after)
    again = plan.next_action(first.until)
    assert isinstance(again, Wait)
    assert again.until < plan.deadline - MARGIN_SECONDS
    assert isinstance(plan.next_action(again.until), Renew)
