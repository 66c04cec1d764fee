"""Reads and writes everything under the store's prefix, page by page (see `volcano_locks_server.ports.snapshot`).

A load is longer than any etcd transaction. So it begins by writing LOADING in place of the layout's version, and writes
the version last. If a load fails, no node serves from the prefix; another load deletes what is there and starts again.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Final

from ...ports.registry import Project
from ...ports.snapshot import PAGE_ENTRIES_MAX, Entry, StoredLock, StoredSecret, StoredServiceKey, store_not_empty
from ...rules.errors import StoreUnavailableError
from .clock_skew import ClockSkewMonitor
from .endpoints import Endpoints
from .layout import LOADING, SCHEMA, Layout, after, end_of
from .locks import EtcdStore
from .registry import EtcdRegistry
from .registry_entries import SecretEntry, ServiceKeyEntry
from .transactions import Delete, Get, Put

KEYS_PER_DELETION: Final = 1_000


class EtcdSnapshot:
    """The Snapshot. Made by `EtcdCluster`."""

    def __init__(
        self,
        endpoints: Endpoints,
        layout: Layout,
        skew_monitor: ClockSkewMonitor,
        locks: EtcdStore,
        registry: EtcdRegistry,
    ) -> None:
        self._endpoints: Final = endpoints
        self._layout: Final = layout
        self._skew_monitor: Final = skew_monitor
        self._locks: Final = locks
        self._registry: Final = registry

    async def newest_ms(self) -> int:
        return await self._skew_monitor.newest_ms()

    async def pages(self) -> AsyncIterator[Sequence[Entry]]:
        """Leftovers of a project whose deletion was interrupted are skipped."""
        ids: set[str] = set()
        async for projects in self._registry.all_projects(PAGE_ENTRIES_MAX):
            ids |= {project.id for project in projects}
            yield projects
        async for keys in self._registry.all_keys(PAGE_ENTRIES_MAX):
            if found := [_entry(stored) for stored in keys if stored.service_key.project_id in ids]:
                yield found
        async for locks in self._locks.pages():
            if kept_locks := [StoredLock(key, record) for key, record in locks if key.project_id in ids]:
                yield kept_locks

    async def load(self, pages: AsyncIterator[Sequence[Entry]], newest_ms: int) -> None:
        if self._endpoints.refusal is not None:  # an earlier load was interrupted
            self._endpoints.refusal = None
            await self._clear()
        elif any([await self._holds(begin) for begin in self._held]):
            raise store_not_empty()
        await self._endpoints.write((), [Put(self._layout.schema, LOADING)])
        try:
            await self._skew_monitor.advance_to(newest_ms)
            async for page in pages:
                await self._write(page)
            await self._endpoints.write((), [Put(self._layout.schema, str(SCHEMA).encode())])
        except BaseException:
            self._endpoints.refusal = half_loaded()
            raise

    @property
    def _held(self) -> tuple[bytes, ...]:
        return self._layout.projects, self._layout.service_keys, self._layout.locks

    async def _holds(self, begin: bytes) -> bool:
        return bool((await self._endpoints.read(Get(begin, end_of(begin), 1))).reads[0])

    async def _clear(self) -> None:
        root = self._layout.root
        while page := (await self._endpoints.read(Get(root, end_of(root), KEYS_PER_DELETION, keys_only=True))).reads[0]:
            await self._endpoints.write((), [Delete(root, after(page[-1].key))])

    async def _write(self, page: Sequence[Entry]) -> None:
        for entry in page:
            match entry:
                case Project():
                    await self._registry.add_project(entry)
                case StoredServiceKey(service_key, secrets):
                    stored = tuple(SecretEntry(secret.digest.hex(), secret.good_until_ms) for secret in secrets)
                    await self._registry.add_stored(ServiceKeyEntry(service_key, stored))
        await self._locks.load({entry.key: entry.record for entry in page if isinstance(entry, StoredLock)})


def half_loaded() -> StoreUnavailableError:
    """The error of every call on an incomplete copy."""
    return StoreUnavailableError(
        "half_loaded", "the copy under this prefix of etcd is incomplete: copy again, or name another prefix"
    )


def _entry(stored: ServiceKeyEntry) -> StoredServiceKey:
    return StoredServiceKey(
        stored.service_key,
        tuple(StoredSecret(bytes.fromhex(secret.digest), secret.good_until_ms) for secret in stored.secrets),
    )
