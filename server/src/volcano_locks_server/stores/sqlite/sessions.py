"""Stores the dashboard's sessions in SQLite."""

from dataclasses import astuple

from ...ports.audit_entry import AuditEntry
from ...ports.session_store import SessionLimits, StoredSession
from ..session_room import entries_to_drop
from ..session_rows import SESSION_COLUMNS, session_of
from .tables import SqliteTables, insert_row

_SELECT = f"SELECT {SESSION_COLUMNS} FROM dashboard_session"
_DELETE = "DELETE FROM dashboard_session WHERE digest = ?"


class SqliteSessions(SqliteTables):
    """The SessionStore on the one connection. Made by `SqliteFile`."""

    async def add(
        self, session: StoredSession, limits: SessionLimits, now_ms: int, *, audit: AuditEntry | None = None
    ) -> None:
        def work() -> None:
            rows = self._connection.execute(f"{_SELECT} WHERE purpose = ?", (session.purpose,)).fetchall()
            dropped = entries_to_drop(map(session_of, rows), session, limits, now_ms)
            self._connection.executemany(_DELETE, [(digest,) for digest in dropped]).fetchall()
            insert_row(self._connection, "dashboard_session", SESSION_COLUMNS, astuple(session))
            self._record(audit)

        await self._write(work)

    async def session(self, digest: bytes) -> StoredSession | None:
        return await self._read(lambda: self._found(digest))

    async def take(self, digest: bytes, *, audit: AuditEntry | None = None) -> StoredSession | None:
        def work() -> StoredSession | None:
            found = self._found(digest)
            if found is not None:
                self._connection.execute(_DELETE, (digest,))
                self._record(audit)
            return found

        return await self._write(work)

    def _found(self, digest: bytes) -> StoredSession | None:
        row = self._connection.execute(f"{_SELECT} WHERE digest = ?", (digest,)).fetchone()
        return None if row is None else session_of(row)
