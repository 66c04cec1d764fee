"""The ports for the content of a store as a whole: copies while the service is stopped, backups while it runs.

`Snapshot.pages` reads a whole store, `load` fills an empty one. Both work page by page, so that a store need not fit
in memory. Two promises of `load` keep copied locks safe:

- *All or nothing.* When it returns, everything is durable. When it raises, the store is empty, or refuses requests
  until a later `load` succeeds. A partial copy never serves.
- *Time goes on.* Afterwards the store uses no instant before `newest_ms`, the newest one of the store that was read.
  So a lock that was purged before the copy gets a fencing token above its last one (LEASE-3), and an expired lease
  stays expired (LEASE-1). If this store's clock is ahead of the other one's, takeovers are held (LEASE-17).

A snapshot of a store that is being written is not consistent. `Backups` is for that, if the store is one file; shared
stores are backed up with their engines' tools.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Final, NamedTuple, Protocol

from ..rules.clock_history import NO_HISTORY, ClockHistory
from ..rules.errors import DamagedRecordError, StoreUnavailableError
from ..rules.lease import LockRecord
from .admin_tokens import AdminToken
from .audit_entry import AuditEntry
from .lock_store import RecordKey
from .registry import Project, ServiceKey

PAGE_ENTRIES_MAX: Final = 500


class StoredSecret(NamedTuple):
    """A secret of a service key: its SHA-256 digest, and when it expires; None for the current secret."""

    digest: bytes
    good_until_ms: int | None


class StoredServiceKey(NamedTuple):
    """A service key with its secrets: the current one, then the previous one if it is stored."""

    service_key: ServiceKey
    secrets: tuple[StoredSecret, ...]


class StoredAdminToken(NamedTuple):
    """An admin token with its SHA-256 digest."""

    token: AdminToken
    digest: bytes


class StoredLock(NamedTuple):
    """A lock and its record."""

    key: RecordKey
    record: LockRecord


Entry = Project | StoredServiceKey | StoredAdminToken | AuditEntry | StoredLock


class Snapshot(Protocol):
    """The port for reading and writing a whole store. Every method may raise `StoreUnavailableError`."""

    async def newest_ms(self) -> int:
        """This store's time now, or the newest instant that it has used if that is later."""
        ...

    async def clock_history(self) -> ClockHistory:
        """The past of this store's clock, to be loaded together with `newest_ms`."""
        ...

    def pages(self) -> AsyncIterator[Sequence[Entry]]:
        """Everything, in pages of 1 to PAGE_ENTRIES_MAX entries.

        First all projects, then all service keys, then all admin tokens, each in the order of their creation, then the
        audit in order, then all locks in any order, including those that could be purged. Raises
        StoreUnavailableError at a record that cannot be decoded.
        """
        ...

    def damaged(self) -> AsyncIterator[DamagedRecordError]:
        """The records that cannot be decoded (LEASE-18), in any order. `pages` raises at one."""
        ...

    async def load(
        self, pages: AsyncIterator[Sequence[Entry]], newest_ms: int, history: ClockHistory = NO_HISTORY
    ) -> None:
        """Fill this store, which must be empty, with the pages of another one; see the module's docstring.

        The order of creation is that of the pages. Raises `store_not_empty()` if the store has a project, a service
        key, an admin token, a lock or an entry of the audit, `stores.errors.clock_behind` if this store's clock is
        before `newest_ms` and the store cannot wait for it later, and whatever `pages` raises.
        """
        ...


class BackupFile(Protocol):
    """A finished backup: a file of `size_bytes` that `close` deletes."""

    @property
    def size_bytes(self) -> int: ...
    def read(self, offset: int, count: int) -> bytes:
        """Up to `count` bytes from `offset` on. Raises OSError."""
        ...

    def close(self) -> None: ...


class Backups(Protocol):
    """The port for backups of a running store."""

    async def take(self) -> BackupFile:
        """Make a backup. Raises LockError if the disk has no space for it, and `StoreUnavailableError`."""
        ...


def store_not_empty() -> StoreUnavailableError:
    """Two stores cannot be merged, because the same lock may be held in both."""
    return StoreUnavailableError(
        "store_not_empty",
        "the target store holds projects, keys, admin tokens, locks or an audit already: choose an empty one",
    )
