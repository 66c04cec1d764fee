"""Maintains a store without serving from it: migrates its schema, and checks its health.

Like `open_store`, this module maps a URL to a store; the module `health` of the store's own package does the work.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from ..ports.clock import Clock, SystemClock
from . import POSTGRES, driver_needed, sqlite_path
from .health_findings import HealthFinding


class MigrationResult(NamedTuple):
    """The schema's version before the migration (0 if there was none) and after it."""

    before: int
    after: int


async def migrate(url: str, clock: Clock | None = None) -> MigrationResult:
    """Migrate the store's schema to this release's version; creates the store if it does not exist.

    Raises ValueError if `url` names no durable store, and StoreUnavailableError, whose message says what to do.
    """
    with _health(url, "so it has no schema") as (health, where):
        return MigrationResult(*await health.migrate(where, clock or SystemClock()))


async def check_health(url: str, clock: Clock | None = None) -> Sequence[HealthFinding]:
    """All findings about the store, in the order of the checks. Changes no record and no schema.

    A check that an earlier failure makes impossible is left out. Raises ValueError if `url` names no durable store.
    """
    with _health(url, "so there is nothing to check") as (health, where):
        findings: Sequence[HealthFinding] = await health.check_health(where, clock or SystemClock())
        return findings


@contextmanager
def _health(url: str, if_memory: str) -> Iterator[tuple[ModuleType, Path | str]]:
    """The module `health` of the store, and its file or URL. ValueError for a URL of no store, and for memory://."""
    path, scheme = sqlite_path(url), url.partition("://")[0]
    if scheme == "memory":
        raise ValueError(f"store memory:// keeps nothing, {if_memory}: name serve's store")
    with driver_needed(url):  # only the store in use is loaded
        yield import_module(f".{'postgres' if scheme in POSTGRES else scheme}.health", __package__), path or url
