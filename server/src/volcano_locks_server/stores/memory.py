"""The store in memory, for tests and for trying the service out. It loses everything when the process ends.

Dictionaries on one event loop, without an await inside an update, so every update is atomic. It keeps every promise of
a store except durability.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import replace
from heapq import nsmallest
from itertools import count, islice
from operator import itemgetter
from typing import Final, TypeVar

from ..ports.audit import key_entry, project_entry
from ..ports.audit_entry import Act, AuditEntry
from ..ports.clock import Clock
from ..ports.lock_store import (
    HistoryPage,
    HistoryQuery,
    LockPage,
    LockQuery,
    RecordKey,
    Step,
    TakeoverHold,
    hold_in_force,
)
from ..ports.registry import Credential, NewSecret, Page, Project, ServiceKey
from ..ports.snapshot import (
    PAGE_ENTRIES_MAX,
    Entry,
    StoredAdminToken,
    StoredLock,
    StoredSecret,
    StoredServiceKey,
    store_not_empty,
)
from ..rules.clock_history import NO_HISTORY, ClockHistory
from ..rules.errors import DamagedRecordError, LockError
from ..rules.history import ENTRIES_MAX, entry_at_purge
from ..rules.lease import Damaged, Free, Held, LockRecord, StoredRecord, blocks_others, purgeable
from .cursor import decode_cursor, encode_cursor
from .damage import damage_in, intact_pages, lock_entry
from .errors import clock_behind, project_name_taken, project_not_found, service_key_name_taken, service_key_not_found
from .history_pages import SCAN_ENTRIES, lock_page, locks_page, scanned_keys
from .lock_pages import build_page, key_range
from .memory_admin_tokens import MemoryAdminTokens
from .memory_audit import MemoryAudit
from .memory_history import MemoryHistory
from .readiness import PROBE_KEY, PROBE_PROJECT, write_probe

COUNT_RECORDS_MAX: Final = 5_000  # in one turn of the event loop: about a millisecond

E = TypeVar("E", Project, ServiceKey)


class MemoryStore:
    """Lock records in a dictionary."""

    def __init__(self, clock: Clock) -> None:
        self._clock: Final = clock
        self.newest_ms = 0
        self.history = NO_HISTORY
        self.audit: Final = MemoryAudit()
        self.records: Final[dict[RecordKey, StoredRecord]] = {}
        self._entries: Final = MemoryHistory()

    async def update(self, keys: Sequence[RecordKey], step: Step) -> Sequence[object]:
        now_ms = self._now_ms()
        stepped = step(self.history.present_all({key: self.records.get(key) for key in keys}, now_ms), now_ms)
        self.records.update(stepped.changed)
        self.audit.add(stepped.audit)
        self._entries.add(stepped.ended)
        return stepped.results

    async def list_locks(self, query: LockQuery) -> LockPage:
        now_ms = self._now_ms()
        begin, end = key_range(query)
        matching = (
            (lock.key, record)
            for lock, record in self.records.items()
            if lock.project_id == query.project_id
            and begin <= lock.key < end
            and (isinstance(record, Damaged) or query.held in (None, self._blocks_others(record, now_ms)))
        )
        requested = query.limit + 1
        found = nsmallest(requested, matching, key=itemgetter(0))
        return build_page(query, found, now_ms, history=self.history, requested=requested)

    async def count_held(self) -> int:
        now_ms, held = self._now_ms(), 0
        records = list(self._presented(now_ms).values())
        for begin in range(0, len(records), COUNT_RECORDS_MAX):
            part = records[begin : begin + COUNT_RECORDS_MAX]
            held += sum(isinstance(one, Held) and blocks_others(one, now_ms) for one in part)
            await asyncio.sleep(0)
        return held

    async def purge(self, *, limit: int, keeps_history: bool = False) -> int:
        now_ms = self._now_ms()
        intact = ((key, one) for key, one in self._presented(now_ms).items() if isinstance(one, Held | Free))
        gone = list(islice(((key, record) for key, record in intact if purgeable(record, now_ms)), limit))
        for key, record in gone:
            del self.records[key]
            if keeps_history and (entry := entry_at_purge(record)) is not None:
                self._entries.add([(key, entry)])
        return len(gone)

    async def history_page(self, query: HistoryQuery) -> HistoryPage:
        now_ms = self._now_ms()
        if query.key is not None:
            lock = RecordKey(query.project_id, query.key)
            record = self.records.get(lock)
            return lock_page(query, record, self._entries.of(lock), now_ms, self.history)
        begin, end = scanned_keys(query)
        in_range = (
            (lock.key, record)
            for lock, record in self.records.items()
            if lock.project_id == query.project_id and begin <= lock.key < end
        )
        records = nsmallest(SCAN_ENTRIES, in_range, key=itemgetter(0))
        return locks_page(query, records, self._entries.scan(query), now_ms, self.history)

    async def purge_history(self, *, kept_days: int, limit: int, entries_max: int | None = None) -> int:
        kept_max = ENTRIES_MAX if entries_max is None else entries_max
        return self._entries.purge(self._now_ms(), kept_days=kept_days, limit=limit, entries_max=kept_max)

    async def ready(self) -> None:
        await write_probe(self, PROBE_KEY)

    def takeover_hold(self) -> TakeoverHold | None:
        return hold_in_force(self.history, self._clock.now_ms())

    def delete_locks_of(self, project_id: str) -> None:
        """Delete every record of the project, and its history."""
        for key in [key for key in self.records if key.project_id == project_id]:
            del self.records[key]
        self._entries.delete_project(project_id)

    def _blocks_others(self, record: LockRecord, now_ms: int) -> bool:
        return blocks_others(self.history.present(record, now_ms), now_ms)

    def _presented(self, now_ms: int) -> Mapping[RecordKey, StoredRecord | None]:
        return self.history.present_all(self.records, now_ms)

    def _now_ms(self) -> int:
        now_ms = self._clock.now_ms()
        if now_ms < self.newest_ms:
            raise clock_behind(now_ms, self.newest_ms)
        self.newest_ms = now_ms
        return now_ms


class MemoryRegistry:
    """Projects and service keys in dictionaries, in order of creation."""

    def __init__(self, locks: MemoryStore, audit: MemoryAudit | None = None) -> None:
        self._locks: Final = locks
        self._audit: Final = locks.audit if audit is None else audit
        self._next_position: Final = count(1)
        self._positions: Final[dict[str, int]] = {}
        self._projects: Final[dict[str, Project]] = {}
        self._keys: Final[dict[str, StoredServiceKey]] = {}
        self._key_ids: Final[dict[bytes, str]] = {}  # by the digest of a secret

    async def add_project(self, project: Project, *, by: Act | None = None) -> None:
        self._refuse_taken_project_name(project)
        if project.id in self._projects:
            raise LockError("name_taken", "a project with this id exists already")
        self._projects[project.id] = project
        self._positions[project.id] = next(self._next_position)
        self._audit.add([project_entry(by, None, project, project.id)])

    async def project(self, project_id: str) -> Project:
        if project_id not in self._projects:
            raise project_not_found()
        return self._projects[project_id]

    async def projects(self, *, limit: int, cursor: str | None) -> Page:
        return self._page("projects", self._projects.values(), limit, cursor)

    async def change_project(
        self, project_id: str, *, name: str | None, requests_per_minute: int | None, by: Act | None = None
    ) -> Project:
        before = await self.project(project_id)
        after = before.changed(name, requests_per_minute)
        self._refuse_taken_project_name(after)
        self._projects[project_id] = after
        self._audit.add([project_entry(by, before, after, project_id)])
        return after

    async def delete_project(self, project_id: str, *, by: Act | None = None) -> None:
        before = await self.project(project_id)
        self._audit.add([project_entry(by, before, None, project_id)])
        del self._projects[project_id], self._positions[project_id]
        for stored in [stored for stored in self._keys.values() if stored.service_key.project_id == project_id]:
            self._delete_key(stored)
        self._locks.delete_locks_of(project_id)

    async def add_service_key(self, service_key: ServiceKey, secret_digest: bytes, *, by: Act | None = None) -> None:
        await self.add_stored_key(StoredServiceKey(service_key, (StoredSecret(secret_digest, None),)))
        self._audit.add([key_entry(by, None, service_key, (service_key.project_id, service_key.id))])

    async def add_stored_key(self, stored_key: StoredServiceKey) -> None:
        """Add a service key with all its secrets."""
        service_key, secrets = stored_key
        await self.project(service_key.project_id)
        for stored in self._keys.values():
            if (stored.service_key.project_id, stored.service_key.name) == (service_key.project_id, service_key.name):
                raise service_key_name_taken(service_key.name)
        if service_key.id in self._keys or any(secret.digest in self._key_ids for secret in secrets):
            raise LockError("name_taken", "a service key with this id or secret exists already")
        self._keys[service_key.id] = stored_key
        self._key_ids.update({secret.digest: service_key.id for secret in secrets})
        self._positions[service_key.id] = next(self._next_position)

    async def service_key(self, project_id: str, key_id: str) -> ServiceKey:
        return self._stored_key(project_id, key_id).service_key

    async def service_keys(self, project_id: str, *, limit: int, cursor: str | None) -> Page:
        await self.project(project_id)
        keys = (stored.service_key for stored in self._keys.values())
        return self._page("service-keys", (key for key in keys if key.project_id == project_id), limit, cursor)

    async def delete_service_key(self, project_id: str, key_id: str, *, by: Act | None = None) -> None:
        stored = self._stored_key(project_id, key_id)
        self._delete_key(stored)
        self._audit.add([key_entry(by, stored.service_key, None, (project_id, key_id))])

    async def replace_secret(
        self, project_id: str, key_id: str, new: NewSecret, *, by: Act | None = None
    ) -> ServiceKey:
        before, (current, *older) = self._stored_key(project_id, key_id)
        if new.digest in self._key_ids:
            raise LockError("name_taken", "a service key with this secret exists already")
        secrets = [StoredSecret(new.digest, None)]
        if new.old_good_until_ms is None:
            older.append(current)
        else:
            secrets.append(StoredSecret(current.digest, new.old_good_until_ms))
        for secret in older:
            del self._key_ids[secret.digest]
        self._key_ids[new.digest] = key_id
        changed = StoredServiceKey(replace(before, key_prefix=new.key_prefix), tuple(secrets))
        after = changed.service_key
        until = (await self.old_secrets([key_id])).get(key_id)
        self._keys[key_id] = changed
        self._audit.add([key_entry(by, before, after, (project_id, key_id), (until, new.old_good_until_ms))])
        return after

    async def old_secrets(self, key_ids: Sequence[str]) -> Mapping[str, int]:
        stored = (self._keys[key_id] for key_id in key_ids if key_id in self._keys)
        return {key.id: until for key, secrets in stored for _digest, until in secrets if until is not None}

    async def credential(self, secret_digest: bytes) -> Credential | None:
        key_id = self._key_ids.get(secret_digest)
        if key_id is None:
            return None
        service_key, secrets = self._keys[key_id]
        good_until_ms = dict(secrets)[secret_digest]
        return Credential.of(service_key, self._projects[service_key.project_id], good_until_ms)

    def entries(self) -> list[Entry]:
        """All projects, then all service keys, in order of creation."""
        return [*self._projects.values(), *self._keys.values()]

    async def touch_service_keys(self, last_used_at_ms: Mapping[str, int]) -> None:
        for key_id, at_ms in last_used_at_ms.items():
            stored = self._keys.get(key_id)
            if stored is not None and at_ms > (stored.service_key.last_used_at_ms or 0):
                used = replace(stored.service_key, last_used_at_ms=at_ms)
                self._keys[key_id] = stored._replace(service_key=used)

    def _page(self, kind: str, entries: Iterable[E], limit: int, cursor: str | None) -> Page:
        after = decode_cursor(kind, cursor)
        remaining = [entry for entry in entries if self._positions[entry.id] > after]
        shown = remaining[:limit]
        return Page(shown, encode_cursor(kind, self._positions[shown[-1].id]) if len(remaining) > limit else None)

    def _stored_key(self, project_id: str, key_id: str) -> StoredServiceKey:
        stored = self._keys.get(key_id)
        if stored is None or stored.service_key.project_id != project_id:
            raise service_key_not_found()
        return stored

    def _refuse_taken_project_name(self, project: Project) -> None:
        if any(other.name == project.name and other.id != project.id for other in self._projects.values()):
            raise project_name_taken(project.name)

    def _delete_key(self, stored: StoredServiceKey) -> None:
        del self._keys[stored.service_key.id], self._positions[stored.service_key.id]
        for secret in stored.secrets:
            del self._key_ids[secret.digest]


class MemorySnapshot:
    """All dictionaries as a whole. A `load` that fails leaves them half filled; the process then ends."""

    def __init__(self, locks: MemoryStore, registry: MemoryRegistry, admin_tokens: MemoryAdminTokens) -> None:
        self._locks: Final = locks
        self._registry: Final = registry
        self._admin_tokens: Final = admin_tokens

    async def newest_ms(self) -> int:
        return self._locks.newest_ms

    async def clock_history(self) -> ClockHistory:
        return self._locks.history

    def pages(self) -> AsyncIterator[Sequence[Entry]]:
        return intact_pages(self._pages())

    def damaged(self) -> AsyncIterator[DamagedRecordError]:
        return damage_in(self._pages())

    async def _pages(self) -> AsyncIterator[Sequence[Entry | DamagedRecordError]]:
        entries = self._entries()
        for begin in range(0, len(entries), PAGE_ENTRIES_MAX):
            yield entries[begin : begin + PAGE_ENTRIES_MAX]

    async def load(
        self, pages: AsyncIterator[Sequence[Entry]], newest_ms: int, history: ClockHistory = NO_HISTORY
    ) -> None:
        if self._entries():
            raise store_not_empty()
        self._locks.history = history
        self._locks.newest_ms = max(self._locks.newest_ms, newest_ms)
        async for page in pages:
            for entry in page:
                match entry:
                    case Project():
                        await self._registry.add_project(entry)
                    case StoredServiceKey():
                        await self._registry.add_stored_key(entry)
                    case StoredAdminToken(token, digest):
                        await self._admin_tokens.add(token, digest)
                    case AuditEntry():
                        self._locks.audit.add([entry])
                    case StoredLock():
                        self._locks.records[entry.key] = entry.record

    def _entries(self) -> list[Entry | DamagedRecordError]:
        records = self._locks.records.items()
        locks = (lock_entry(key, record) for key, record in records if key.project_id != PROBE_PROJECT)
        return [*self._registry.entries(), *self._admin_tokens.entries(), *self._locks.audit.entries(), *locks]
