"""The stores: each keeps lock records, projects and service keys, and decides nothing.

`open_store` maps a URL to a store. A store is one file or package, and none imports another.
docs/architecture/stores.md explains how each isolates its transactions.
"""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..ports.admin_tokens import AdminTokens
from ..ports.audit import AuditLog
from ..ports.clock import Clock, SystemClock
from ..ports.lock_store import BATCH_MAX, LockStore, StoreCounts
from ..ports.nodes import NodeView
from ..ports.quota_store import QuotaStore
from ..ports.registry import Registry, RegistryRepairs
from ..ports.session_store import SessionStore
from ..ports.signals import Signals
from ..ports.snapshot import Backups, Snapshot
from ..ports.store_file import StoreFile
from ..rules.values import shown

if TYPE_CHECKING:
    from .etcd import EtcdCluster
    from .postgres import PostgresDatabase

POSTGRES: Final = frozenset({"postgresql", "postgres"})
ETCD: Final = "etcd"


async def _nothing_to_close() -> None:
    return


@dataclass(frozen=True, slots=True)
class OpenStore:
    """An open store: its ports, and `close`, which finishes queued work and releases all resources.

    - `quotas`: None if only one process uses the store, which then keeps the counts itself.
    - `batches_in_flight`: how many concurrent updates serve one process best. A key may be in only one of them.
    - `batch_max`: an update of up to this many keys is atomic.
    - `snapshot`: reads and writes the store as a whole; None if the store cannot.
    - `backups`: None if the engine's own tools back the store up.
    - `signals`: None if there are no other nodes.
    - `is_new`: opening it created the schema of a shared store.
    - `file`: None if the store is not a file of this process.
    - `repairs`: None if nothing in the store can be damaged.
    - `nodes`: what the store knows about nodes; None if there are no others and no clock but this process's.
    """

    locks: LockStore
    registry: Registry
    admin_tokens: AdminTokens
    sessions: SessionStore
    audit: AuditLog
    close: Callable[[], Awaitable[None]] = _nothing_to_close
    quotas: QuotaStore | None = None
    batches_in_flight: int = 1
    counts: StoreCounts | None = None
    snapshot: Snapshot | None = None
    backups: Backups | None = None
    batch_max: int = BATCH_MAX
    signals: Signals | None = None
    is_new: bool = False
    file: StoreFile | None = None
    repairs: RegistryRepairs | None = None
    nodes: NodeView | None = None


def sqlite_path(url: str) -> Path | None:
    """The file that a `sqlite:///relative.db` or `sqlite:////absolute.db` URL names; None for a store without a file.

    The path is taken literally, without percent-decoding. Raises ValueError, with a message for users, for any other
    URL.
    """
    scheme, separator, rest = url.partition("://")
    if (scheme == "memory" and separator and not rest) or (scheme in POSTGRES | {ETCD} and rest):
        return None
    if scheme == "sqlite" and rest.startswith("/") and len(rest) > 1 and not rest.endswith("/"):
        return Path(rest[1:])
    got = f"{scheme}://…" if separator else shown(url)  # the rest may hold a password
    raise ValueError(
        "store must be sqlite:///relative.db, sqlite:////absolute.db, postgresql://user:password@host/database, "
        f"etcd://host:port,host:port or memory://; got {got}"
    )


def shown_url(url: str) -> str:
    """The URL for logs, messages and lists, without user, password and parameters.

    The path of a SQLite file is not secret and stays whole.
    """
    scheme, separator, rest = url.partition("://")
    if scheme == "sqlite" or not separator:
        return url if separator else shown(url)
    before, at, location = rest.rpartition("@")
    if at and "?" in before:  # the @ may be in a parameter or the ? in a password: show nothing after the scheme
        return f"{scheme}://…"
    return f"{scheme}://{location.partition('?')[0]}"


async def open_store(url: str, clock: Clock) -> OpenStore:
    """Open the store that `url` names; creates a missing SQLite file.

    `clock` is the time source of a store that has none of its own. PostgreSQL follows `clock` only if it is not the
    system's, so that a test can set it (LEASE-1). Raises ValueError if this release has no such store, and
    StoreUnavailableError, whose message says what to do, if the store cannot be used.
    """
    path = sqlite_path(url)
    if path is not None:
        from .sqlite import SqliteFile  # noqa: PLC0415 - load only the store in use

        file = await SqliteFile.open(path, clock)
        return OpenStore(
            file.locks,
            file.registry,
            file.admin_tokens,
            file.sessions,
            file.audit,
            file.close,
            snapshot=file.snapshot,
            backups=file.backups,
            file=file,
            repairs=file.repairs,
        )
    scheme = url.partition("://")[0]
    if scheme in POSTGRES | {ETCD}:
        return await _open_shared(url, clock)
    from .memory import MemoryRegistry, MemorySnapshot, MemoryStore  # noqa: PLC0415
    from .memory_admin_tokens import MemoryAdminTokens  # noqa: PLC0415
    from .memory_sessions import MemorySessions  # noqa: PLC0415

    locks = MemoryStore(clock)
    admin_tokens = MemoryAdminTokens(locks.audit)
    registry = MemoryRegistry(locks)
    snapshot = MemorySnapshot(locks, registry, admin_tokens)
    return OpenStore(locks, registry, admin_tokens, MemorySessions(locks.audit), locks.audit, snapshot=snapshot)


async def _open_shared(url: str, clock: Clock) -> OpenStore:
    with driver_needed(url):
        if url.startswith(ETCD):
            from .etcd import EtcdCluster  # noqa: PLC0415

            return _shared(await EtcdCluster.open(url, clock))
        from .postgres import PostgresDatabase  # noqa: PLC0415

        return _shared(await PostgresDatabase.open(url, clock=None if isinstance(clock, SystemClock) else clock))


def _shared(opened: "PostgresDatabase | EtcdCluster") -> OpenStore:
    return OpenStore(
        opened.locks,
        opened.registry,
        opened.admin_tokens,
        opened.sessions,
        opened.audit,
        opened.close,
        opened.quotas,
        batches_in_flight=opened.batches_in_flight,
        counts=opened.counts,
        snapshot=opened.snapshot,
        batch_max=opened.batch_max,
        signals=opened.signals,
        is_new=opened.is_new,
        repairs=opened.repairs,
        nodes=opened.nodes,
    )


@contextmanager
def driver_needed(url: str) -> Iterator[None]:
    """Inside the block, a missing driver of the store that `url` names raises ValueError, which names its package."""
    try:
        yield
    except ModuleNotFoundError as error:
        scheme, extra = ("etcd", "etcd") if url.startswith(ETCD) else ("postgresql", "postgres")
        raise ValueError(
            f"store {scheme}:// needs the package {error.name}: pip install 'volcano-locks-server[{extra}]'"
        ) from None
