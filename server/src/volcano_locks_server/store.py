"""What the service needs of a store: to remember, never to decide.

`LockStore.update` is the one verb that writes. In one atomic unit it reads the records of `keys`, reads its
clock once, calls the pure `step(records, now_ms)`, writes the records that changed, makes them durable, and only
then returns the step's results (LEASE-14). If another writer got in between, the store calls `step` again with
what it found, so `step` must have no effect but its return value. What cannot be done raises
`StoreUnavailableError` with nothing half written (LEASE-16).

`Registry` remembers projects and service keys, of which only a SHA-256 digest of the secret is kept.
`QuotaStore` is what nodes of one service share of a project's minute; a store that serves one process has none.
`Signals` is how they tell each other at once what they would otherwise find by looking; no lease depends on it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, TypeVar

from .lease import LockRecord
from .limits import LockKey

SIGNAL_BYTES_MAX: Final = 1_500


class RecordKey(NamedTuple):
    """Which lock: its project's id and its key in that project."""

    project_id: str
    key: LockKey


Records = Mapping[RecordKey, LockRecord | None]
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


class QuotaStore(Protocol):
    """The part of a project's minute that nodes share. Need not be durable. May raise `StoreUnavailableError`."""

    async def take(self, project_id: str, window_started_at_ms: int, *, limit: int, wanted: int) -> int:
        """Draw up to `wanted` requests of the project's minute for this node; how many were drawn, 0 once `limit`
        are gone.
        """
        ...


class Signals(Protocol):
    """What the nodes of one service tell each other: soon, not durably, and maybe not at all.

    A message may be read, made up, repeated or kept back by whoever may use the store's engine: it is a reason to
    look, never a truth, and holds no token and no digest.
    """

    @property
    def working(self) -> bool:
        """Whether messages are heard now. While not, `missed` is told every few seconds: look by yourself."""
        ...

    def start(self, heard: Callable[[bytes], None], missed: Callable[[], None]) -> None:
        """Begin to hear; once. Both are called in this event loop, and raise nothing.

        `heard` gets each message of every node, this one's too, those of one node in the order they were told.
        `missed` says that some may be lost: at the begin, after a reconnect, a compaction, a full queue, or while
        nothing can be heard.
        """
        ...

    def tell(self, message: bytes) -> None:
        """Queue a message for every node; never waits. Many go out together.

        ValueError for one of more than SIGNAL_BYTES_MAX bytes, or with a newline. A full queue drops the oldest, and
        everybody is told `missed` as soon as they can be. What is told before `start` waits for it.
        """
        ...

    async def close(self) -> None:
        """Send what is queued if that goes quickly, then hear and tell nothing more."""
        ...


@dataclass(frozen=True, slots=True)
class Project:
    """A tenant. `requests_per_minute` 0 means no quota."""

    id: str
    name: str
    requests_per_minute: int
    created_at_ms: int


@dataclass(frozen=True, slots=True)
class ServiceKey:
    """A credential of a project; its secret is known only to its bearer.

    `key_prefix` is the beginning of the secret, shown so that people can tell keys apart. `expires_at_ms` None means
    never.
    """

    id: str
    project_id: str
    name: str
    key_prefix: str
    permissions: tuple[str, ...]
    created_at_ms: int
    expires_at_ms: int | None = None
    last_used_at_ms: int | None = None


class Credential(NamedTuple):
    """What a secret opens: the key, its project, and until when: the end of the secret or of the key, whichever is
    first (None: no end).
    """

    service_key: ServiceKey
    project: Project
    good_until_ms: int | None


class Page(NamedTuple):
    """Part of a list: `items` in the order of their ids' creation, and where the next part begins, if any."""

    items: Sequence[Project] | Sequence[ServiceKey]
    next_cursor: str | None


class Registry(Protocol):
    """The port for projects and service keys.

    Ids are UUIDs made by the caller. Methods raise LockError `name_taken` where a name is not unique, `not_found`
    where an id is unknown, `invalid_request` for a cursor that this registry did not give, and
    `StoreUnavailableError`. All writes are durable when the method returns.
    """

    async def add_project(self, project: Project) -> None: ...
    async def project(self, project_id: str) -> Project: ...
    async def projects(self, *, limit: int, cursor: str | None) -> Page: ...
    async def change_project(
        self, project_id: str, *, name: str | None, requests_per_minute: int | None
    ) -> Project: ...
    async def delete_project(self, project_id: str) -> None:
        """Also deletes the project's service keys and lock records."""
        ...

    async def add_service_key(self, service_key: ServiceKey, secret_digest: bytes) -> None: ...
    async def service_key(self, project_id: str, key_id: str) -> ServiceKey: ...
    async def service_keys(self, project_id: str, *, limit: int, cursor: str | None) -> Page: ...
    async def delete_service_key(self, project_id: str, key_id: str) -> None: ...
    async def replace_secret(
        self,
        project_id: str,
        key_id: str,
        *,
        secret_digest: bytes,
        key_prefix: str,
        old_secret_good_until_ms: int | None,
    ) -> ServiceKey:
        """Give the key a new secret; the one before lives on until the instant given, or ends now (None)."""
        ...

    async def credential(self, secret_digest: bytes) -> Credential | None:
        """What this secret opens, without looking at the time: the caller compares `good_until_ms`."""
        ...

    async def touch_service_keys(self, last_used_at_ms: Mapping[str, int]) -> None:
        """Remember when keys (by id) were last used; unknown ids are passed over. Never moves back."""
        ...
