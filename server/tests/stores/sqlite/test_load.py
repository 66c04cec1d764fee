"""Locks are loaded in the order of their keys, whatever order they come in, with a cache for the whole index."""

import random
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from volcano_locks_server.ports.registry import Project
from volcano_locks_server.ports.snapshot import Entry, StoredLock
from volcano_locks_server.rules.lease import Free
from volcano_locks_server.stores.sqlite import SqliteFile, connection, snapshot
from volcano_locks_server.testing import ManualClock

from ..store_actions import key

PROJECT = Project("p", "project", 0, 1_000)
LOCKS = [StoredLock(key(f"{number:03}", "p"), Free(number, 1_000)) for number in range(50)]
CHUNK = 15


async def pages(entries: Sequence[Entry], failure: Exception | None = None) -> AsyncIterator[Sequence[Entry]]:
    for begin in range(0, len(entries), 10):
        yield entries[begin : begin + 10]
    if failure is not None:
        raise failure


async def cache_bytes(file: SqliteFile) -> int:
    return await file._writer.run(lambda: -1024 * int(file._connection.execute("PRAGMA cache_size").get))


async def test_locks_in_any_order_are_sorted_a_part_at_a_time(
    path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KEEP-1: the parts bound the memory of a load, and no lock is lost between them."""
    monkeypatch.setattr(snapshot, "SORTED_LOCKS_MAX", CHUNK)
    shuffled = random.Random(1).sample(LOCKS, len(LOCKS))
    file = await SqliteFile.open(path, clock)
    await file.snapshot.load(pages([PROJECT, *shuffled]), 5)
    stored = [entry async for page in file.snapshot.pages() for entry in page if isinstance(entry, StoredLock)]
    assert sorted(stored) == LOCKS
    rises = [one.key < other.key for one, other in pairwise(stored)]
    assert rises.count(False) <= len(LOCKS) // CHUNK
    await file.close()


@pytest.mark.parametrize("failure", [None, OSError("the source is gone")])
async def test_the_large_cache_lasts_only_for_the_load(
    path: Path, clock: ManualClock, failure: Exception | None
) -> None:
    """KEEP-1."""
    file = await SqliteFile.open(path, clock)
    during: list[int] = []

    async def watched() -> AsyncIterator[Sequence[Entry]]:
        async for page in pages([PROJECT, *LOCKS], failure):
            during.append(await cache_bytes(file))
            yield page

    if failure is None:
        await file.snapshot.load(watched(), 5)
    else:
        with pytest.raises(OSError, match="source"):
            await file.snapshot.load(watched(), 5)
    assert set(during) == {snapshot.LOAD_CACHE_BYTES}
    assert await cache_bytes(file) == connection.CACHE_BYTES
    await file.close()
