"""The port of lock records. A store keeps records and makes no decisions.

`LockStore.update` is the only method that writes commands. Atomically, it reads the records of `keys`, reads its clock
once, calls the pure `step(records, now_ms)`, writes the changed records and makes them durable. Then it returns the
step's results (LEASE-14). The records have passed through `ClockHistory.present`, here and in a page (LEASE-17). A
record that the store cannot decode is given to the step as `Damaged`, so that its key alone fails (LEASE-18). After a
conflict with another writer, it calls `step` again with the new records, so `step` must have no side effects.
`StoreUnavailableError` means that either everything was written or nothing (LEASE-16).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, TypeVar

from ..rules.clock_history import ClockHistory
from ..rules.history import HeldTimes, Period
from ..rules.hold import HoldEntry
from ..rules.lease import Damaged, LockRecord, StoredRecord
from ..rules.values import LockKey
from .audit_entry import AuditEntry


class RecordKey(NamedTuple):
    """A lock's project id and its key in that project."""

    project_id: str
    key: LockKey


LOCK_KIND: Final = "lock"


def lock_name(key: RecordKey) -> str:
    """The name of a lock's record for operators (CLI-31)."""
    return f"{LOCK_KIND}/{key.project_id}/{key.key}"


Records = Mapping[RecordKey, StoredRecord | None]
EndedHold = tuple[RecordKey, HoldEntry]
"""A lock and the entry of its hold that ended."""
BATCH_MAX: Final = 512  # commands in one update, unless the store allows fewer
STORE_SECONDS_MAX: Final = 2.5  # a request that waits longer for a store is answered without it (OPS-12)

R = TypeVar("R")


class StepResult(NamedTuple):
    """The records to write (only changed ones), the results for the commands, the entries of the holds that are in no
    record any more, in order, for the history, and the entries of the audit (AUDIT-2). The store writes all in the same
    commit.
    """

    changed: Mapping[RecordKey, LockRecord]
    results: Sequence[object]
    ended: Sequence[EndedHold] = ()
    audit: Sequence[AuditEntry] = ()


Step = Callable[[Records, int], StepResult]


class LockQuery(NamedTuple):
    """Selects at most `limit` records of a project, in the order of their keys' bytes.

    Keys begin with `prefix` and come after `after`. `held` True or False selects by whether the lock is held now
    (LEASE-12).
    """

    project_id: str
    limit: int
    prefix: str = ""
    after: str = ""
    held: bool | None = None


class LockPage(NamedTuple):
    """Records as they were at one moment, in the order of their keys' bytes, and that moment's instant.

    `next_after` is the `after` of the next page, None at the end. A page may be short or empty without being the last.
    `damaged` are the records of the range that cannot be decoded; `records` leaves them out (LEASE-18).
    """

    records: Sequence[tuple[LockKey, LockRecord]]
    now_ms: int
    next_after: LockKey | None
    damaged: Sequence[tuple[LockKey, Damaged]] = ()


class EntryPosition(NamedTuple):
    """An entry's place in the order of the history: by key, and of one lock the latest first."""

    key: LockKey
    fencing_token: int


class HistoryQuery(NamedTuple):
    """Selects at most `limit` entries of a project that come after `after` in the order of `EntryPosition`.

    They belong to the lock `key`, or if that is None to the locks whose keys begin with `prefix`.
    """

    project_id: str
    limit: int
    key: LockKey | None = None
    prefix: str = ""
    after: EntryPosition | None = None
    period: Period = Period()


class HistoryPage(NamedTuple):
    """Entries as they were at one moment, in order, and that moment's instant.

    `next_after` is the `after` of the next page, None at the end. A page may be short or empty without being the last.
    `held` are the times of all ended holds of the lock, None in a page of several locks.
    """

    entries: Sequence[tuple[LockKey, HoldEntry]]
    now_ms: int
    next_after: EntryPosition | None
    held: HeldTimes | None = None


class TakeoverHold(NamedTuple):
    """Leases that were alive before the clock jumped by `jumped_ms` block others until `until_ms` at the latest
    (LEASE-17).

    `left_ms` is how long that is from now, by the store's clock.
    """

    until_ms: int
    left_ms: int
    jumped_ms: int


def hold_in_force(history: ClockHistory, now_ms: int) -> TakeoverHold | None:
    """The hold at `now_ms`, if there is one."""
    if now_ms >= history.last_hold_ms:
        return None
    return TakeoverHold(history.last_hold_ms, history.last_hold_ms - now_ms, history.jumped_by_ms)


class LockStore(Protocol):
    """The port for lock records. Every method may raise `StoreUnavailableError`."""

    async def update(self, keys: Sequence[RecordKey], step: Step) -> Sequence[object]:
        """Run one atomic, durable step over `keys` (distinct); see the module's docstring."""
        ...

    async def list_locks(self, query: LockQuery) -> LockPage:
        """One page of records, after bounded work even if few of many records match (LIST-4).

        It includes every update that returned before. A clock that `update` would refuse is refused here too.
        """
        ...

    async def count_held(self) -> int:
        """The number of locks held now in all projects (LEASE-12), for the metric; may be slightly stale."""
        ...

    async def purge(self, *, limit: int, keeps_history: bool = False) -> int:
        """Delete up to `limit` records that `lease.purgeable` allows (LEASE-13); returns how many.

        With `keeps_history`, the same commits store the entries of expired holds in them.
        """
        ...

    async def history_page(self, query: HistoryQuery) -> HistoryPage:
        """One page of entries, after bounded work (HISTORY-5). It includes every update that returned before."""
        ...

    async def purge_history(self, *, kept_days: int, limit: int, entries_max: int | None = None) -> int:
        """Delete up to `limit` entries, the oldest first: those that ended more than `kept_days` ago, and those past
        `entries_max`, by default the store's own limit (HISTORY-4). Returns how many.
        """
        ...

    async def ready(self) -> None:
        """Write a record that belongs to no project, as an acquire writes its own (OPS-10).

        Raises `StoreUnavailableError` with the reason if that fails, or if the store should get no traffic.
        """
        ...

    def takeover_hold(self) -> TakeoverHold | None:
        """The hold on takeovers that is in force, as far as the latest call of another method has found."""
        ...


@dataclass(slots=True)
class StoreCounts:
    """What a networked store did since it was opened, for the metrics."""

    round_trips: int = 0
    conflicts: int = 0  # updates that conflicted with another node's
    retries: int = 0  # updates retried after a conflict
    connects: int = 0
