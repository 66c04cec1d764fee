"""Everything under our prefix, read and written page by page (see `volcano_locks_server.ports.snapshot`).

etcd has no transaction as long as a load. So a load begins by writing LOADING where the layout's number is, and
writes the number last. One that fails, or dies in between, leaves a prefix from which no node serves; another load
deletes what it finds there and begins anew.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Final

from ...ports.registry import Project
from ...ports.snapshot import PAGE_ENTRIES_MAX, Entry, KeptKey, KeptLock, KeptSecret, store_not_empty
from ...rules.errors import StoreUnavailableError
from .clock_skew import Clocks
from .endpoints import Members
from .layout import LOADING, SCHEMA, Layout, after, end_of
from .locks import EtcdStore
from .registry import EtcdRegistry, Kept, Secret
from .transactions import Delete, Put, Read

BITE: Final = 1_000


class EtcdSnapshot:
    """The Snapshot. Made by `EtcdCluster`."""

    def __init__(
        self, members: Members, layout: Layout, clocks: Clocks, locks: EtcdStore, registry: EtcdRegistry
    ) -> None:
        self._members: Final = members
        self._layout: Final = layout
        self._clocks: Final = clocks
        self._locks: Final = locks
        self._registry: Final = registry

    async def newest_ms(self) -> int:
        return await self._clocks.newest_ms()

    async def pages(self) -> AsyncIterator[Sequence[Entry]]:
        """What a deleted project has left, where a node died meanwhile, belongs to nobody and is left out."""
        ids: set[str] = set()
        async for projects in self._registry.all_projects(PAGE_ENTRIES_MAX):
            ids |= {project.id for project in projects}
            yield projects
        async for keys in self._registry.all_keys(PAGE_ENTRIES_MAX):
            if found := [_entry(kept) for kept in keys if kept.service_key.project_id in ids]:
                yield found
        async for locks in self._locks.pages():
            if kept_locks := [KeptLock(key, record) for key, record in locks if key.project_id in ids]:
                yield kept_locks

    async def load(self, pages: AsyncIterator[Sequence[Entry]], newest_ms: int) -> None:
        if self._members.refusal is not None:  # an earlier load has not come to its end
            self._members.refusal = None
            await self._clear()
        elif any([await self._holds(begin) for begin in self._held]):
            raise store_not_empty()
        await self._members.write((), [Put(self._layout.schema, LOADING)])
        try:
            await self._clocks.go_on_from(newest_ms)
            async for page in pages:
                await self._write(page)
            await self._members.write((), [Put(self._layout.schema, str(SCHEMA).encode())])
        except BaseException:
            self._members.refusal = half_loaded()
            raise

    @property
    def _held(self) -> tuple[bytes, ...]:
        return self._layout.projects, self._layout.service_keys, self._layout.locks

    async def _holds(self, begin: bytes) -> bool:
        return bool((await self._members.read(Read(begin, end_of(begin), 1))).found[0])

    async def _clear(self) -> None:
        root = self._layout.root
        while bite := (await self._members.read(Read(root, end_of(root), BITE, keys_only=True))).found[0]:
            await self._members.write((), [Delete(root, after(bite[-1].key))])

    async def _write(self, page: Sequence[Entry]) -> None:
        for entry in page:
            match entry:
                case Project():
                    await self._registry.add_project(entry)
                case KeptKey(service_key, secrets):
                    kept = tuple(Secret(secret.digest.hex(), secret.good_until_ms) for secret in secrets)
                    await self._registry.add_kept(Kept(service_key, kept))
        await self._locks.load({entry.key: entry.record for entry in page if isinstance(entry, KeptLock)})


def half_loaded() -> StoreUnavailableError:
    """Nobody serves from half a copy."""
    return StoreUnavailableError(
        "half_loaded", "under this prefix etcd holds a copy that did not come to its end: copy again, or name another"
    )


def _entry(kept: Kept) -> KeptKey:
    return KeptKey(
        kept.service_key,
        tuple(KeptSecret(bytes.fromhex(secret.digest), secret.good_until_ms) for secret in kept.secrets),
    )
