"""Stores the audit in etcd, each entry under two keys: with those of all, and with those of its project.

The keys are in reverse order of the ids, so that a range begins with the latest entry. Both are put in the transaction
of what the entry is about. A damaged entry is left out.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Final

import msgspec

from ...ports.audit import ENTRIES_MAX, AuditQuery, oldest_kept_id
from ...ports.audit_entry import AuditEntry
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
        oldest_kept = self._layout.audit + oldest_kept_id(now_ms).translate(_REVERSED).encode()
        begin, kept, gone = self._layout.audit, 0, 0
        while keys := await self._keys(begin):
            for_age = [key for key in keys if key > oldest_kept + b"~"]
            excess = keys[max(0, entries_max - kept) :]
            kept += len(keys)
            gone += await self._delete(sorted({*for_age, *excess}))
            begin = after(keys[-1])
        return gone

    async def all_entries(self, page_max: int) -> AsyncIterator[Sequence[AuditEntry]]:
        """All entries in order, page by page. The keys are read first, because their order is the reverse."""
        begin, keys = self._layout.audit, list[bytes]()
        while part := await self._keys(begin):
            keys += part
            begin = after(part[-1])
        keys.reverse()
        for first in range(0, len(keys), page_max):
            entries: list[AuditEntry] = []
            for place in range(first, min(first + page_max, len(keys)), ENTRIES_PER_READ):
                part = keys[place : min(place + ENTRIES_PER_READ, first + page_max)]
                found = (await self._endpoints.read(*map(Get, part))).reads
                entries += _decoded([one for row in found for one in row])
            if entries:
                yield entries

    async def _keys(self, begin: bytes) -> list[bytes]:
        get = Get(begin, end_of(self._layout.audit), KEYS_PER_READ, keys_only=True)
        return [found.key for found in (await self._endpoints.read(get)).reads[0]]

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
