"""Stores remember; they do not decide. One file or folder each; none imports another (see DESIGN.md).

`open_store` is the only place that knows which URL means which store.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..clock import Clock
from ..limits import shown
from ..store import LockStore, Registry

LATER: Final = frozenset({"postgresql", "postgres", "etcd"})


@dataclass(frozen=True, slots=True)
class OpenStore:
    """A store in use: its two ports, and `close`, which finishes what is queued and lets go of everything."""

    locks: LockStore
    registry: Registry
    close: Callable[[], Awaitable[None]]


def sqlite_path(url: str) -> Path | None:
    """The file that a `sqlite:///relative.db` or `sqlite:////absolute.db` URL names, None for the memory store.

    The path is taken as it stands, without percent-decoding. Raises ValueError, for people to read, on anything else.
    """
    scheme, separator, rest = url.partition("://")
    if scheme in LATER and separator:
        raise ValueError(f"store {scheme}:// is not in this release: use sqlite:///locks.db, or memory:// for a trial")
    if scheme == "memory" and separator and not rest:
        return None
    if scheme == "sqlite" and rest.startswith("/") and len(rest) > 1 and not rest.endswith("/"):
        return Path(rest[1:])
    got = f"{scheme}://…" if separator else shown(url)  # what follows may hold a password
    raise ValueError(f"store must be sqlite:///relative.db, sqlite:////absolute.db or memory://; got {got}")


async def open_store(url: str, clock: Clock) -> OpenStore:
    """Open the store that `url` names, creating a SQLite file that is not there.

    Raises ValueError for a URL that names no store of this release, and StoreUnavailableError, whose message says
    what to do, where the file cannot be used.
    """
    path = sqlite_path(url)
    if path is None:
        from .memory import MemoryRegistry, MemoryStore  # noqa: PLC0415 - only the store that is asked for is loaded

        locks = MemoryStore(clock)
        return OpenStore(locks, MemoryRegistry(locks), _nothing_to_close)
    from .sqlite import SqliteFile  # noqa: PLC0415

    file = await SqliteFile.open(path, clock)
    return OpenStore(file.locks, file.registry, file.close)


async def _nothing_to_close() -> None:
    return
