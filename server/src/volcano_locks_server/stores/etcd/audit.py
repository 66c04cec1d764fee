"""Stores the audit in etcd, each entry under two keys: with those of all, and with those of its project.

The keys are in reverse order of the ids, so that a range begins with the latest entry. Both are put in the transaction
of what the entry is about. A damaged entry is left out.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Final

import msgspec

from ...ports.audit import ENTRIES_MAX, AuditQuery, oldest_kept_id
from ...ports.audit_entry import AuditEntry
from ...rules.shares import equal_share
from .endpoints import Endpoints
from .layout import Layout, after, end_of
from .transactions import Delete, Get, KeyValue, Put

KEYS_PER_READ: Final = 5_000
ENTRIES_PER_READ: Final = 100  # etcd allows 128 operations
ENTRIES_PER_DELETION: Final = 60  # two operations each; etcd allows 128
_REVERSED: Final = str.maketrans("0123456789abcdef", "fedcba9876543210")


class EtcdAudit:
    """The AuditLog. Made by `EtcdCluster`."""

    def __init__(self, endpoints: Endpoints, layout: Layout) -> None:
        self._endpoints: Final = endpoints
        self._layout: Final = layout

    async def append(self, entry: AuditEntry) -> None:
        await self._endpoints.write((), audit_puts(self._layout, entry))

    async def page(self, query: AuditQuery) -> Sequence[AuditEntry]:
        prefix = self._layout.audit if query.project_id is None else self._layout.audit_of(query.project_id)
        begin = prefix if query.end_id == "~" else prefix + query.end_id.translate(_REVERSED).encode() + b"~"
        end = end_of(prefix) if not query.from_ms else prefix + query.first_id.translate(_REVERSED).encode() + b"~"
        return list(_decoded((await self._endpoints.read(Get(begin, end, query.limit))).reads[0]))

    async def purge(self, now_ms: int, *, entries_max: int = ENTRIES_MAX) -> int:
        of_all, of_each = self._layout.audit, self._layout.audits_of_projects
        oldest_kept = of_all + oldest_kept_id(now_ms).translate(_REVERSED).encode() + b"~"
        projects = {}
        async for key in self._keys(of_each):
            project_id, _, place = key.removeprefix(of_each).rpartition(b"/")
            projects[place] = project_id
        keys: dict[bytes | None, list[bytes]] = {}  # of each project, the latest first
        async for key in self._keys(of_all):
            keys.setdefault(projects.get(key.removeprefix(of_all)), []).append(key)
        share = equal_share(map(len, keys.values()), entries_max)
        places = (place for of_project in keys.values() for place in enumerate(of_project))
        return await self._delete(sorted(key for place, key in places if place >= share or key > oldest_kept))

    async def all_entries(self, page_max: int) -> AsyncIterator[Sequence[AuditEntry]]:
        """All entries in order, page by page. The keys are read first, because their order is the reverse."""
        keys = [key async for key in self._keys(self._layout.audit)]
        keys.reverse()
        for first in range(0, len(keys), page_max):
            entries: list[AuditEntry] = []
            for place in range(first, min(first + page_max, len(keys)), ENTRIES_PER_READ):
                part = keys[place : min(place + ENTRIES_PER_READ, first + page_max)]
                found = (await self._endpoints.read(*map(Get, part))).reads
                entries += _decoded([one for row in found for one in row])
            if entries:
                yield entries

    async def _keys(self, prefix: bytes) -> AsyncIterator[bytes]:
        """All keys that begin with `prefix`, in order."""
        begin = prefix
        while found := (await self._endpoints.read(Get(begin, end_of(prefix), KEYS_PER_READ, keys_only=True))).reads[0]:
            for one in found:
                yield one.key
            begin = after(found[-1].key)

    async def _delete(self, keys: Sequence[bytes]) -> int:
        """Delete these entries under both of their keys."""
        for first in range(0, len(keys), ENTRIES_PER_DELETION):
            part = keys[first : first + ENTRIES_PER_DELETION]
            found = (await self._endpoints.read(*map(Get, part))).reads
            entries = _decoded([one for row in found for one in row])
            others = [put.key for entry in entries for put in audit_puts(self._layout, entry)]
            await self._endpoints.write((), [Delete(key) for key in {*part, *others}])
        return len(keys)


def audit_puts(layout: Layout, entry: AuditEntry | None) -> list[Put]:
    """The operations that add the entry, if there is one."""
    if entry is None:
        return []
    value, place = msgspec.json.encode(entry), entry.id.translate(_REVERSED).encode()
    prefixes = [layout.audit]
    if entry.project_id is not None:
        prefixes.append(layout.audit_of(entry.project_id))
    return [Put(prefix + place, value) for prefix in prefixes]


def _decoded(found: Sequence[KeyValue]) -> Iterator[AuditEntry]:
    for one in found:
        try:
            yield msgspec.json.decode(one.value, type=AuditEntry)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            continue
