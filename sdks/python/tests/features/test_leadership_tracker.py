"""Views and events in any order give the current leadership (SDK-14)."""

from typing import Any

import pytest

from volcano_locks import Leadership
from volcano_locks.features.watch import LeadershipTracker
from volcano_locks.protocol.lock_view import LockView
from volcano_locks.testing.clock import START

FREE = Leadership(False)


def held(token: int | None) -> Leadership:
    return Leadership(True, fencing_token=token)


def view(token: int | None, *, is_held: bool) -> LockView:
    return LockView("k", is_held, None, START if is_held else None, None, None, None, token, 0)


def event(token: int) -> dict[str, Any]:
    return {"fencing_token": token, "holder": "h", "at": "2026-01-01T00:00:00Z"}


def test_an_old_event_changes_nothing() -> None:
    """SDK-14: a resumed stream repeats events older than the view."""
    tracker = LeadershipTracker()
    tracker.apply_view(view(7, is_held=True))
    for kind, token in [("acquired", 5), ("released", 5), ("acquired", 6), ("expired", 6), ("renewed", 7)]:
        tracker.apply_event(kind, event(token))
        assert tracker.latest == held(7)
    tracker.apply_event("released", event(7))
    assert tracker.latest == FREE


def test_an_ended_lease_does_not_return() -> None:
    """SDK-14."""
    tracker = LeadershipTracker()
    tracker.apply_view(view(7, is_held=False))
    tracker.apply_event("acquired", event(7))
    tracker.apply_view(view(7, is_held=True))
    assert tracker.latest == FREE
    tracker.apply_event("acquired", event(8))
    assert tracker.latest == held(8)
    tracker.apply_event("force_released", event(9))
    assert tracker.latest == FREE, "its acquisition was missed"


@pytest.mark.parametrize("kind", ["waiting", "gave_up", "reset", "", "something new"])
def test_other_events_are_ignored(kind: str) -> None:
    tracker = LeadershipTracker()
    tracker.apply_view(view(7, is_held=True))
    tracker.apply_event(kind, event(9))
    tracker.apply_event("acquired", {"fencing_token": None, "at": "2026-01-01T00:00:00Z"})
    tracker.apply_event("acquired", {"fencing_token": 9})
    tracker.apply_event("acquired", {})
    assert tracker.latest == held(7)
