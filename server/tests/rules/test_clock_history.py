"""Time that is not known to have passed ends no lease, whatever the clock says (LEASE-17); tokens after a reset.

The model keeps two times: that of the store's clock, and real time, which only `time_passes` moves. It checks each
takeover against real time, and that the history never holds a lock longer than it may.
"""

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from msgspec.structs import replace

from volcano_locks_server.rules.clock_history import (
    HOLD_MS_MAX,
    JUMP_MS_MIN,
    NO_HISTORY,
    ClockMark,
    unproven_ms,
)
from volcano_locks_server.rules.lease import (
    GRACE_MS,
    RETENTION_MS,
    Acquire,
    Free,
    Granted,
    Held,
    LockRecord,
    Read,
    Refused,
    Release,
    Renew,
    State,
    blocks_others,
    decide,
    free_in_ms,
    owns,
    purgeable,
)

NOW = 1_800_000_000_000
ME, OTHER = b"m" * 32, b"o" * 32
JUMPED = NO_HISTORY.after_jump(NOW + 60_000, 60_000)

owners = st.sampled_from([ME, OTHER, b"x" * 32])
ttls = st.sampled_from([5, 30, 60, 600])
spans_ms = st.sampled_from([1, 250, 999, 1_000, 4_000, 10_000, 31_000, 61_000, 300_000, 602_000])
jumps_ms = st.sampled_from([JUMP_MS_MIN - 1, JUMP_MS_MIN, 5_000, 60_000, 3_600_000, 31_536_000_000])


def lease(ttl_seconds: int = 60, at_ms: int = NOW, owner: bytes = ME) -> Held:
    granted = decide(None, Acquire(owner, ttl_seconds), at_ms).record
    assert isinstance(granted, Held)
    return granted


@dataclass
class RealGrant:
    """A grant as its holder may rely on it: until real time `until_ms`, at the latest."""

    owner: bytes
    until_ms: int


class Jumps(RuleBasedStateMachine):
    """One lock, and a store's clock that also moves when no time passes. LEASE-17, case 67."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = NOW
        self.real_ms = 0
        self.unnoticed_ms = 0  # of jumps that are too short to count
        self.history = NO_HISTORY
        self.record: LockRecord | None = None
        self.holder: RealGrant | None = None

    @rule(ms=spans_ms)
    def time_passes(self, ms: int) -> None:
        self.now_ms += ms
        self.real_ms += ms
        if not self.history.is_holding(self.now_ms):
            self.unnoticed_ms = 0

    @rule(ms=jumps_ms, knows_records=st.booleans())
    def jump(self, ms: int, knows_records: bool) -> None:
        if ms < JUMP_MS_MIN and self.unnoticed_ms + ms > GRACE_MS:
            return
        last_ms = self.record.expires_at_ms + GRACE_MS if isinstance(self.record, Held) else 0
        self.now_ms += ms
        if ms < JUMP_MS_MIN:
            self.unnoticed_ms += ms
        self.history = self.history.after_jump(self.now_ms, ms, last_ms if knows_records else None)

    @rule(owner=owners, ttl_seconds=ttls)
    def acquire(self, owner: bytes, ttl_seconds: int) -> None:
        outcome = self.do(Acquire(owner, ttl_seconds))
        if isinstance(outcome, Granted):
            if outcome.how != "repeated":
                assert self.holder is None or self.real_ms >= self.holder.until_ms, "taken over early"
            self.holder = RealGrant(owner, self.real_ms + ttl_seconds * 1_000)

    @rule(owner=owners, ttl_seconds=ttls)
    def renew(self, owner: bytes, ttl_seconds: int) -> None:
        if isinstance(self.do(Renew(owner, ttl_seconds)), Granted):
            self.holder = RealGrant(owner, self.real_ms + ttl_seconds * 1_000)

    @rule(owner=owners)
    def release(self, owner: bytes) -> None:
        if self.holder is not None and self.holder.owner == owner and not isinstance(self.do(Release(owner)), Refused):
            self.holder = None

    @rule()
    def purge(self) -> None:
        """LEASE-13: the record of a lease that a holder may rely on is not deleted."""
        presented = self.history.present(self.record, self.now_ms)
        if presented is not None and purgeable(presented, self.now_ms):
            assert self.holder is None or self.real_ms >= self.holder.until_ms
            self.record = None

    @invariant()
    def all_views_agree(self) -> None:
        """LEASE-12: a read, the remaining time and the bound for queries say the same."""
        record = self.history.present(self.record, self.now_ms)
        state = decide(record, Read(), self.now_ms).outcome
        assert isinstance(state, State)
        is_held = state.lease is not None
        assert is_held == blocks_others(record, self.now_ms) == (free_in_ms(record, self.now_ms) > 0)
        if is_held:
            assert isinstance(record, Held)
            assert owns(record, record.owner_digest, self.now_ms)
            assert record.expires_at_ms + GRACE_MS > self.history.over_before_ms(self.now_ms)
            held_by_clock = self.now_ms < record.expires_at_ms + GRACE_MS
            assert held_by_clock or self.now_ms < self.history.hold_until_ms <= self.history.jumped_at_ms + HOLD_MS_MAX
            assert held_by_clock or self.now_ms < self.history.last_hold_ms, "held longer than is reported"

    def do(self, command: Acquire | Renew | Release) -> object:
        presented = self.history.present(self.record, self.now_ms)
        after, outcome = decide(presented, command, self.now_ms)
        if after is not presented:
            self.record = after
        return outcome


TestJumps = Jumps.TestCase
TestJumps.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize(
    ("passed_ms", "is_held"), [(0, True), (60_000 + GRACE_MS - 1, True), (60_000 + GRACE_MS, False)]
)
def test_a_lease_blocks_others_for_as_long_as_it_had_left(passed_ms: int, is_held: bool) -> None:
    """LEASE-17: exactly, and no longer."""
    now_ms = JUMPED.jumped_at_ms + passed_ms
    assert blocks_others(JUMPED.present(lease(60), now_ms), now_ms) is is_held


def test_a_hold_is_bounded() -> None:
    """LEASE-17: a lease of a day is the exception that rests on its fencing token."""
    day = lease(86_400)
    jumped = NO_HISTORY.after_jump(NOW + 10 * 86_400_000, 10 * 86_400_000)
    last_ms = jumped.jumped_at_ms + HOLD_MS_MAX - 1
    assert blocks_others(jumped.present(day, last_ms), last_ms)
    assert not blocks_others(jumped.present(day, last_ms + 1), last_ms + 1)


@pytest.mark.parametrize("apart_ms", [0, 1_000, 30_000, 599_999])
@pytest.mark.parametrize(("first_ms", "second_ms"), [(5_000, 5_000), (3_600_000, 1_000), (1_000, 3_600_000)])
def test_a_second_jump_within_the_hold_ends_no_lease(first_ms: int, second_ms: int, apart_ms: int) -> None:
    """LEASE-17: neither one from before the first jump, nor one from between, nor one from after both."""
    before = lease(ttl_seconds=600)
    first_at_ms = NOW + first_ms
    history = NO_HISTORY.after_jump(first_at_ms, first_ms)
    between = lease(ttl_seconds=60, at_ms=first_at_ms + apart_ms // 2)
    second_at_ms = first_at_ms + apart_ms + second_ms
    history = history.after_jump(second_at_ms, second_ms)
    after = lease(ttl_seconds=60, at_ms=second_at_ms)
    left_ms = {before: min(HOLD_MS_MAX, 601_000 - apart_ms), between: 61_000 - apart_ms + apart_ms // 2, after: 61_000}
    for held, real_ms in left_ms.items():
        last_ms = second_at_ms + real_ms - 1
        if real_ms > 0:
            assert blocks_others(history.present(held, last_ms), last_ms)
        end_ms = second_at_ms + HOLD_MS_MAX + 1_000
        assert not blocks_others(history.present(held, end_ms), end_ms)


@pytest.mark.parametrize("apart_ms", [0, 1_000, 30_000, 62_000])
@pytest.mark.parametrize(("first_ms", "second_ms"), [(65_000, 3_600_000), (3_600_000, 1_000), (590_000, 5_000)])
def test_a_hold_after_two_jumps_is_reported_until_it_ends(first_ms: int, second_ms: int, apart_ms: int) -> None:
    """LEASE-17: the second jump holds a lease from between them for longer than it had left."""
    first_at_ms = NOW + first_ms
    between = lease(ttl_seconds=60, at_ms=first_at_ms)
    second_at_ms = first_at_ms + apart_ms + second_ms
    history = NO_HISTORY.after_jump(first_at_ms, first_ms, 0)
    history = history.after_jump(second_at_ms, second_ms, between.expires_at_ms + GRACE_MS)
    held_for_ms = free_in_ms(history.present(between, second_at_ms), second_at_ms)
    assert held_for_ms > 0
    assert history.last_hold_ms == second_at_ms + held_for_ms


def test_a_lease_that_was_over_or_is_renewed_after_the_jump_is_not_held() -> None:
    """LEASE-17: the hold is about leases that were alive when the clock jumped."""
    at_ms = JUMPED.jumped_at_ms
    over, later = lease(5, NOW - 5_000 - GRACE_MS), lease(5, at_ms)
    assert JUMPED.present(over, at_ms) is over
    assert JUMPED.present(later, at_ms) is later


def test_the_owner_learns_of_its_loss_and_may_release() -> None:
    """LEASE-5, LEASE-8, LEASE-9: early loss is allowed; a release frees the lock at once."""
    at_ms = JUMPED.jumped_at_ms
    record = JUMPED.present(lease(30), at_ms)
    for command in (Renew(ME, 30), Acquire(ME, 30)):
        outcome = decide(record, command, at_ms).outcome
        assert isinstance(outcome, Refused)
        assert outcome.code == "lock_ownership_lost"
    assert isinstance(decide(record, Acquire(OTHER, 30), at_ms).outcome, Refused)
    freed = decide(record, Release(ME), at_ms).record
    assert isinstance(decide(freed, Acquire(OTHER, 30), at_ms).outcome, Granted)


def test_a_held_back_record_is_not_purged() -> None:
    """LEASE-13, LEASE-17: retention counts from the end of the hold."""
    jumped = NO_HISTORY.after_jump(NOW + 2 * RETENTION_MS, 2 * RETENTION_MS)
    record = jumped.present(lease(30), jumped.jumped_at_ms)
    assert record is not None
    assert not purgeable(record, jumped.jumped_at_ms)


def mark(now_ms: int, boot_id: str = "b", boot_ms: int = 0, is_synchronised: bool = False) -> ClockMark:
    return ClockMark(now_ms, boot_id, boot_ms, is_synchronised)


@pytest.mark.parametrize(
    ("newest_ms", "before", "now", "expected_ms"),
    [
        (NOW, mark(NOW, boot_ms=5), mark(NOW + 7_000, boot_ms=7_005), 0),
        (NOW, mark(NOW, boot_ms=5), mark(NOW + 67_000, boot_ms=7_005), 60_000),
        (NOW, mark(NOW, boot_ms=5), mark(NOW + 5_000, boot_ms=7_005), 0),
        (NOW, mark(NOW, boot_ms=9), mark(NOW + 7_000, boot_ms=8), 7_000),
        (NOW, mark(NOW, "b"), mark(NOW + 7_000, "c"), 7_000),
        (NOW, mark(NOW, "b", 0, True), mark(NOW + 7_000, "c", 0, True), 0),
        (NOW, mark(NOW, "b", 0, False), mark(NOW + 7_000, "c", 0, True), 7_000),
        (NOW, mark(NOW, "b", 0, True), mark(NOW + 7_000, "c", 0, False), 7_000),
        (NOW + 2_000, mark(NOW, "b", 0, True), mark(NOW + 7_000, "c", 0, True), 5_000),
        (NOW, mark(NOW, "", 5), mark(NOW + 7_000, "", 7_005), 7_000),
        (NOW + 9_000, mark(NOW, "b"), mark(NOW + 7_000, "c"), 0),
    ],
    ids=[
        "same boot, time has passed", "same boot, the date was set", "same boot, behind", "a machine's snapshot",
        "another boot", "both synchronised", "not when written", "not now", "an earlier release wrote since",
        "no boot ids", "behind",
    ],
)  # fmt: skip
def test_what_is_known_to_have_passed(newest_ms: int, before: ClockMark, now: ClockMark, expected_ms: int) -> None:
    """LEASE-17."""
    assert unproven_ms(newest_ms, before, now) == expected_ms


def test_tokens_lead_the_clock_after_a_reset() -> None:
    """LEASE-19: also of a lock whose record was purged, and in the batch that retires a token of an unknown lock."""
    year_ms = 365 * RETENTION_MS
    ahead_ms = NOW + year_ms
    purged_token = lease(5, ahead_ms).fencing_token
    reset = NO_HISTORY.after_reset(year_ms)
    for now_ms in (NOW, NOW + 2 * RETENTION_MS):
        unknown = reset.present_all({"lock": None}, now_ms)["lock"]
        assert isinstance(unknown, Free)
        granted = decide(unknown, Acquire(ME, 5), now_ms).outcome
        released = decide(unknown, Release(OTHER), now_ms).record
        granted_then = decide(released, Acquire(ME, 5), now_ms).outcome
        stored = Free(0, now_ms, (OTHER,))
        assert released is not None
        granted_later = decide(reset.present(stored, now_ms), Acquire(ME, 5), now_ms).outcome
        for outcome in (granted, granted_then, granted_later):
            assert isinstance(outcome, Granted)
            assert outcome.fencing_token == now_ms + year_ms >= purged_token


def test_a_reset_moves_a_hold_with_the_records() -> None:
    """LEASE-17, LEASE-19: what was held stays held for as long as it had left."""
    reset = JUMPED.after_reset(10_000)
    moved = lease(60, NOW - 10_000)
    now_ms = reset.jumped_at_ms + 60_000
    assert blocks_others(reset.present(moved, now_ms), now_ms)
    assert reset == replace(
        JUMPED,
        jumped_at_ms=NOW + 50_000,
        last_hold_ms=JUMPED.last_hold_ms - 10_000,
        token_lead_ms=10_000,
    )


def test_a_lost_history_holds_every_lease_and_lowers_no_token() -> None:
    """LEASE-17, LEASE-18, LEASE-19: as if no time had passed before it was written anew."""
    history = replace(NO_HISTORY, jumps_ms=7).rewritten(NOW, NOW - 1, 5_000)
    assert history.jumps_ms == 7
    expired = lease(at_ms=NOW - 3_600_000)
    assert isinstance(decide(history.present(expired, NOW), Acquire(OTHER, 60), NOW).outcome, Refused)
    end_ms = NOW + HOLD_MS_MAX
    assert isinstance(decide(history.present(expired, end_ms), Acquire(OTHER, 60), end_ms).outcome, Granted)
    granted = decide(history.present(Free(0, NOW), NOW), Acquire(ME, 60), NOW).outcome
    assert isinstance(granted, Granted)
    assert granted.fencing_token == NOW + 5_000
