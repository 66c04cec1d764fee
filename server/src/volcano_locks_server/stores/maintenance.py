"""Maintains a store without serving from it: migrates its schema, and checks its health.

Like `open_store`, this module maps a URL to a store; the store's own package does the work.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from ..ports.clock import Clock, SystemClock
from . import shown_url, sqlite_path
from .health_findings import HealthFinding


class MigrationResult(NamedTuple):
    """The schema's version before the migration (0 if there was none) and after it."""

    before: int
    after: int


async def migrate(url: str, clock: Clock | None = None) -> MigrationResult:
    """Migrate the store's schema to this release's version; creates the store if it does not exist.

    Raises ValueError if `url` names no durable store, and StoreUnavailableError, whose message says what to do.
    """
    clock = clock if clock is not None else SystemClock()
    path, scheme = _durable_store(url, "store memory:// keeps nothing, so it has no schema: name serve's store")
    if path is not None:
        from .sqlite.health import migrate as migrate_sqlite  # noqa: PLC0415 - load only the store in use

        return MigrationResult(*await migrate_sqlite(path, clock))
    with _driver_needed(scheme):
        if scheme == "etcd":
            from .etcd.health import migrate as migrate_etcd  # noqa: PLC0415

            return MigrationResult(*await migrate_etcd(url, clock))
        from .postgres import migrate as migrate_postgres  # noqa: PLC0415

        return MigrationResult(*await migrate_postgres(url))


async def check_health(url: str, clock: Clock | None = None) -> Sequence[HealthFinding]:
    """All findings about the store, in the order of the checks. Changes no record and no schema.

    A check that an earlier failure makes impossible is left out. Raises ValueError if `url` names no durable store.
    """
    clock = clock if clock is not None else SystemClock()
    path, scheme = _durable_store(
        url, "store memory:// keeps nothing, so there is nothing to check: name serve's store"
    )
    if path is not None:
        from .sqlite.health import check_health as check_sqlite  # noqa: PLC0415

        return await check_sqlite(path, clock)
    with _driver_needed(scheme):
        if scheme == "etcd":
            from .etcd.health import check_health as check_etcd  # noqa: PLC0415

            return await check_etcd(url, clock)
        from .postgres.health import check_health as check_postgres  # noqa: PLC0415

        return await check_postgres(url, clock)


def _durable_store(url: str, if_memory: str) -> tuple[Path | None, str]:
    """The SQLite file, or None, and the URL's scheme. ValueError for a URL of no store, and for memory://."""
    path, scheme = sqlite_path(url), url.partition("://")[0]
    if scheme == "memory":
        raise ValueError(if_memory)
    return path, scheme


@contextmanager
def _driver_needed(scheme: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        extra = "etcd" if scheme == "etcd" else "postgres"
        raise ValueError(
            f"store {shown_url(scheme + '://')} needs the package {error.name}: "
            f"pip install 'volcano-locks-server[{extra}]'"
        ) from None
