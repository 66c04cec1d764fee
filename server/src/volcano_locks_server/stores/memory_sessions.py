"""The dashboard's sessions of the store in memory."""

from collections.abc import Iterable
from typing import Final

from ..ports.audit_entry import AuditEntry
from ..ports.session_store import SessionLimits, StoredSession
from .memory_audit import MemoryAudit
from .session_room import entries_to_drop


class MemorySessions:
    """Sessions and codes in a dictionary by digest."""

    def __init__(self, audit: MemoryAudit) -> None:
        self._audit: Final = audit
        self._entries: Final[dict[bytes, StoredSession]] = {}

    async def add(
        self, session: StoredSession, limits: SessionLimits, now_ms: int, *, audit: AuditEntry | None = None
    ) -> None:
        for digest in entries_to_drop(self._of_purpose(session), session, limits, now_ms):
            del self._entries[digest]
        self._entries[session.digest] = session
        self._audit.add([audit])

    async def session(self, digest: bytes) -> StoredSession | None:
        return self._entries.get(digest)

    async def take(self, digest: bytes, *, audit: AuditEntry | None = None) -> StoredSession | None:
        taken = self._entries.pop(digest, None)
        if taken is not None:
            self._audit.add([audit])
        return taken

    def _of_purpose(self, session: StoredSession) -> Iterable[StoredSession]:
        return (one for one in self._entries.values() if one.purpose == session.purpose)
