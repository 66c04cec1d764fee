"""The port of lock records. A store keeps records and makes no decisions.

`LockStore.update` is the only method that writes commands. Atomically, it reads the records of `keys`, reads its clock
once, calls the pure `step(records, now_ms)`, writes the changed records and makes them durable. Then it returns the
step's results (LEASE-14). After a conflict with another writer, it calls `step` again with the new records, so `step`
must have no side effects. `StoreUnavailableError` means that either everything was written or nothing (LEASE-16).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, TypeVar

from ..rules.lease import LockRecord
from ..rules.values import LockKey


class RecordKey(NamedTuple):
    """A lock's project id and its key in that project."""

    project_id: str
    key: LockKey


Records = Mapping[RecordKey, LockRecord | None]
BATCH_MAX: Final = 512  # commands in one update, unless the store allows fewer

R = TypeVar("R")


class StepResult(NamedTuple):
    """The records to write (only changed ones), and the results for the commands."""

    changed: Mapping[RecordKey, LockRecord]
    results: Sequence[object]


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
    """

    records: Sequence[tuple[LockKey, LockRecord]]
    now_ms: int
    next_after: LockKey | None


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

    async def purge(self, *, limit: int) -> int:
        """Delete up to `limit` records that `lease.purgeable` allows (LEASE-13); returns how many."""
        ...

    async def ready(self) -> None:
        """Return if the store can write now, else raise `StoreUnavailableError` with the reason."""
        ...


@dataclass(slots=True)
class StoreCounts:
    """What a networked store did since it was opened, for the metrics."""

    round_trips: int = 0
    conflicts: int = 0  # updates that conflicted with another node's
    retries: int = 0  # updates retried after a conflict
    connects: int = 0
