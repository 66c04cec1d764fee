"""The pure rules of the history: an entry is the same before and after the commit that stores it (HISTORY rules)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from volcano_locks_server.rules.history import (
    HeldTimes,
    Period,
    entry_at_purge,
    entry_of,
    expired_entry,
    held_times,
    with_last_hold,
)
from volcano_locks_server.rules.hold import HoldEntry, HoldFacts, Requester
from volcano_locks_server.rules.lease import (
    GRACE_MS,
    Acquire,
    Command,
    ForceRelease,
    Free,
    Held,
    Read,
    Release,
    Renew,
    RevokeGrant,
    decide,
)
from volcano_locks_server.stores.history_cells import entry_in, entry_text, facts_of, hold_cell, last_hold_of

ME, OTHER = b"m" * 32, b"o" * 32
BEGAN_MS = 1_000_000
BY = Requester("key-1", "worker", "192.0.2.7", "ua")

instants = st.integers(BEGAN_MS, BEGAN_MS + 40_000)
commands = st.sampled_from(
    [
        Acquire(ME, 30, "host/me", BY),
        Acquire(OTHER, 30, "host/other", BY),
        Renew(ME, 30),
        Release(ME),
        Release(OTHER),
        ForceRelease(None, "why", BY),
        ForceRelease(7),
        RevokeGrant(ME, BEGAN_MS, BEGAN_MS),
        Read(),
    ]
)


@given(st.lists(st.tuples(st.integers(0, 40_000), commands), max_size=12))
def test_a_reader_sees_each_hold_once_and_its_end_never_changes(steps: list[tuple[int, Command]]) -> None:
    """HISTORY-1, HISTORY-3: what readers derive from a record and find stored is each hold once, in order."""
    record: Held | Free | None = None
    stored: list[HoldEntry] = []
    now_ms = BEGAN_MS
    tokens: list[int] = []
    for span_ms, command in steps:
        now_ms += span_ms
        derived = None if record is None else entry_of(record, now_ms)
        after, _outcome = decide(record, command, now_ms)
        if after is not None and after is not record:
            after, entry = with_last_hold(record, after, command, now_ms)
            if derived is not None:
                ended = entry or entry_of(after, now_ms)
                assert ended is not None
                assert ended.fencing_token == derived.fencing_token
                is_renewal = entry is None and isinstance(after, Held)
                assert ended == derived or is_renewal or (derived.ended is None and ended.ended_at_ms == now_ms)
            stored += [] if entry is None else [entry]
        if isinstance(after, Held) and after.fencing_token not in tokens:
            tokens.append(after.fencing_token)
        record = after
    current = None if record is None else entry_of(record, now_ms)
    shown = [one.fencing_token for one in stored] + ([] if current is None else [current.fencing_token])
    assert shown == tokens
    assert all(one.ended is not None and one.began_at_ms <= (one.ended_at_ms or 0) for one in stored)


def lease(expires_at_ms: int = BEGAN_MS + 30_000) -> Held:
    return Held(ME, 7, expires_at_ms, BEGAN_MS + 90_000, BEGAN_MS, BEGAN_MS, 30, "host/me", facts=HoldFacts(BY, "free"))


@pytest.mark.parametrize(
    ("command", "ended", "by", "reason"),
    [
        (Release(ME), "released", None, None),
        (RevokeGrant(ME, 7, BEGAN_MS), "released", None, None),
        (ForceRelease(7, "stuck", BY), "forced", "worker", "stuck"),
        (ForceRelease(), "forced", None, None),
    ],
)
def test_each_command_ends_a_hold_in_its_way(command: Command, ended: str, by: str | None, reason: str | None) -> None:
    """HISTORY-1."""
    after, _outcome = decide(lease(), command, BEGAN_MS + 5)
    assert after is not None
    record, displaced = with_last_hold(lease(), after, command, BEGAN_MS + 5)
    entry = entry_of(record, BEGAN_MS + 10**9)
    assert displaced is None
    assert entry is not None
    assert entry_at_purge(record) == entry
    assert (entry.ended, entry.ended_by, entry.reason, entry.ended_at_ms) == (ended, by, reason, BEGAN_MS + 5)


@given(st.lists(st.integers(0, 10**9), min_size=2, max_size=200))
def test_percentiles_are_held_times_in_order(times_ms: list[int]) -> None:
    """HISTORY-6: a percentile is one of the times, in order, and half of them are at most the p50."""
    entries = [HoldEntry(1, 0, 0, ended="released", ended_at_ms=time_ms) for time_ms in times_ms]
    holds, p50_ms, p95_ms, maximum_ms = held_times([*entries, HoldEntry(2, 0, 0)])
    assert holds == len(times_ms)
    assert p50_ms in times_ms
    assert p95_ms in times_ms
    assert maximum_ms == max(times_ms)
    assert p50_ms is not None
    assert p95_ms is not None
    assert p50_ms <= p95_ms <= maximum_ms
    assert sum(time_ms <= p50_ms for time_ms in times_ms) * 2 >= len(times_ms)
    assert held_times([]) == HeldTimes(0, None, None, None)


@given(began=instants, lasted=st.none() | st.integers(0, 1_000), at=instants, span=st.integers(1, 2_000))
def test_a_period_has_what_lasted_in_it(began: int, lasted: int | None, at: int, span: int) -> None:
    """HISTORY-5: `at` is a period of one instant."""
    entry = HoldEntry(1, began, began, ended_at_ms=None if lasted is None else began + lasted)
    ends = float("inf") if lasted is None else began + lasted
    assert Period(at_ms=at).has(entry) == (began <= at < ends)
    assert Period(from_ms=at, to_ms=at + span).has(entry) == (began < at + span and ends > at)
    assert Period().has(entry)


def test_facts_count_only_for_the_lease_that_they_belong_to() -> None:
    """HISTORY-2: a node of 0.1.0 leaves the column behind when it writes another lease."""
    cell = hold_cell(lease())
    assert facts_of(cell, 7) == HoldFacts(BY, "free")
    assert facts_of(cell, 8) is None
    assert facts_of("[7,", 7) is None
    assert facts_of(None, 7) is None


def test_an_entry_survives_its_stored_form_and_damage_is_no_entry() -> None:
    """HISTORY-5, LEASE-18."""
    entry = expired_entry(lease())
    assert entry.ended_at_ms == BEGAN_MS + 30_000 + GRACE_MS
    assert entry_in(entry_text(entry)) == entry
    assert entry_in('["x"]') is None
    assert entry_in(b"\xff") is None


def test_the_entry_in_a_free_record_counts_only_for_its_last_hold() -> None:
    """HISTORY-2: also if a node of 0.1.0 left facts in the column of a lock that it released."""
    free = Free(7, BEGAN_MS, last_hold=expired_entry(lease()))
    cell = hold_cell(free)
    assert last_hold_of(cell, 7) == free.last_hold
    assert last_hold_of(cell, 8) is None
    assert facts_of(cell, 7) is None
    assert last_hold_of(hold_cell(lease()), 7) is None
    assert last_hold_of(None, 7) is None
    assert hold_cell(Free(7, BEGAN_MS)) is None
