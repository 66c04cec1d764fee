"""The store in memory, for tests and for trying the service out. It loses everything when the process ends.

Dictionaries on one event loop, without an await inside a method, so every update is atomic. It keeps every promise of a
store except durability.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import nsmallest
from itertools import islice
from operator import itemgetter
from typing import Final, TypeVar

from ..ports.clock import Clock
from ..ports.lock_store import LockPage, LockQuery, RecordKey, Step
from ..ports.registry import Credential, Page, Project, ServiceKey
from ..ports.snapshot import PAGE_ENTRIES_MAX, Entry, StoredLock, StoredSecret, StoredServiceKey, store_not_empty
from ..rules.errors import LockError
from ..rules.lease import LockRecord, blocks_others, purgeable
from .cursor import decode_cursor, encode_cursor
from .errors import clock_behind, project_name_taken, project_not_found, service_key_name_taken, service_key_not_found
from .lock_pages import build_page, key_range

T = TypeVar("T")


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


@dataclass(slots=True)
class _StoredKey:
    """A service key with its position in order of creation, its secret, and the previous secret while that is valid."""

    position: int
    service_key: ServiceKey
    digest: bytes
    old_digest: bytes | None = None
    old_good_until_ms: int | None = None


class MemoryRegistry:
    """Projects and service keys in dictionaries, in order of creation."""

    def __init__(self, locks: MemoryStore) -> None:
        self._locks: Final = locks
        self._last_position = 0
        self._projects: Final[dict[str, tuple[int, Project]]] = {}
        self._keys: Final[dict[str, _StoredKey]] = {}
        self._by_digest: Final[dict[bytes, _StoredKey]] = {}

    async def add_project(self, project: Project) -> None:
        self._refuse_taken_project_name(project)
        if project.id in self._projects:
            raise LockError("name_taken", "a project with this id exists already")
        self._projects[project.id] = self._next_position(), project

    async def project(self, project_id: str) -> Project:
        return self._positioned_project(project_id)[1]

    async def projects(self, *, limit: int, cursor: str | None) -> Page:
        items, next_cursor = _page("projects", list(self._projects.values()), limit, cursor)
        return Page(items, next_cursor)

    async def change_project(self, project_id: str, *, name: str | None, requests_per_minute: int | None) -> Project:
        position, before = self._positioned_project(project_id)
        after = replace(
            before,
            name=before.name if name is None else name,
            requests_per_minute=before.requests_per_minute if requests_per_minute is None else requests_per_minute,
        )
        self._refuse_taken_project_name(after)
        self._projects[project_id] = position, after
        return after

    async def delete_project(self, project_id: str) -> None:
        self._positioned_project(project_id)
        del self._projects[project_id]
        for stored in [stored for stored in self._keys.values() if stored.service_key.project_id == project_id]:
            self._delete_key(stored)
        self._locks.delete_locks_of(project_id)

    async def add_service_key(self, service_key: ServiceKey, secret_digest: bytes) -> None:
        self._positioned_project(service_key.project_id)
        for stored in self._keys.values():
            if (stored.service_key.project_id, stored.service_key.name) == (service_key.project_id, service_key.name):
                raise service_key_name_taken(service_key.name)
        if service_key.id in self._keys or secret_digest in self._by_digest:
            raise LockError("name_taken", "a service key with this id or secret exists already")
        stored = _StoredKey(self._next_position(), service_key, secret_digest)
        self._keys[service_key.id] = self._by_digest[secret_digest] = stored

    async def service_key(self, project_id: str, key_id: str) -> ServiceKey:
        return self._stored_key(project_id, key_id).service_key

    async def service_keys(self, project_id: str, *, limit: int, cursor: str | None) -> Page:
        self._positioned_project(project_id)
        mine = [
            (stored.position, stored.service_key)
            for stored in self._keys.values()
            if stored.service_key.project_id == project_id
        ]
        items, next_cursor = _page("service-keys", mine, limit, cursor)
        return Page(items, next_cursor)

    async def delete_service_key(self, project_id: str, key_id: str) -> None:
        self._delete_key(self._stored_key(project_id, key_id))

    async def replace_secret(
        self,
        project_id: str,
        key_id: str,
        *,
        secret_digest: bytes,
        key_prefix: str,
        old_secret_good_until_ms: int | None,
    ) -> ServiceKey:
        stored = self._stored_key(project_id, key_id)
        if secret_digest in self._by_digest:
            raise LockError("name_taken", "a service key with this secret exists already")
        if stored.old_digest is not None:
            del self._by_digest[stored.old_digest]
        if old_secret_good_until_ms is None:
            del self._by_digest[stored.digest]
            stored.old_digest = None
        else:
            stored.old_digest = stored.digest
        stored.old_good_until_ms = old_secret_good_until_ms
        stored.digest = secret_digest
        stored.service_key = replace(stored.service_key, key_prefix=key_prefix)
        self._by_digest[secret_digest] = stored
        return stored.service_key

    async def credential(self, secret_digest: bytes) -> Credential | None:
        stored = self._by_digest.get(secret_digest)
        if stored is None:
            return None
        ends = [stored.service_key.expires_at_ms]
        if secret_digest == stored.old_digest:
            ends.append(stored.old_good_until_ms)
        good_until_ms = min((end for end in ends if end is not None), default=None)
        return Credential(stored.service_key, self._projects[stored.service_key.project_id][1], good_until_ms)

    def entries(self) -> list[Entry]:
        """All projects, then all service keys, in order of creation."""
        kept_keys = []
        for stored in self._keys.values():
            secrets = [StoredSecret(stored.digest, None)]
            if stored.old_digest is not None:
                secrets.append(StoredSecret(stored.old_digest, stored.old_good_until_ms))
            kept_keys.append(StoredServiceKey(stored.service_key, tuple(secrets)))
        return [*(project for _, project in self._projects.values()), *kept_keys]

    async def add_stored_key(self, kept_key: StoredServiceKey) -> None:
        """Add a service key of another store, with its secrets."""
        current, *old = kept_key.secrets
        await self.add_service_key(kept_key.service_key, current.digest)
        for digest, good_until_ms in old:
            stored = self._by_digest[digest] = self._keys[kept_key.service_key.id]
            stored.old_digest, stored.old_good_until_ms = digest, good_until_ms

    async def touch_service_keys(self, last_used_at_ms: Mapping[str, int]) -> None:
        for key_id, at_ms in last_used_at_ms.items():
            stored = self._keys.get(key_id)
            if stored is not None and at_ms > (stored.service_key.last_used_at_ms or 0):
                stored.service_key = replace(stored.service_key, last_used_at_ms=at_ms)

    def _next_position(self) -> int:
        self._last_position += 1
        return self._last_position

    def _positioned_project(self, project_id: str) -> tuple[int, Project]:
        positioned = self._projects.get(project_id)
        if positioned is None:
            raise project_not_found()
        return positioned

    def _stored_key(self, project_id: str, key_id: str) -> _StoredKey:
        stored = self._keys.get(key_id)
        if stored is None or stored.service_key.project_id != project_id:
            raise service_key_not_found()
        return stored

    def _refuse_taken_project_name(self, project: Project) -> None:
        if any(other.name == project.name and other.id != project.id for _, other in self._projects.values()):
            raise project_name_taken(project.name)

    def _delete_key(self, stored: _StoredKey) -> None:
        del self._keys[stored.service_key.id]
        del self._by_digest[stored.digest]
        if stored.old_digest is not None:
            del self._by_digest[stored.old_digest]


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


def _page(kind: str, positioned: list[tuple[int, T]], limit: int, cursor: str | None) -> tuple[list[T], str | None]:
    after = decode_cursor(kind, cursor)
    remaining = [(position, item) for position, item in positioned if position > after]
    shown = remaining[:limit]
    return [item for _, item in shown], encode_cursor(kind, shown[-1][0]) if len(remaining) > limit else None
