"""Sets a store's clock back after the store was served under a clock that was ahead (LEASE-19).

All instants of the lock records move back by one duration, together with the newest instant. So each lease keeps what
it had left, a free lock stays free, and every later decision is the one that the clock before would have led to. Tokens
stay as they are: new ones lead the clock by the same duration, so they go on rising also for locks whose records were
purged. The module `reset` of the store's own package does the work; no server may use the store meanwhile.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from ..rules.errors import DamagedRecordError, StoreUnavailableError
from ..rules.lease import Free, LockRecord

RESET_SECONDS_MAX: Final = 300.0
MOMENT_MS: Final = 250
"""A store that is ahead by less can be served: a server waits for it, and two clocks are rounded differently."""


class ClockReset(NamedTuple):
    """What a reset does: the time of the store goes from `newest_ms` to `now_ms`.

    `held` leases stay held, the longest of them for `longest_ms`. The `damaged` records stay as they are (LEASE-18).
    """

    newest_ms: int
    now_ms: int
    held: int = 0
    longest_ms: int = 0
    damaged: Sequence[DamagedRecordError] = ()

    @property
    def by_ms(self) -> int:
        """How far the clock is set back; 0 if the store can be served as it is."""
        ahead_ms = self.newest_ms - self.now_ms
        return ahead_ms if ahead_ms >= MOMENT_MS else 0


def moved_back(record: LockRecord, by_ms: int) -> LockRecord:
    """The record after a reset. An instant that would be before 1970 becomes 0. No waiter is left."""
    if isinstance(record, Free):
        return replace(record, freed_at_ms=max(0, record.freed_at_ms - by_ms), queue_state=None)
    return replace(
        record,
        expires_at_ms=max(0, record.expires_at_ms - by_ms),
        deadline_ms=max(0, record.deadline_ms - by_ms),
        acquired_at_ms=max(0, record.acquired_at_ms - by_ms),
        renewed_at_ms=max(0, record.renewed_at_ms - by_ms),
        queue_state=None,
    )


def newer_than_shown(shown: ClockReset, found: ClockReset) -> None:
    """Raise StoreUnavailableError if the store was written since the reset was shown."""
    if found.newest_ms > shown.newest_ms:
        raise StoreUnavailableError(
            "store_in_use", "a server has written to the store meanwhile: stop all servers, then start again"
        )
