"""Looking after a store without serving from it: bringing its schema on, and examining it.

Like `open_store`, this knows which URL means which store; each store's folder knows how.
"""

from collections.abc import Sequence
from typing import NamedTuple

from ..ports.clock import Clock, SystemClock
from . import shown_url, sqlite_path
from .health_findings import Finding


class Migrated(NamedTuple):
    """The version of a store's schema before (0: there was none) and after."""

    before: int
    after: int


async def migrate(url: str, clock: Clock | None = None) -> Migrated:
    """Bring the store's schema to this release's version, making the store where there is none.

    Raises ValueError for a URL of no store that is kept, and StoreUnavailableError, whose message says what to do.
    """
    clock = clock if clock is not None else SystemClock()
    path, scheme = sqlite_path(url), url.partition("://")[0]
    if path is not None:
        from .sqlite.health import migrate as migrate_sqlite  # noqa: PLC0415 - only what is asked for is loaded

        return Migrated(*await migrate_sqlite(path, clock))
    if scheme == "memory":
        raise ValueError("store memory:// keeps nothing, so it has no schema: name the store that serve uses")
    try:
        if scheme == "etcd":
            from .etcd.health import migrate as migrate_etcd  # noqa: PLC0415

            return Migrated(*await migrate_etcd(url, clock))
        from .postgres import migrate as migrate_postgres  # noqa: PLC0415

        return Migrated(*await migrate_postgres(url))
    except ModuleNotFoundError as error:
        raise _not_installed(scheme, error) from None


async def examine(url: str, clock: Clock | None = None) -> Sequence[Finding]:
    """All that is found about the store, in the order of looking. Changes no record and no schema.

    Where one thing hides the rest, the rest is left out. Raises ValueError for a URL of no store that is kept.
    """
    clock = clock if clock is not None else SystemClock()
    path, scheme = sqlite_path(url), url.partition("://")[0]
    if path is not None:
        from .sqlite.health import examine as examine_sqlite  # noqa: PLC0415

        return await examine_sqlite(path, clock)
    if scheme == "memory":
        raise ValueError("store memory:// keeps nothing that could be examined: name the store that serve uses")
    try:
        if scheme == "etcd":
            from .etcd.health import examine as examine_etcd  # noqa: PLC0415

            return await examine_etcd(url, clock)
        from .postgres.health import examine as examine_postgres  # noqa: PLC0415

        return await examine_postgres(url, clock)
    except ModuleNotFoundError as error:
        raise _not_installed(scheme, error) from None


def _not_installed(scheme: str, error: ModuleNotFoundError) -> ValueError:
    extra = "etcd" if scheme == "etcd" else "postgres"
    return ValueError(
        f"store {shown_url(scheme + '://')} needs the package {error.name}: pip install 'volcano-locks-server[{extra}]'"
    )
