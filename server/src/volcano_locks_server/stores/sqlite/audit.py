"""Stores the audit in SQLite."""

from collections.abc import Sequence
from typing import Final

from ...ports.audit import ENTRIES_MAX, PURGED_AT_ONCE, AuditQuery, oldest_kept_id
from ...ports.audit_entry import AuditEntry
from ...rules.shares import equal_share
from ..audit_rows import AUDIT_COLUMNS, audit_entry
from .tables import SqliteTables

_PAGE: Final = (
    f"SELECT {AUDIT_COLUMNS} FROM audit_entry WHERE id >= ? AND id < ?{{of_project}} ORDER BY id DESC LIMIT ?"
)
_PURGE: Final = "DELETE FROM audit_entry WHERE id IN (SELECT id FROM audit_entry WHERE {chosen} ORDER BY id LIMIT ?)"
_OLD: Final = _PURGE.format(chosen="id < ?")
_COUNTS: Final = "SELECT CAST(project_id AS BLOB), count(*) FROM audit_entry GROUP BY project_id"
_OF_PROJECT: Final = "project_id IS CAST(?1 AS TEXT)"
# COALESCE: no entry is past the share, if there is none at that place.
_EXCESS: Final = _PURGE.format(
    chosen=f"{_OF_PROJECT} AND id <= coalesce((SELECT id FROM audit_entry WHERE {_OF_PROJECT} "
    "ORDER BY id DESC LIMIT 1 OFFSET ?2), '')"
).replace("LIMIT ?)", "LIMIT ?3)")


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
        gone = await self._delete(_OLD, oldest_kept_id(now_ms))
        counts = await self._read(lambda: self._rows(_COUNTS))
        share = equal_share((count for _project_id, count in counts), entries_max)
        for project_id, count in counts:
            if count > share:
                gone += await self._delete(_EXCESS, project_id, share)
        return gone

    async def _delete(self, sql: str, *cells: str | int | bytes | None) -> int:
        """Run this statement until it deletes less than PURGED_AT_ONCE; returns how many it deleted."""

        def work() -> int:
            self._connection.execute(sql, (*cells, PURGED_AT_ONCE))
            return self._connection.changes()

        gone = 0
        while (went := await self._write(work)) == PURGED_AT_ONCE:
            gone += went
        return gone + went
