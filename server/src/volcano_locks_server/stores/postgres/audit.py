"""Stores the audit in PostgreSQL."""

from collections.abc import Sequence
from typing import Final

from ...ports.audit import ENTRIES_MAX, PURGED_AT_ONCE, AuditQuery, oldest_kept_id
from ...ports.audit_entry import AuditEntry
from ..audit_rows import AUDIT_COLUMNS, audit_entry
from .read_only import read_transaction
from .tables import PostgresTables, insert_audit

_PAGE: Final = f"""
    SELECT {AUDIT_COLUMNS} FROM volcano_locks.audit_entry WHERE id >= $1 AND id < $2{{of_project}}
    ORDER BY id DESC LIMIT $3"""
_PURGE: Final = """
    WITH gone AS (
        DELETE FROM volcano_locks.audit_entry WHERE id = ANY (ARRAY(
            SELECT id FROM volcano_locks.audit_entry WHERE id < $1 OR id <= coalesce(
                (SELECT id FROM volcano_locks.audit_entry ORDER BY id DESC LIMIT 1 OFFSET $2), '')
            ORDER BY id LIMIT $3 FOR UPDATE SKIP LOCKED)) RETURNING 1
    ) SELECT count(*) FROM gone"""


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
        gone = 0
        while (went := await self._purge_part(now_ms, entries_max)) == PURGED_AT_ONCE:
            gone += went
        return gone + went

    async def _purge_part(self, now_ms: int, entries_max: int) -> int:
        async with self._writing() as transaction:
            rows = await transaction.fetch(_PURGE, oldest_kept_id(now_ms), entries_max, PURGED_AT_ONCE)
            return int(rows[0][0])
