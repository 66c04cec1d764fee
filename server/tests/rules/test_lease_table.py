"""Every verb in every state at every boundary, as one table (LEASE-2 to LEASE-13).

A state is a record and a distance of `now` from its expiry; a row says what each caller gets and what is
kept. The numbers are the spec's, written out, so that a changed constant is seen here.
"""

import pytest
from msgspec.structs import replace

from volcano_locks_server.rules import lease
from volcano_locks_server.rules.lease import (
    Acquire,
    Command,
    ForceRelease,
    Free,
    Granted,
    Held,
    LockRecord,
    Read,
    Refused,
    Release,
    Released,
    Renew,
    RevokeGrant,
    State,
    decide,
)

NOW = 1_800_000_000_000
ME = b"m" * 32
OTHER = b"o" * 32
DAY = 86_400_000
NINETY_DAYS = 90 * DAY


def held_until(distance_ms: int, owner: bytes = ME) -> Held:
    """A lease that expires `distance_ms` after NOW."""
    expires_at_ms = NOW + distance_ms
    return Held(
        owner_digest=owner,
        fencing_token=77,
        expires_at_ms=expires_at_ms,
        deadline_ms=NOW + 40_000_000,
        acquired_at_ms=NOW - 60_000,
        renewed_at_ms=NOW - 10_000,
        ttl_seconds=30,
        holder="host/1",
    )


# distance of expiry from now, in ms → the band the lease is in
ALIVE = [1_001, 1_002, 30_000]
MARGIN = [1_000, 999, 1]
GRACE = [0, -1, -999]
OVER = [-1_000, -1_001, -100_000]


def outcome(record: LockRecord | None, command: Command) -> str:
    """The outcome as a word. Also checks that a read keeps the same record object, and a refusal the same lease."""
    kept, answer = decide(record, command, NOW)
    if isinstance(answer, Refused) and isinstance(command, Release):
        assert isinstance(kept, Held)
        assert replace(kept, queue_state=None) == record
    elif isinstance(answer, Refused | State):
        assert kept is record
    match answer:
        case Granted(how=how):
            return how
        case Released():
            return "released"
        case Refused(code=code):
            return code
        case State(lease=None):
            return "free"
        case State():
            return "held"


@pytest.mark.parametrize(
    ("distances", "expected"),
    [
        (ALIVE, {"acquire": "repeated", "renew": "renewed", "release": "released", "read": "held"}),
        (
            MARGIN + GRACE,
            {
                "acquire": "lock_ownership_lost",
                "renew": "lock_ownership_lost",
                "release": "released",
                "read": "held",
            },
        ),
        (OVER, {"acquire": "taken_over", "renew": "lock_ownership_lost", "release": "released", "read": "free"}),
    ],
)
def test_responses_to_the_owner(distances: list[int], expected: dict[str, str]) -> None:
    """LEASE-4, LEASE-5, LEASE-7, LEASE-8, LEASE-9, LEASE-12."""
    for distance in distances:
        record = held_until(distance)
        assert {
            "acquire": outcome(record, Acquire(ME, 30)),
            "renew": outcome(record, Renew(ME, 30)),
            "release": outcome(record, Release(ME)),
            "read": outcome(record, Read()),
        } == expected, distance


@pytest.mark.parametrize(
    ("distances", "expected"),
    [
        (
            ALIVE + MARGIN + GRACE,
            {"acquire": "lock_held", "renew": "lock_ownership_lost", "release": "lock_ownership_lost", "read": "held"},
        ),
        (OVER, {"acquire": "taken_over", "renew": "lock_ownership_lost", "release": "released", "read": "free"}),
    ],
)
def test_responses_to_other_owners(distances: list[int], expected: dict[str, str]) -> None:
    """LEASE-6, LEASE-7, LEASE-8, LEASE-9, LEASE-12."""
    for distance in distances:
        record = held_until(distance, OTHER)
        assert {
            "acquire": outcome(record, Acquire(ME, 30)),
            "renew": outcome(record, Renew(ME, 30)),
            "release": outcome(record, Release(ME)),
            "read": outcome(record, Read()),
        } == expected, distance


@pytest.mark.parametrize("record", [None, Free(77, NOW - 5), Free(77, NOW - 5, (OTHER,))])
def test_a_free_lock(record: Free | None) -> None:
    """LEASE-2, LEASE-8, LEASE-9, LEASE-10, LEASE-12: a free or unknown lock."""
    assert outcome(record, Acquire(ME, 30)) == "acquired"
    assert outcome(record, Renew(ME, 30)) == "lock_ownership_lost"
    assert outcome(record, Release(ME)) == "released"
    assert outcome(record, ForceRelease()) == "released"
    assert outcome(record, Read()) == "free"
    assert decide(record, ForceRelease(), NOW).record is record


def test_a_new_lease() -> None:
    """LEASE-2, LEASE-3: expiry, deadline and a fencing token of the clock's milliseconds."""
    kept, answer = decide(None, Acquire(ME, 30, "host/9"), NOW)
    assert kept == Held(ME, NOW, NOW + 30_000, NOW + NINETY_DAYS, NOW, NOW, 30, "host/9")
    assert answer == Granted(NOW + 30_000, NOW, "acquired")


@pytest.mark.parametrize(
    ("record", "token"),
    [
        (None, NOW),
        (Free(NOW - 1, NOW - 1), NOW),
        (Free(NOW, NOW), NOW + 1),
        (Free(NOW + 500, NOW), NOW + 501),
        (replace(held_until(-1_000), fencing_token=NOW + 7), NOW + 8),
    ],
)
def test_fencing_tokens_rise_with_each_lease(record: LockRecord | None, token: int) -> None:
    """LEASE-3: above the last one, and never below the clock."""
    answer = decide(record, Acquire(ME, 30), NOW).outcome
    assert isinstance(answer, Granted)
    assert answer.fencing_token == token


def test_a_takeover_is_a_new_lease_and_names_the_expired_one() -> None:
    """LEASE-7: new deadline, even for the token that held it before."""
    for owner in (ME, OTHER):
        lapsed = held_until(-1_000, owner)
        kept, answer = decide(lapsed, Acquire(ME, 5), NOW)
        assert isinstance(kept, Held)
        assert isinstance(answer, Granted)
        assert (kept.deadline_ms, kept.acquired_at_ms, kept.expires_at_ms) == (NOW + NINETY_DAYS, NOW, NOW + 5_000)
        assert answer.lapsed is lapsed


@pytest.mark.parametrize("command", [Acquire(ME, 5), Renew(ME, 5)])
def test_extending_sets_and_never_adds(command: Acquire | Renew) -> None:
    """LEASE-4, LEASE-8: a shorter TTL shortens; token, deadline and beginning stay."""
    before = held_until(30_000)
    kept, answer = decide(before, command, NOW)
    assert kept == replace(before, expires_at_ms=NOW + 5_000, renewed_at_ms=NOW, ttl_seconds=5)
    assert isinstance(answer, Granted)
    assert (answer.fencing_token, answer.expires_at_ms) == (77, NOW + 5_000)


@pytest.mark.parametrize("command", [Acquire(ME, 7_776_000), Renew(ME, 7_776_000)])
def test_nothing_extends_past_the_deadline(command: Acquire | Renew) -> None:
    """LEASE-2, LEASE-8: ninety days after the acquire, a lease ends."""
    before = held_until(30_000)
    kept, answer = decide(before, command, NOW)
    assert isinstance(answer, Granted)
    assert isinstance(kept, Held)
    assert kept.expires_at_ms == answer.expires_at_ms == before.deadline_ms


@pytest.mark.parametrize("distance", [30_000, 1_000, 0, -999, -1_000, -50_000])
def test_release_by_the_owner_frees_and_retires(distance: int) -> None:
    """LEASE-9, LEASE-11 (case 15, case 19): the released token cannot acquire again, any other can."""
    freed = decide(held_until(distance), Release(ME), NOW)
    assert freed.record == Free(77, NOW, (ME,))
    assert outcome(freed.record, Acquire(ME, 30)) == "lock_ownership_lost"
    assert outcome(freed.record, Acquire(OTHER, 30)) == "acquired"


@pytest.mark.parametrize("record", [None, Free(77, NOW - 5), held_until(-1_000, OTHER), held_until(-90_000_000, OTHER)])
def test_a_release_that_overtakes_its_acquire_makes_it_fail(record: LockRecord | None) -> None:
    """LEASE-11, case 15: an abandoned acquire that arrives after its release has no effect."""
    freed = decide(record, Release(ME), NOW).record
    assert outcome(freed, Acquire(ME, 30)) == "lock_ownership_lost"
    assert outcome(freed, Acquire(OTHER, 30)) == "acquired"
    assert freed is not None
    assert not lease.purgeable(freed, NOW + DAY - 1)


def test_the_release_of_another_owner_does_not_retire_an_expired_one() -> None:
    """LEASE-7, LEASE-11: only a token that was itself released or forced out is retired."""
    freed = decide(held_until(-1_000, OTHER), Release(ME), NOW).record
    assert outcome(freed, Acquire(OTHER, 30)) == "acquired"
    assert isinstance(freed, Free)
    assert freed.fencing_token == 77


def test_the_newest_retired_tokens_are_stored_up_to_a_limit() -> None:
    """LEASE-11: the sixteen newest, and a repeated release changes nothing."""
    record: LockRecord | None = None
    tokens = [bytes([n]) * 32 for n in range(17)]
    for token in tokens:
        record = decide(record, Release(token), NOW).record
    assert [outcome(record, Acquire(token, 30)) for token in tokens] == ["acquired"] + ["lock_ownership_lost"] * 16
    assert decide(record, Release(tokens[-1]), NOW).record is record


@pytest.mark.parametrize("distance", [30_000, 500, -500, -1_000])
def test_force_release_ends_the_lease_and_retires_its_token(distance: int) -> None:
    """LEASE-10, LEASE-11."""
    before = held_until(distance)
    freed, answer = decide(before, ForceRelease(), NOW)
    assert freed == Free(77, NOW, (ME,))
    assert answer == Released(before if distance > -1_000 else None)
    assert outcome(freed, Acquire(ME, 30)) == outcome(freed, Renew(ME, 30)) == "lock_ownership_lost"
    assert outcome(freed, Acquire(OTHER, 30)) == "acquired"


LAST_77 = [held_until(30_000), held_until(500), held_until(-500), held_until(-1_000), Free(77, NOW - 1)]


@pytest.mark.parametrize("before", LAST_77)
def test_a_force_release_of_the_current_or_last_lease_is_a_force_release(before: LockRecord) -> None:
    """LEASE-20."""
    assert decide(before, ForceRelease(77), NOW) == decide(before, ForceRelease(), NOW)


@pytest.mark.parametrize("before", [*LAST_77, None, Free(0, NOW - 1)])
@pytest.mark.parametrize("fencing_token", [1, 76, 78, 2**53 - 1])
def test_a_force_release_of_another_lease_changes_nothing(before: LockRecord | None, fencing_token: int) -> None:
    """LEASE-20, case 66."""
    after, answer = decide(before, ForceRelease(fencing_token), NOW)
    assert after is before
    assert isinstance(answer, Refused)
    assert answer.code == "lock_changed"
    assert str(fencing_token) in answer.message


def test_a_late_renewal_after_release_creates_nothing() -> None:
    """LEASE-8, case 8: a PATCH that lands after its DELETE."""
    freed = decide(held_until(30_000), Release(ME), NOW).record
    kept, answer = decide(freed, Renew(ME, 30), NOW)
    assert kept is freed
    assert isinstance(answer, Refused)
    assert answer.code == "lock_ownership_lost"


@pytest.mark.parametrize(
    ("record", "age_ms", "expected"),
    [
        (Free(77, NOW), DAY - 1, False),
        (Free(77, NOW), DAY, True),
        (held_until(0), DAY + 999, False),
        (held_until(0), DAY + 1_000, True),
    ],
)
def test_a_free_record_is_kept_for_a_day(record: LockRecord, age_ms: int, expected: bool) -> None:
    """LEASE-13."""
    assert lease.purgeable(record, NOW + age_ms) is expected


def test_only_the_owner_may_use_the_reserve() -> None:
    """QUOTA rules: the current owner, until the end of its grace."""
    assert lease.owns(held_until(30_000), ME, NOW)
    assert lease.owns(held_until(-999), ME, NOW)
    assert not lease.owns(held_until(-1_000), ME, NOW)
    assert not lease.owns(held_until(30_000), OTHER, NOW)
    assert not lease.owns(Free(77, NOW, (ME,)), ME, NOW)
    assert not lease.owns(None, ME, NOW)


def test_only_the_exact_undelivered_grant_is_revoked() -> None:
    """WAIT-5: a lease that was repeated or renewed since stays, and so does another lease; no token is retired."""
    granted = replace(held_until(20_000), acquired_at_ms=NOW - 10, renewed_at_ms=NOW - 10)
    given_back = RevokeGrant(ME, 77, NOW - 10)
    assert decide(granted, given_back, NOW) == (Free(77, NOW), Released(granted))
    for other in (
        replace(granted, renewed_at_ms=NOW - 9),
        replace(granted, fencing_token=78),
        replace(granted, owner_digest=OTHER),
        Free(77, NOW),
        None,
    ):
        kept, answer = decide(other, given_back, NOW)
        assert kept is other
        assert answer == Released(None)
