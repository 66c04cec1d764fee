"""The store in memory, for tests and for trying the service out. It loses everything when the process ends.

Dictionaries on one event loop, without an await inside a method, so every update is atomic. It keeps every promise of a
store except durability.
"""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import replace
from heapq import nsmallest
from itertools import count, islice
from operator import itemgetter
from typing import Final, TypeVar

from ..ports.clock import Clock
from ..ports.lock_store import LockPage, LockQuery, RecordKey, Step
from ..ports.registry import Credential, NewSecret, Page, Project, ServiceKey
from ..ports.snapshot import PAGE_ENTRIES_MAX, Entry, StoredLock, StoredSecret, StoredServiceKey, store_not_empty
from ..rules.errors import LockError
from ..rules.lease import LockRecord, blocks_others, purgeable
from .cursor import decode_cursor, encode_cursor
from .errors import clock_behind, project_name_taken, project_not_found, service_key_name_taken, service_key_not_found
from .lock_pages import build_page, key_range

E = TypeVar("E", Project, ServiceKey)


class MemoryStore:
    """Lock records in a dictionary."""

    def __init__(self, clock: Clock) -> None:
        self._clock: Final = clock
        self.newest_ms = 0
        self.records: Final[dict[RecordKey, LockRecord]] = {}

    async def update(self, keys: Sequence[RecordKey], step: Step) -> Sequence[object]:
        stepped = step({key: self.records.get(key) for key in keys}, self._now_ms())
        self.records.update(stepped.changed)
        return stepped.results

    async def list_locks(self, query: LockQuery) -> LockPage:
        now_ms = self._now_ms()
        begin, end = key_range(query)
        matching = (
            (lock.key, record)
            for lock, record in self.records.items()
            if lock.project_id == query.project_id
            and begin <= lock.key < end
            and query.held in (None, blocks_others(record, now_ms))
        )
        requested = query.limit + 1
        return build_page(query, nsmallest(requested, matching, key=itemgetter(0)), now_ms, requested=requested)

    async def count_held(self) -> int:
        now_ms = self._now_ms()
        return sum(blocks_others(record, now_ms) for record in self.records.values())

    async def purge(self, *, limit: int) -> int:
        now_ms = self._now_ms()
        gone = list(islice((key for key, record in self.records.items() if purgeable(record, now_ms)), limit))
        for key in gone:
            del self.records[key]
        return len(gone)

    async def ready(self) -> None:
        self._now_ms()

    def delete_locks_of(self, project_id: str) -> None:
        """Delete every record of the project."""
        for key in [key for key in self.records if key.project_id == project_id]:
            del self.records[key]

    def _now_ms(self) -> int:
        now_ms = self._clock.now_ms()
        if now_ms < self.newest_ms:
            raise clock_behind(now_ms, self.newest_ms)
        self.newest_ms = now_ms
        return now_ms


class MemoryRegistry:
    """Projects and service keys in dictionaries, in order of creation."""

    def __init__(self, locks: MemoryStore) -> None:
        self._locks: Final = locks
        self._next_position: Final = count(1)
        self._positions: Final[dict[str, int]] = {}
        self._projects: Final[dict[str, Project]] = {}
        self._keys: Final[dict[str, StoredServiceKey]] = {}
        self._key_ids: Final[dict[bytes, str]] = {}  # by the digest of a secret

    async def add_project(self, project: Project) -> None:
        self._refuse_taken_project_name(project)
        if project.id in self._projects:
            raise LockError("name_taken", "a project with this id exists already")
        self._projects[project.id] = project
        self._positions[project.id] = next(self._next_position)

    async def project(self, project_id: str) -> Project:
        if project_id not in self._projects:
            raise project_not_found()
        return self._projects[project_id]

    async def projects(self, *, limit: int, cursor: str | None) -> Page:
        return self._page("projects", self._projects.values(), limit, cursor)

    async def change_project(self, project_id: str, *, name: str | None, requests_per_minute: int | None) -> Project:
        after = (await self.project(project_id)).changed(name, requests_per_minute)
        self._refuse_taken_project_name(after)
        self._projects[project_id] = after
        return after

    async def delete_project(self, project_id: str) -> None:
        await self.project(project_id)
        del self._projects[project_id], self._positions[project_id]
        for stored in [stored for stored in self._keys.values() if stored.service_key.project_id == project_id]:
            self._delete_key(stored)
        self._locks.delete_locks_of(project_id)

    async def add_service_key(self, service_key: ServiceKey, secret_digest: bytes) -> None:
        await self.add_stored_key(StoredServiceKey(service_key, (StoredSecret(secret_digest, None),)))

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

    async def delete_service_key(self, project_id: str, key_id: str) -> None:
        self._delete_key(self._stored_key(project_id, key_id))

    async def replace_secret(self, project_id: str, key_id: str, new: NewSecret) -> ServiceKey:
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
        self._keys[key_id] = changed = StoredServiceKey(replace(before, key_prefix=new.key_prefix), tuple(secrets))
        return changed.service_key

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
    """Both dictionaries as a whole. A `load` that fails leaves them half filled; the process then ends."""

    def __init__(self, locks: MemoryStore, registry: MemoryRegistry) -> None:
        self._locks: Final = locks
        self._registry: Final = registry

    async def newest_ms(self) -> int:
        return self._locks.newest_ms

    async def pages(self) -> AsyncIterator[Sequence[Entry]]:
        entries = self._entries()
        for begin in range(0, len(entries), PAGE_ENTRIES_MAX):
            yield entries[begin : begin + PAGE_ENTRIES_MAX]

    async def load(self, pages: AsyncIterator[Sequence[Entry]], newest_ms: int) -> None:
        if self._entries():
            raise store_not_empty()
        self._locks.newest_ms = max(self._locks.newest_ms, newest_ms)
        async for page in pages:
            for entry in page:
                match entry:
                    case Project():
                        await self._registry.add_project(entry)
                    case StoredServiceKey():
                        await self._registry.add_stored_key(entry)
                    case StoredLock():
                        self._locks.records[entry.key] = entry.record

    def _entries(self) -> list[Entry]:
        locks = (StoredLock(key, record) for key, record in self._locks.records.items())
        return [*self._registry.entries(), *locks]
