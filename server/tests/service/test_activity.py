"""What a server remembers of its last hour, and that its memory is bounded (UI-11)."""

import pytest

from volcano_locks_server.ports.lock_store import RecordKey
from volcano_locks_server.rules.values import LockKey
from volcano_locks_server.service.activity import (
    CONTENDED_MAX,
    FORCED,
    MINUTES,
    PROJECTS_MAX,
    Activity,
    Times,
    times_ms,
)

NOW_MS = 1_784_556_000_000
ENDS_AT = NOW_MS // 1_000 + 60


def lock(key: str = "nightly", project_id: str = "p-1") -> RecordKey:
    return RecordKey(project_id, LockKey(key))


def counts(activity: Activity, project_id: str | None = "p-1", minutes_later: int = 0) -> list[dict[str, int]]:
    """The counts of the minutes that have any."""
    report = activity.report(project_id, NOW_MS + minutes_later * 60_000)
    assert len(report.minutes) == MINUTES
    return [minute.counts for minute, _ in report.minutes if minute.counts]


def test_outcomes_are_counted_by_what_they_mean() -> None:
    activity = Activity()
    for outcome in ("acquired", "taken_over", "renewed", "lock_held", "lock_ownership_lost", FORCED, "released"):
        activity.request(lock(), outcome, ENDS_AT, 600)
    activity.queued(lock(), NOW_MS)
    activity.handed_off(lock(), NOW_MS)
    activity.waited("p-1", "acquired", ENDS_AT, 0.2)
    activity.waited("p-1", "lock_held", ENDS_AT, 0.2)
    assert counts(activity) == [
        {
            "requests": 9,
            "grants": 3,
            "contended": 2,
            "hand_offs": 1,
            "not_renewed": 1,
            "forced": 1,
            "ownership_lost": 1,
        }
    ]
    assert activity.report("p-1", NOW_MS).requests_per_minute == 600
    assert activity.report("p-1", NOW_MS).contended == [("nightly", 2)]


def test_a_project_sees_its_own_and_the_sum_has_all() -> None:
    activity = Activity()
    activity.request(lock(), "acquired", ENDS_AT, 600)
    activity.request(lock(project_id="p-2"), "lock_held", ENDS_AT, 600)
    assert counts(activity) == [{"requests": 1, "grants": 1}]
    assert counts(activity, "p-3") == []
    assert counts(activity, None) == [{"requests": 2, "grants": 1, "contended": 1}]
    assert activity.report(None, NOW_MS).contended == []


def test_minutes_older_than_an_hour_are_forgotten() -> None:
    activity = Activity()
    for minute in range(100):
        activity.request(lock(), "acquired", ENDS_AT + minute * 60, 0)
        activity.committed(0.001, NOW_MS + minute * 60_000)
    assert len(counts(activity, minutes_later=99)) == MINUTES
    assert len(counts(activity, minutes_later=129)) == MINUTES - 30
    assert counts(activity, minutes_later=300) == []
    assert [times for _, times in activity.report(None, NOW_MS + 300 * 60_000).minutes if times is not None] == []


def test_a_request_with_a_clock_behind_counts_in_the_newer_minute() -> None:
    activity = Activity()
    activity.request(lock(), "acquired", ENDS_AT + 60, 0)
    activity.request(lock(), "acquired", ENDS_AT, 0)
    assert counts(activity, minutes_later=1) == [{"requests": 2, "grants": 2}]


def test_the_project_that_was_quiet_for_longest_is_forgotten() -> None:
    activity = Activity()
    for number in range(PROJECTS_MAX):
        activity.request(lock(project_id=f"p-{number}"), "acquired", ENDS_AT, 0)
    activity.request(lock(project_id="p-0"), "acquired", ENDS_AT + 60, 0)
    activity.request(lock(project_id="new"), "acquired", ENDS_AT + 60, 0)
    known = [name for name in ("p-0", "p-1", "p-2", "new") if counts(activity, name, minutes_later=1)]
    assert known == ["p-0", "p-2", "new"]


def test_the_most_contended_locks_are_found_among_many() -> None:
    activity = Activity()
    for number in range(20 * CONTENDED_MAX):
        activity.request(lock(f"once-{number}"), "lock_held", ENDS_AT, 0)
        activity.request(lock("often"), "lock_held", ENDS_AT, 0)
    (first, count), *rest = activity.report("p-1", NOW_MS).contended
    assert (first, count) == ("often", 20 * CONTENDED_MAX)
    assert len(rest) == 9


def test_contended_locks_are_forgotten_after_an_hour() -> None:
    activity = Activity()
    activity.request(lock("first"), "lock_held", ENDS_AT, 0)
    activity.request(lock("second"), "lock_held", ENDS_AT + 1_800, 0)
    assert [key for key, _ in activity.report("p-1", NOW_MS + 1_800_000).contended] == ["first", "second"]
    assert [key for key, _ in activity.report("p-1", NOW_MS + 3_600_000).contended] == ["second"]
    assert activity.report("p-1", NOW_MS + 7_200_000).contended == []


@pytest.mark.parametrize("milliseconds", [0.01, 1, 20, 3_000, 60_000])
def test_a_percentile_is_at_most_a_fifth_too_high(milliseconds: float) -> None:
    times = Times()
    for _ in range(95):
        times.add(milliseconds / 1_000)
    for _ in range(5):
        times.add(milliseconds * 9 / 1_000)
    found = times_ms([times])
    assert found is not None
    for percentile in found.values():
        assert percentile is not None
        assert max(0.25, milliseconds) * 0.995 <= percentile <= max(0.25, milliseconds) * 1.205


def test_no_times_have_no_percentile() -> None:
    assert times_ms([Times()]) is None
