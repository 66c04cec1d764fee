"""Reads and writes everything under the store's prefix, page by page (see `volcano_locks_server.ports.snapshot`).

A load is longer than any etcd transaction. So it begins by writing LOADING in place of the layout's version, and writes
the version last. If a load fails, no node serves from the prefix; another load deletes what is there and starts again.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Final

from ...ports.audit_entry import AuditEntry
from ...ports.registry import Project
from ...ports.snapshot import (
    PAGE_ENTRIES_MAX,
    Entry,
    StoredAdminToken,
    StoredLock,
    StoredSecret,
    StoredServiceKey,
    store_not_empty,
)
from ...rules.clock_history import NO_HISTORY, ClockHistory
from ...rules.errors import DamagedRecordError
from ..damage import damage_in, decoded, intact_pages, lock_entry, project_name, sorted_out
from ..readiness import PROBE_PROJECT
from .admin_tokens import EtcdAdminTokens
from .audit import EtcdAudit
from .clock_skew import ClockSkewMonitor
from .endpoints import Endpoints
from .layout import LOADING, SCHEMA, Layout, after, end_of
from .locks import EtcdStore
from .peer_clocks import find_clock, node_instant_in
from .registry import EtcdRegistry
from .registry_entries import SecretEntry, ServiceKeyEntry, secret_target_in
from .schema_guard import SchemaGuard, half_loaded
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
        *,
        admin_tokens: EtcdAdminTokens,
        audit: EtcdAudit,
        guard: SchemaGuard,
    ) -> None:
        self._guard: Final = guard
        self._endpoints: Final = endpoints
        self._layout: Final = layout
        self._skew_monitor: Final = skew_monitor
        self._locks: Final = locks
        self._registry: Final = registry
        self._admin_tokens: Final = admin_tokens
        self._audit: Final = audit

    async def newest_ms(self) -> int:
        return await self._skew_monitor.newest_ms()

    async def clock_history(self) -> ClockHistory:
        return self._skew_monitor.history

    def pages(self) -> AsyncIterator[Sequence[Entry]]:
        return intact_pages(self._pages())

    async def damaged(self) -> AsyncIterator[DamagedRecordError]:
        """Also a damaged record of the clock, damaged secrets, whose service keys must be regenerated, and instants of
        nodes.
        """
        if (of_clock := (await find_clock(self._endpoints, self._layout)).damage) is not None:
            yield of_clock
        async for error in damage_in(self._pages()):
            yield error
        async for error in damage_in(self._others()):
            yield error

    async def _pages(self) -> AsyncIterator[Sequence[Entry | DamagedRecordError]]:
        """Leftovers of a project whose deletion was interrupted are skipped."""
        ids: set[str] = set()
        async for projects in self._registry.all_projects(PAGE_ENTRIES_MAX):
            ids |= {_id_of(project) for project in projects}
            yield [*projects]
        async for keys in self._registry.all_keys(PAGE_ENTRIES_MAX):
            stored_keys, damaged = sorted_out(keys)
            found = [_entry(stored) for stored in stored_keys if stored.service_key.project_id in ids]
            if found or damaged:
                yield [*found, *damaged]
        async for tokens in self._admin_tokens.all_tokens(PAGE_ENTRIES_MAX):
            yield [*tokens]
        async for audit in self._audit.all_entries(PAGE_ENTRIES_MAX):
            yield [*audit]
        async for locks in self._locks.pages():
            if kept_locks := [lock_entry(key, record) for key, record in locks if key.project_id in ids]:
                yield kept_locks

    async def _others(self) -> AsyncIterator[Sequence[object]]:
        for begin, decode in ((self._layout.secrets, secret_target_in), (self._layout.nodes, node_instant_in)):
            first = begin
            while page := (await self._endpoints.read(Get(first, end_of(begin), PAGE_ENTRIES_MAX))).reads[0]:
                yield decoded(page, decode)
                first = after(page[-1].key)

    async def load(
        self, pages: AsyncIterator[Sequence[Entry]], newest_ms: int, history: ClockHistory = NO_HISTORY
    ) -> None:
        if self._endpoints.refusal is not None:  # an earlier load was interrupted
            self._endpoints.refusal = None
            await self._clear()
        elif any([await self._holds(begin, end) for begin, end in self._held]):
            raise store_not_empty()
        self._guard.is_loading = True
        await self._endpoints.write((), [Put(self._layout.schema, LOADING)])
        try:
            await self._skew_monitor.advance_to(newest_ms, history)
            async for page in pages:
                await self._write(page)
            await self._endpoints.write((), [Put(self._layout.schema, str(SCHEMA).encode())])
            self._guard.is_loading = False
        except BaseException:
            self._endpoints.refusal = half_loaded()
            raise

    @property
    def _held(self) -> Iterator[tuple[bytes, bytes]]:
        """The ranges of keys of which an empty store has none."""
        for begin in (self._layout.projects, self._layout.service_keys, self._layout.admin_tokens, self._layout.audit):
            yield begin, end_of(begin)
        probes = self._layout.locks_of(PROBE_PROJECT)
        yield self._layout.locks, probes
        yield end_of(probes), end_of(self._layout.locks)

    async def _holds(self, begin: bytes, end: bytes) -> bool:
        return bool((await self._endpoints.read(Get(begin, end, 1))).reads[0])

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
                case StoredAdminToken(token, digest):
                    await self._admin_tokens.add(token, digest)
                case AuditEntry():
                    await self._audit.append(entry)
        await self._locks.load({entry.key: entry.record for entry in page if isinstance(entry, StoredLock)})


def _id_of(project: Project | DamagedRecordError) -> str:
    return project.id if isinstance(project, Project) else project.record.removeprefix(project_name(""))


def _entry(stored: ServiceKeyEntry) -> StoredServiceKey:
    return StoredServiceKey(
        stored.service_key,
        tuple(StoredSecret(bytes.fromhex(secret.digest), secret.good_until_ms) for secret in stored.secrets),
    )
