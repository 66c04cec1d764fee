"""The audit of the store in memory."""

from collections.abc import Iterable, Sequence
from typing import Final

from ..ports.audit import ENTRIES_MAX, AuditQuery, oldest_kept_id
from ..ports.audit_entry import AuditEntry
from ..rules.shares import equal_share


class MemoryAudit:
    """Entries in a dictionary by id, in any order."""

    def __init__(self) -> None:
        self._entries: Final[dict[str, AuditEntry]] = {}

    async def append(self, entry: AuditEntry) -> None:
        self.add([entry])

    def add(self, entries: Iterable[AuditEntry | None]) -> None:
        """Add the entries of a transaction; None is no entry."""
        self._entries.update((entry.id, entry) for entry in entries if entry is not None)

    def entries(self) -> list[AuditEntry]:
        """All entries, in order."""
        return [self._entries[one] for one in sorted(self._entries)]

    async def page(self, query: AuditQuery) -> Sequence[AuditEntry]:
        ids = sorted((one for one in self._entries if query.first_id <= one < query.end_id), reverse=True)
        found = (self._entries[one] for one in ids)
        return [one for one in found if query.project_id in (None, one.project_id)][: query.limit]

    async def purge(self, now_ms: int, *, entries_max: int = ENTRIES_MAX) -> int:
        of_projects: dict[str | None, list[str]] = {}  # the latest first
        for entry in reversed(self.entries()):
            of_projects.setdefault(entry.project_id, []).append(entry.id)
        share = equal_share(map(len, of_projects.values()), entries_max)
        places = (place for ids in of_projects.values() for place in enumerate(ids))
        gone = [one for place, one in places if place >= share or one < oldest_kept_id(now_ms)]
        for one in gone:
            del self._entries[one]
        return len(gone)
