"""A store that can be told to fail, around a real one: for the scenarios in which the store cannot answer."""

from collections.abc import Sequence
from typing import Final

from volcano_locks_server.ports.lock_store import LockPage, LockQuery, LockStore, RecordKey, Step
from volcano_locks_server.rules.errors import StoreUnavailableError

ENDLESS: Final = 1 << 30


class FaultyStore:
    """The store `inner`, except that it fails the next `failures` updates, `before` or `after` they are written."""

    def __init__(self, inner: LockStore) -> None:
        self.inner = inner
        self._kind = ""
        self._failures = 0

    def fail(self, kind: str, count: int = ENDLESS) -> None:
        """`store_before`: nothing is written. `store_after`: it is, but nobody is told. 0 ends the trouble."""
        self._kind, self._failures = kind, count

    async def update(self, keys: Sequence[RecordKey], step: Step) -> Sequence[object]:
        fails = self._failures > 0
        self._failures -= fails
        if fails and self._kind == "store_before":
            raise StoreUnavailableError("store_error", "the store was told to fail")
        results = await self.inner.update(keys, step)
        if fails:
            raise StoreUnavailableError("store_error", "the store was told to fail")
        return results

    async def list_locks(self, query: LockQuery) -> LockPage:
        return await self.inner.list_locks(query)

    async def count_held(self) -> int:
        return await self.inner.count_held()

    async def purge(self, *, limit: int) -> int:
        return await self.inner.purge(limit=limit)

    async def ready(self) -> None:
        await self.inner.ready()
