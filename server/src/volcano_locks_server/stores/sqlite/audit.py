"""Stores the audit in SQLite."""

from collections.abc import Sequence
from typing import Final

from ...ports.audit import ENTRIES_MAX, PURGED_AT_ONCE, AuditQuery, oldest_kept_id
from ...ports.audit_entry import AuditEntry
from ..audit_rows import AUDIT_COLUMNS, audit_entry
from .tables import SqliteTables

_PAGE: Final = (
    f"SELECT {AUDIT_COLUMNS} FROM audit_entry WHERE id >= ? AND id < ?{{of_project}} ORDER BY id DESC LIMIT ?"
)
# COALESCE: no entry is past the limit, if there is none at that place.
_PURGE: Final = (
    "DELETE FROM audit_entry WHERE id IN (SELECT id FROM audit_entry WHERE id < ? OR id <= "
    "coalesce((SELECT id FROM audit_entry ORDER BY id DESC LIMIT 1 OFFSET ?), '') ORDER BY id LIMIT ?)"
)


class SqliteAudit(SqliteTables):
    """The AuditLog on the one connection. Made by `SqliteFile`."""

    async def append(self, entry: AuditEntry) -> None:
        await self._write(lambda: self._record(entry))

    async def page(self, query: AuditQuery) -> Sequence[AuditEntry]:
        cells: list[str | int] = [query.first_id, query.end_id]
        if query.project_id is not None:
            cells.append(query.project_id)
        of_project = "" if query.project_id is None else " AND project_id = ?"
        sql = _PAGE.format(of_project=of_project)
        rows = await self._read(lambda: self._connection.execute(sql, (*cells, query.limit)).fetchall())
        return [audit_entry(row) for row in rows]

    async def purge(self, now_ms: int, *, entries_max: int = ENTRIES_MAX) -> int:
        def work() -> int:
            self._connection.execute(_PURGE, (oldest_kept_id(now_ms), entries_max, PURGED_AT_ONCE))
            return self._connection.changes()

        gone = 0
        while (went := await self._write(work)) == PURGED_AT_ONCE:
            gone += went
        return gone + went
