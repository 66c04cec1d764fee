"""Stores the dashboard's sessions in PostgreSQL."""

from dataclasses import astuple

from ...ports.audit_entry import AuditEntry
from ...ports.session_store import SessionLimits, StoredSession
from ..session_room import entries_to_drop
from ..session_rows import SESSION_COLUMNS, session_of
from .read_only import read_transaction
from .tables import PostgresTables, insert_audit

_SELECT = f"SELECT {SESSION_COLUMNS} FROM volcano_locks.dashboard_session"
_INSERT = f"INSERT INTO volcano_locks.dashboard_session ({SESSION_COLUMNS}) VALUES ($1, $2, $3, $4, $5, $6)"
_DELETE = "DELETE FROM volcano_locks.dashboard_session"


class PostgresSessions(PostgresTables):
    """The SessionStore on `connections`. Made by `PostgresDatabase`."""

    async def add(
        self, session: StoredSession, limits: SessionLimits, now_ms: int, *, audit: AuditEntry | None = None
    ) -> None:
        async with self._writing() as transaction:
            rows = await transaction.fetch(f"{_SELECT} WHERE purpose = $1", session.purpose)
            dropped = entries_to_drop(map(session_of, rows), session, limits, now_ms)
            if dropped:
                await transaction.fetch(f"{_DELETE} WHERE digest = ANY ($1::bytea[])", sorted(dropped))
            await transaction.fetch(_INSERT, *astuple(session))
            await insert_audit(transaction, audit)

    async def session(self, digest: bytes) -> StoredSession | None:
        async with read_transaction(self._connections) as transaction:
            rows = await transaction.fetch(f"{_SELECT} WHERE digest = $1", digest)
        return session_of(rows[0]) if rows else None

    async def take(self, digest: bytes, *, audit: AuditEntry | None = None) -> StoredSession | None:
        async with self._writing() as transaction:
            rows = await transaction.fetch(f"{_DELETE} WHERE digest = $1 RETURNING {SESSION_COLUMNS}", digest)
            if rows:
                await insert_audit(transaction, audit)
        return session_of(rows[0]) if rows else None
