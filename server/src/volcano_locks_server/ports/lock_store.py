"""The port of lock records: what the service needs from a store, which remembers and never decides.

`LockStore.update` is the one verb that writes. In one atomic unit it reads the records of `keys`, reads its
clock once, calls the pure `step(records, now_ms)`, writes the records that changed, makes them durable, and only
then returns the step's results (LEASE-14). If another writer got in between, the store calls `step` again with
what it found, so `step` must have no effect but its return value. What cannot be done raises
`StoreUnavailableError` with nothing half written (LEASE-16).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, TypeVar

from ..rules.lease import LockRecord
from ..rules.values import LockKey


class RecordKey(NamedTuple):
    """Which lock: its project's id and its key in that project."""

    project_id: str
    key: LockKey


Records = Mapping[RecordKey, LockRecord | None]
BATCH_MAX: Final = 512  # commands in one update, unless the store prefers fewer

R = TypeVar("R")


class Stepped(NamedTuple):
    """What a step returns: the records to write (only those that changed), and its results."""

    changed: Mapping[RecordKey, LockRecord]
    results: Sequence[object]


Step = Callable[[Records, int], Stepped]


class LockQuery(NamedTuple):
    """Which records to list: at most `limit` (at least 1) of a project's whose keys begin with `prefix` and come behind
    `after` in the order of their bytes. `held` True or False asks for those that are so now (LEASE-12) alone.
    """

    project_id: str
    limit: int
    prefix: str = ""
    after: str = ""
    held: bool | None = None


class LockPage(NamedTuple):
    """Records as they were at one moment, in the order of their keys' bytes, and the instant to judge them by.

    `next_after` is the `after` of the next page, None at the end. A page may be short, or empty, and not be the last.
    """

    records: Sequence[tuple[LockKey, LockRecord]]
    now_ms: int
    next_after: LockKey | None


class LockStore(Protocol):
    """The port for lock records. Every method may raise `StoreUnavailableError`."""

    async def update(self, keys: Sequence[RecordKey], step: Step) -> Sequence[object]:
        """One atomic, durable step over `keys` (distinct); see the module's head."""
        ...

    async def list_locks(self, query: LockQuery) -> LockPage:
        """One page of records, after bounded work however few of many fit the query (LIST-4).

        What a step wrote before is in it. An instant that a step would not be judged by is refused here too.
        """
        ...

    async def count_held(self) -> int:
        """How many locks are held now, over all projects (LEASE-12): for the gauge, may be a moment old."""
        ...

    async def purge(self, *, limit: int) -> int:
        """Forget up to `limit` records that `lease.purgeable` allows (LEASE-13); how many went."""
        ...

    async def ready(self) -> None:
        """Return if the store can write now, else raise `StoreUnavailableError` that says why."""
        ...


@dataclass(slots=True)
class StoreCounts:
    """What a store over a network did since it was opened, for the metrics."""

    round_trips: int = 0
    conflicts: int = 0  # a step that another node got in the way of
    retries: int = 0  # steps done again for that
    connects: int = 0
