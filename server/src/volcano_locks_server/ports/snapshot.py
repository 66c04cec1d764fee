"""All that a store remembers, as a whole: copied with the service stopped, or backed up while it runs.

`Snapshot.pages` reads a store from end to end, `load` fills an empty one. Both go page by page, so that no store need
fit in memory. What makes a copied lock safe is in two promises of `load`:

- *All or nothing.* When it returns, everything is durable. When it raises, the store is as empty as before, or can
  serve nothing until a later `load` has begun anew: it is never half a copy that answers requests.
- *Time goes on.* Afterwards the store never judges by an instant before `newest_ms`, the newest one of the store
  that was read. So a lock whose record was purged before the copy gets a fencing token above its last one all the
  same (LEASE-3), and no lease that had lapsed comes back to life (LEASE-1).

What this does not promise: a picture of a store that is being written meanwhile. That is what `Backups` is for,
where the store is one file; shared stores have their engines' own means.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Final, NamedTuple, Protocol

from ..rules.errors import StoreUnavailableError
from ..rules.lease import LockRecord
from .lock_store import RecordKey
from .registry import Project, ServiceKey

PAGE_ENTRIES_MAX: Final = 500


class KeptSecret(NamedTuple):
    """A secret of a service key: its SHA-256 digest, and how long it is good; None for the one that counts now."""

    digest: bytes
    good_until_ms: int | None


class KeptKey(NamedTuple):
    """A service key with its secrets: the one that counts, then the one before while that is remembered."""

    service_key: ServiceKey
    secrets: tuple[KeptSecret, ...]


class KeptLock(NamedTuple):
    """A lock and what is remembered of it."""

    key: RecordKey
    record: LockRecord


Entry = Project | KeptKey | KeptLock


class Snapshot(Protocol):
    """The port for reading and writing a whole store. Every method may raise `StoreUnavailableError`."""

    async def newest_ms(self) -> int:
        """The newest instant by which this store has judged, 0 for a new one.

        A store that does not write it down answers with its clock's reading now, which is no earlier.
        """
        ...

    def pages(self) -> AsyncIterator[Sequence[Entry]]:
        """Everything, in pages of 1 to PAGE_ENTRIES_MAX entries.

        First all projects, then all service keys, both in the order of their creation, then all locks in any order.
        Records that could be purged are among them.
        """
        ...

    async def load(self, pages: AsyncIterator[Sequence[Entry]], newest_ms: int) -> None:
        """Fill this store, which must be empty, with what another store's `pages` gave; see the module's head.

        The order of creation is that of the pages. Raises `store_not_empty()` where a project, a service key or a
        lock is there already, `stores.errors.clock_behind` where this store's clock has not come to `newest_ms`
        and the store has no way of waiting for it later, and whatever `pages` raises.
        """
        ...


class BackupFile(Protocol):
    """A finished backup: a file of `size_bytes` that is gone when it is closed."""

    @property
    def size_bytes(self) -> int: ...
    def read(self, offset: int, count: int) -> bytes:
        """Up to `count` bytes from `offset` on. Raises OSError."""
        ...

    def close(self) -> None: ...


class Backups(Protocol):
    """The port for back-ups of a store that serves."""

    async def take(self) -> BackupFile:
        """A backup of now. Raises LockError where there is no room for it, `StoreUnavailableError`."""
        ...


def store_not_empty() -> StoreUnavailableError:
    """Two stores cannot be made one: the same lock might be held in both."""
    return StoreUnavailableError(
        "store_not_empty", "the store to fill holds projects, keys or locks already: name an empty one"
    )
