"""Stores the audit in PostgreSQL."""

from collections.abc import Sequence
from typing import Final

from ...ports.audit import ENTRIES_MAX, PURGED_AT_ONCE, AuditQuery, oldest_kept_id
from ...ports.audit_entry import AuditEntry
from ...rules.shares import equal_share
from ..audit_rows import AUDIT_COLUMNS, audit_entry
from .read_only import read_transaction
from .tables import PostgresTables, insert_audit

_PAGE: Final = f"""
    SELECT {AUDIT_COLUMNS} FROM volcano_locks.audit_entry WHERE id >= $1 AND id < $2{{of_project}}
    ORDER BY id DESC LIMIT $3"""
_PURGE: Final = """
    WITH gone AS (
        DELETE FROM volcano_locks.audit_entry WHERE id = ANY (ARRAY(
            SELECT id FROM volcano_locks.audit_entry WHERE {chosen} ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED))
        RETURNING 1
    ) SELECT count(*) FROM gone"""
_OLD: Final = _PURGE.format(chosen="id < $2")
_COUNTS: Final = "SELECT project_id, count(*) FROM volcano_locks.audit_entry GROUP BY project_id"


def _excess(of_project: str) -> str:
    """The statement that deletes entries of a project past its share, $2. COALESCE: there may be none at that place."""
    return _PURGE.format(
        chosen=f"""{of_project} AND id <= coalesce((
            SELECT id FROM volcano_locks.audit_entry WHERE {of_project} ORDER BY id DESC LIMIT 1 OFFSET $2), '')"""
    )


_EXCESS: Final = _excess("project_id = $3")
_EXCESS_OF_NONE: Final = _excess("project_id IS NULL")


class PostgresAudit(PostgresTables):
    """The AuditLog on `connections`. Made by `PostgresDatabase`."""

    async def append(self, entry: AuditEntry) -> None:
        async with self._writing() as transaction:
            await insert_audit(transaction, entry)

    async def page(self, query: AuditQuery) -> Sequence[AuditEntry]:
        values: list[str | int] = [query.first_id, query.end_id, query.limit]
        if query.project_id is not None:
            values.append(query.project_id)
        sql = _PAGE.format(of_project="" if query.project_id is None else " AND project_id = $4")
        async with read_transaction(self._connections) as transaction:
            return [audit_entry(row) for row in await transaction.fetch(sql, *values)]

    async def purge(self, now_ms: int, *, entries_max: int = ENTRIES_MAX) -> int:
        gone = await self._delete(_OLD, oldest_kept_id(now_ms))
        async with self._writing() as transaction:
            counts = await transaction.fetch(_COUNTS)
        share = equal_share((count for _project_id, count in counts), entries_max)
        for project_id, count in counts:
            if count > share:
                of_project = (_EXCESS_OF_NONE, share) if project_id is None else (_EXCESS, share, project_id)
                gone += await self._delete(*of_project)
        return gone

    async def _delete(self, sql: str, *values: str | int) -> int:
        """Run this statement until it deletes less than PURGED_AT_ONCE; returns how many it deleted."""
        gone, went = 0, PURGED_AT_ONCE
        while went == PURGED_AT_ONCE:
            async with self._writing() as transaction:
                went = int((await transaction.fetch(sql, PURGED_AT_ONCE, *values))[0][0])
            gone += went
        return gone
