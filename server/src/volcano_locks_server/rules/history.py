"""The history of locks: one entry for each hold (HISTORY rules in spec/history.md).

A hold begins with a lease and ends with it. While its lease is in the lock's record, its entry is derived from that
record, its expiry too. The commit that ends the hold, or that finds it expired, stores the entry. So a reader sees the
same entry before and after that commit.

Pure: no I/O, no clock.
"""

from collections.abc import Iterable, Sequence
from typing import Final, Literal, NamedTuple

from msgspec import Struct

from .hold import HoldFacts
from .lease import (
    GRACE_MS,
    Command,
    ForceRelease,
    Free,
    Held,
    LockRecord,
    Release,
    RevokeGrant,
    StoredRecord,
    free_from_ms,
)

HISTORY_DAYS_DEFAULT: Final = 7
HISTORY_DAYS_MAX: Final = 365
ENTRIES_PER_LOCK_MAX: Final = 200
ENTRIES_MAX: Final = 1_000_000
ENTRIES_ETCD_MAX: Final = 100_000
DAY_MS: Final = 24 * 3600 * 1_000

Ended = Literal["released", "expired", "forced"]


class HoldEntry(Struct, frozen=True, array_like=True, gc=False):
    """One hold. `ended` and `ended_at_ms` are None while it lasts, `facts` if a node of 0.1.0 began it.

    `renewed_at_ms` is the instant of the last renewal, None if there was none. `ended_by` is the name of the service
    key that forced the release, and `reason` the reason that it gave.
    """

    fencing_token: int
    began_at_ms: int
    expires_at_ms: int
    renewed_at_ms: int | None = None
    holder: str | None = None
    facts: HoldFacts | None = None
    ended: Ended | None = None
    ended_at_ms: int | None = None
    ended_by: str | None = None
    reason: str | None = None

    def held_ms(self, now_ms: int) -> int:
        """How long the hold lasted, or lasts so far."""
        return max(0, (now_ms if self.ended_at_ms is None else self.ended_at_ms) - self.began_at_ms)


class Period(NamedTuple):
    """Selects the holds that overlap `from_ms` up to but excluding `to_ms`, and that lasted at `at_ms`; None: all."""

    from_ms: int | None = None
    to_ms: int | None = None
    at_ms: int | None = None

    def has(self, entry: HoldEntry) -> bool:
        ended_at_ms = entry.ended_at_ms
        return not (
            (self.from_ms is not None and ended_at_ms is not None and ended_at_ms <= self.from_ms)
            or (self.to_ms is not None and entry.began_at_ms >= self.to_ms)
            or (
                self.at_ms is not None
                and (entry.began_at_ms > self.at_ms or (ended_at_ms is not None and ended_at_ms <= self.at_ms))
            )
        )


class HeldTimes(NamedTuple):
    """How long a lock was held: the number of ended holds, and percentiles by nearest rank; None without a hold."""

    holds: int
    p50_ms: int | None
    p95_ms: int | None
    maximum_ms: int | None


def ended_hold(before: StoredRecord | None, after: LockRecord, command: Command, now_ms: int) -> HoldEntry | None:
    """The entry of the hold that `command`, or a hand-off after it, ended; None if it ended none."""
    if not isinstance(before, Held) or (isinstance(after, Held) and after.fencing_token == before.fencing_token):
        return None
    if now_ms >= free_from_ms(before):
        return expired_entry(before)
    if isinstance(command, ForceRelease):
        by = command.by
        return _entry(before, "forced", now_ms, None if by is None else by.key_name, command.reason)
    if isinstance(command, (Release, RevokeGrant)):
        return _entry(before, "released", now_ms)
    return expired_entry(before)


def entry_of(record: LockRecord, now_ms: int) -> HoldEntry | None:
    """The entry of the hold in a record: current, or expired (HISTORY-3). None for a free lock."""
    if isinstance(record, Free):
        return None
    return expired_entry(record) if now_ms >= free_from_ms(record) else _entry(record, None, None)


def expired_entry(held: Held) -> HoldEntry:
    """The entry of a hold that expired, at the end of its grace, as its event says (EVENT-3)."""
    return _entry(held, "expired", held.expires_at_ms + GRACE_MS)


def held_times(entries: Iterable[HoldEntry]) -> HeldTimes:
    """The times of the holds that have ended (HISTORY-6)."""
    times = sorted(entry.held_ms(0) for entry in entries if entry.ended_at_ms is not None)
    if not times:
        return HeldTimes(0, None, None, None)
    return HeldTimes(len(times), _percentile(times, 50), _percentile(times, 95), times[-1])


def _percentile(ordered: Sequence[int], percent: int) -> int:
    rank = -(-percent * len(ordered) // 100)
    return ordered[rank - 1]


def _entry(
    held: Held, ended: Ended | None, ended_at_ms: int | None, ended_by: str | None = None, reason: str | None = None
) -> HoldEntry:
    is_renewed = held.renewed_at_ms > held.acquired_at_ms or (held.facts is not None and held.facts.renewals > 0)
    return HoldEntry(
        held.fencing_token,
        held.acquired_at_ms,
        held.expires_at_ms,
        held.renewed_at_ms if is_renewed else None,
        held.holder,
        held.facts,
        ended,
        ended_at_ms,
        ended_by,
        reason,
    )
