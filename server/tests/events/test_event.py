"""Lock events: a table of the record before, the command, and the events that it makes (EVENT-2)."""

import pytest

from volcano_locks_server.events import LockEvent, lock_events
from volcano_locks_server.ports.lock_store import RecordKey
from volcano_locks_server.rules.lease import (
    GRACE_MS,
    MARGIN_MS,
    Acquire,
    Command,
    ForceRelease,
    Held,
    LockRecord,
    Read,
    Release,
    Renew,
    decide,
)
from volcano_locks_server.rules.values import LockKey

LOCK = RecordKey("project", LockKey("nightly"))
MINE, OTHER = b"m" * 32, b"o" * 32
NOW = 1_000_000
TAKE = Acquire(MINE, 30, "host/1")


def events_of(
    before: LockRecord | None, command: Command, now_ms: int, why: str | None = None
) -> tuple[LockEvent, ...]:
    after, outcome = decide(before, command, now_ms)
    return lock_events(LOCK, command, before, after, outcome, now_ms=now_ms, why=why)


HELD = decide(None, TAKE, NOW).record
assert isinstance(HELD, Held)
TOKEN, OVER = HELD.fencing_token, HELD.expires_at_ms + GRACE_MS
FREE = decide(HELD, Release(MINE), NOW + 1).record
EXPIRED = LockEvent("expired", LOCK, TOKEN, "host/1", OVER, "not_renewed")


@pytest.mark.parametrize(
    ("before", "command", "now_ms", "expected"),
    [
        (None, TAKE, NOW, [LockEvent("acquired", LOCK, NOW, "host/1", NOW, "free", NOW + 30_000)]),
        (FREE, Acquire(OTHER, 5), NOW + 9, [LockEvent("acquired", LOCK, NOW + 9, None, NOW + 9, "free", NOW + 5_009)]),
        (HELD, TAKE, NOW + 5, [LockEvent("renewed", LOCK, TOKEN, "host/1", NOW + 5, "repeated", NOW + 30_005)]),
        (
            HELD,
            Renew(MINE, 60, "host/2"),
            NOW + 5,
            [LockEvent("renewed", LOCK, TOKEN, "host/2", NOW + 5, "renewed", NOW + 60_005)],
        ),
        (HELD, Release(MINE), NOW + 7, [LockEvent("released", LOCK, TOKEN, "host/1", NOW + 7, "released")]),
        (HELD, ForceRelease(), NOW + 7, [LockEvent("force_released", LOCK, TOKEN, "host/1", NOW + 7, "forced")]),
        (
            HELD,
            Acquire(OTHER, 5),
            OVER + 3,
            [EXPIRED, LockEvent("acquired", LOCK, OVER + 3, None, OVER + 3, "taken_over", OVER + 5_003)],
        ),
        (HELD, Release(MINE), OVER - 1, [LockEvent("released", LOCK, TOKEN, "host/1", OVER - 1, "released")]),
        (HELD, Release(MINE), OVER, [EXPIRED]),
        (HELD, ForceRelease(), OVER, [EXPIRED]),
        (HELD, Release(OTHER), OVER, [EXPIRED]),
    ],
)
def test_each_change_makes_its_event_with_its_reason(
    before: LockRecord | None, command: Command, now_ms: int, expected: list[LockEvent]
) -> None:
    """EVENT-2."""
    assert list(events_of(before, command, now_ms)) == expected


@pytest.mark.parametrize(
    ("before", "command", "now_ms"),
    [
        (HELD, Acquire(OTHER, 30), NOW + 1),
        (HELD, TAKE, HELD.expires_at_ms - MARGIN_MS),
        (HELD, Renew(OTHER, 30), NOW + 1),
        (HELD, Release(OTHER), NOW + 1),
        (HELD, Read(), NOW + 1),
        (None, Read(), NOW),
        (None, Release(MINE), NOW),
        (FREE, Release(MINE), NOW + 2),
        (FREE, Release(OTHER), NOW + 2),
        (FREE, ForceRelease(), NOW + 2),
        (FREE, TAKE, NOW + 2),
    ],
)
def test_refusals_reads_and_releases_of_free_locks_make_no_event(
    before: LockRecord | None, command: Command, now_ms: int
) -> None:
    """EVENT-2."""
    assert events_of(before, command, now_ms) == ()


def test_a_given_reason_replaces_the_usual_one() -> None:
    """EVENT-2."""
    assert [event.why for event in events_of(FREE, Acquire(OTHER, 30), NOW + 9, "waited")] == ["waited"]
    assert [event.why for event in events_of(HELD, Release(MINE), NOW + 9, "gave_up")] == ["gave_up"]
    assert [event.why for event in events_of(HELD, Acquire(OTHER, 30), OVER, "waited")] == ["not_renewed", "waited"]


def test_no_event_holds_a_digest() -> None:
    """LEASE-15, EVENT-2: neither its fields nor its repr prove ownership."""
    commands: list[Command] = [TAKE, Renew(MINE, 30), Release(MINE), ForceRelease(), Acquire(OTHER, 30)]
    for command in commands:
        for now_ms in (NOW + 1, OVER):
            for event in events_of(HELD, command, now_ms):
                assert b"mmm" not in repr(event).encode()
                assert b"ooo" not in repr(event).encode()
