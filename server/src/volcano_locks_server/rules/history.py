"""The history of locks: one entry for each hold (HISTORY rules in spec/history.md).

A hold begins with a lease and ends with it. The last hold of a lock is in the lock's record: as its lease, from which
the entry is derived, its expiry too, or as the entry of the hold that ended. The commit that begins the next hold
displaces it, and stores its entry. So a reader sees the same entry before and after that commit, and a lock that is
used once costs no more than its record.

Pure: no I/O, no clock.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from .hold import Ended, HoldEntry
from .lease import (
    GRACE_MS,
    Command,
    Damaged,
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


def with_last_hold(
    before: StoredRecord | None, after: LockRecord, command: Command, now_ms: int
) -> tuple[LockRecord, HoldEntry | None]:
    """The record to store after `command`, or a hand-off after it, and the entry that it displaces from the record.

    A free record keeps the entry of the last hold. A new hold displaces that of the hold before it.
    """
    if before is None or isinstance(before, Damaged):
        return after, None
    if isinstance(before, Held) and isinstance(after, Held) and after.fencing_token == before.fencing_token:
        return after, None
    last = before.last_hold if isinstance(before, Free) else _ended(before, command, now_ms)
    if isinstance(after, Free):
        return (after if after.last_hold is last else replace(after, last_hold=last)), None
    return after, last


def _ended(before: Held, command: Command, now_ms: int) -> HoldEntry:
    """The entry of the hold that `command`, or a hand-off after it, ended."""
    if now_ms >= free_from_ms(before):
        return expired_entry(before)
    if isinstance(command, ForceRelease):
        by = command.by
        return _entry(before, "forced", now_ms, None if by is None else by.key_name, command.reason)
    if isinstance(command, (Release, RevokeGrant)):
        return _entry(before, "released", now_ms)
    return expired_entry(before)


def entry_of(record: LockRecord, now_ms: int) -> HoldEntry | None:
    """The entry of the last hold, from the lock's record: current, expired (HISTORY-3) or ended. None if unknown."""
    if isinstance(record, Free):
        return record.last_hold
    return expired_entry(record) if now_ms >= free_from_ms(record) else _entry(record, None, None)


def entry_at_purge(record: LockRecord) -> HoldEntry | None:
    """The entry of the last hold in a record that is deleted (LEASE-13): it ended long ago."""
    return record.last_hold if isinstance(record, Free) else expired_entry(record)


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
