"""The rules for time that is not known to have passed (LEASE-17), and for tokens after a clock reset (LEASE-19).

A store's clock can move ahead of real time: a wrong clock at a restart, a step of the database's clock. By that clock a
lease is over, although its holder may rely on it for longer. Such a *jump* is recognised by comparing two instants of
the store's clock with a clock that no one can set. It ends no lease: others may take a lease over only when as much
time has passed since the jump as the lease had left before it. That *hold* lasts for HOLD_MS_MAX at most.

The functions are pure. A store remembers a `ClockMark` and a `ClockHistory`, and passes each record through
`ClockHistory.present` before the rules of `lease` see it.
"""

from collections.abc import Mapping
from typing import Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from .lease import GRACE_MS, Damaged, Free, Held, LockRecord, StoredRecord

K = TypeVar("K")

HOLD_MS_MAX: Final = 600_000
JUMP_MS_MIN: Final = 250  # a shorter jump is absorbed by the grace


class ClockMark(Struct, frozen=True, gc=False):
    """An instant of a store's clock, and what else was known then.

    The machine `boot_id` (empty: unknown) had been up for `boot_ms`. `is_synchronised`: the store's clock agreed with a
    wall clock that the kernel reported as synchronised.
    """

    now_ms: int = 0
    boot_id: str = ""
    boot_ms: int = 0
    is_synchronised: bool = False

    def continued_ms(self, later: "ClockMark") -> int | None:
        """The instant of `later`, computed from this one with the clock of the boot; None in another boot."""
        if not self.boot_id or self.boot_id != later.boot_id:
            return None
        return self.now_ms + later.boot_ms - self.boot_ms

    def later(self, ms: int) -> "ClockMark":
        """The mark of the instant that is `ms` later in the same boot."""
        return replace(self, now_ms=self.now_ms + ms, boot_ms=self.boot_ms + ms)


def unproven_ms(newest_ms: int, mark: ClockMark, now: ClockMark) -> int:
    """How much of the time since `newest_ms`, the newest instant of the store, is not known to have passed.

    `mark` is the latest mark, and as old as `newest_ms` unless a node of an earlier release wrote since.
    """
    continued_ms = mark.continued_ms(now)
    if continued_ms is not None and now.boot_ms >= mark.boot_ms:
        return max(0, min(now.now_ms - continued_ms, now.now_ms - newest_ms))
    if mark.is_synchronised and now.is_synchronised and mark.now_ms >= newest_ms:
        return 0
    return max(0, now.now_ms - newest_ms)


class ClockHistory(Struct, frozen=True, omit_defaults=True, gc=False):
    """The past of a store's clock: its latest jump, and how far fencing tokens are ahead of it.

    `jumped_at_ms` is the first instant after the jump, and `jumped_by_ms` the time that is not known to have passed. A
    jump within HOLD_MS_MAX after another one counts as one with it. That ends no lease early: `proven_ms` is then the
    instant before the first jump plus the real time since, so a lease from before it keeps what it had left. A record
    written between the two is held for longer than necessary, because its instants contain the first jump already.
    `jumps_ms` is the sum of all jumps. `last_hold_ms` is the instant from which on no lease is held, as far as the
    leases were known; it is for reports.
    """

    jumped_at_ms: int = 0
    jumped_by_ms: int = 0
    jumps_ms: int = 0
    last_hold_ms: int = 0
    token_lead_ms: int = 0

    @property
    def proven_ms(self) -> int:
        """The instant of the clock before the jump. What was over then is over."""
        return self.jumped_at_ms - self.jumped_by_ms

    @property
    def hold_until_ms(self) -> int:
        """From this instant on, the jump has no effect."""
        return self.jumped_at_ms + HOLD_MS_MAX if self.jumped_by_ms else 0

    def is_holding(self, now_ms: int) -> bool:
        """Whether the jump may still hold takeovers of leases."""
        return now_ms < self.hold_until_ms

    def over_before_ms(self, now_ms: int) -> int:
        """A lease whose grace ended at this instant or earlier blocks no other owner at `now_ms`.

        One whose grace ended later may: `present` decides.
        """
        return self.proven_ms if self.is_holding(now_ms) else now_ms

    def after_jump(self, at_ms: int, by_ms: int, last_free_from_ms: int | None = None) -> "ClockHistory":
        """This history after a jump by `by_ms` to `at_ms`; the same object if the jump is shorter than JUMP_MS_MIN.

        `last_free_from_ms` is the latest end of a grace, None if it is unknown.
        """
        if by_ms < JUMP_MS_MIN:
            return self
        jumped_by_ms = by_ms + (self.jumped_by_ms if self.is_holding(at_ms - by_ms) else 0)
        last_ms = at_ms + HOLD_MS_MAX
        if last_free_from_ms is not None:
            last_ms = min(last_ms, max(last_free_from_ms + jumped_by_ms, self.last_hold_ms + by_ms))
        return replace(
            self,
            jumped_at_ms=at_ms,
            jumped_by_ms=jumped_by_ms,
            jumps_ms=self.jumps_ms + by_ms,
            last_hold_ms=last_ms if last_ms > at_ms else 0,
        )

    def rewritten(self, now_ms: int, last_free_from_ms: int, token_lead_ms: int) -> "ClockHistory":
        """The history in place of one that was lost, of which only `jumps_ms` may be known (CLI-31).

        No time is known to have passed before `now_ms`. New tokens lead the clock by at least `token_lead_ms`.
        """
        after = NO_HISTORY.after_jump(now_ms, now_ms, last_free_from_ms)
        return replace(after, jumps_ms=self.jumps_ms, token_lead_ms=token_lead_ms)

    def after_reset(self, by_ms: int) -> "ClockHistory":
        """This history after the clock and all records were set back by `by_ms` (LEASE-19)."""
        return replace(
            self,
            jumped_at_ms=self.jumped_at_ms - by_ms,
            last_hold_ms=self.last_hold_ms - by_ms,
            token_lead_ms=self.token_lead_ms + by_ms,
        )

    def present(self, record: LockRecord, now_ms: int) -> LockRecord:
        """The record as the rules of `lease` must see it at `now_ms`; the same object if the history is irrelevant."""
        if isinstance(record, Held):
            return self._held_back(record, now_ms) if self.jumped_by_ms else record
        if not self.token_lead_ms:
            return record
        return replace(record, next_token_min=now_ms + self.token_lead_ms)

    def present_all(self, records: Mapping[K, StoredRecord | None], now_ms: int) -> Mapping[K, StoredRecord | None]:
        """The records as a step must see them. After a reset, a missing one is a free lock with a token to exceed."""
        if not self.jumped_by_ms and not self.token_lead_ms:
            return records
        missing = self.present(Free(0, now_ms), now_ms) if self.token_lead_ms else None
        return {
            key: missing if record is None else record if isinstance(record, Damaged) else self.present(record, now_ms)
            for key, record in records.items()
        }

    def _held_back(self, held: Held, now_ms: int) -> Held:
        ends_ms = held.expires_at_ms + GRACE_MS
        was_over = ends_ms <= self.proven_ms
        if was_over or held.renewed_at_ms >= self.jumped_at_ms or not self.is_holding(now_ms):
            return held
        return replace(held, not_before_ms=min(ends_ms + self.jumped_by_ms, self.hold_until_ms))


NO_HISTORY: Final = ClockHistory()
