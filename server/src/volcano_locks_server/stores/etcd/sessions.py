"""Stores the dashboard's sessions in etcd: one key each, by its digest. A damaged one counts as ended."""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from ...ports.audit_entry import AuditEntry
from ...ports.session_store import OwnerKind, Purpose, SessionLimits, StoredSession
from ..session_room import entries_to_drop
from .audit import audit_puts
from .endpoints import Endpoints
from .layout import Layout, end_of
from .transactions import Compare, Delete, Get, KeyValue, Op, Put

DELETIONS_PER_TRANSACTION: Final = 100  # etcd allows 128 operations


class _SessionEntry(msgspec.Struct, frozen=True):
    """A session without its own digest, which is in the key; the digest of the credential is in hex."""

    purpose: Purpose
    owner_kind: OwnerKind
    owner_id: str
    credential_digest: str
    good_until_ms: int


class EtcdSessions:
    """The SessionStore. Made by `EtcdCluster`."""

    def __init__(self, endpoints: Endpoints, layout: Layout) -> None:
        self._endpoints: Final = endpoints
        self._layout: Final = layout

    async def add(
        self, session: StoredSession, limits: SessionLimits, now_ms: int, *, audit: AuditEntry | None = None
    ) -> None:
        begin = self._layout.sessions
        found = (await self._endpoints.read(Get(begin, end_of(begin)))).reads[0]
        stored = [one for one in self._decoded(found) if one.purpose == session.purpose]
        dropped = entries_to_drop(stored, session, limits, now_ms)
        for first in range(0, len(dropped), DELETIONS_PER_TRANSACTION):
            part = dropped[first : first + DELETIONS_PER_TRANSACTION]
            await self._endpoints.write((), [Delete(self._layout.session(digest)) for digest in part])
        entry = _SessionEntry(
            session.purpose,
            session.owner_kind,
            session.owner_id,
            session.credential_digest.hex(),
            session.good_until_ms,
        )
        put = Put(self._layout.session(session.digest), msgspec.json.encode(entry))
        await self._endpoints.write((), [put, *audit_puts(self._layout, audit)])

    async def session(self, digest: bytes) -> StoredSession | None:
        found = (await self._endpoints.read(Get(self._layout.session(digest)))).one(0)
        return None if found is None else next(self._decoded([found]), None)

    async def take(self, digest: bytes, *, audit: AuditEntry | None = None) -> StoredSession | None:
        found = (await self._endpoints.read(Get(self._layout.session(digest)))).one(0)
        if found is None:
            return None
        ops: list[Op] = [Delete(found.key), *audit_puts(self._layout, audit)]
        taken = await self._endpoints.write([Compare(found.key, found.mod_revision)], ops)
        return next(self._decoded([found]), None) if taken.succeeded else None

    def _decoded(self, found: Sequence[KeyValue]) -> Iterator[StoredSession]:
        for one in found:
            try:
                entry = msgspec.json.decode(one.value, type=_SessionEntry)
                digest = bytes.fromhex(one.key[len(self._layout.sessions) :].decode())
                credential_digest = bytes.fromhex(entry.credential_digest)
            except (msgspec.MsgspecError, ValueError, RecursionError):
                continue
            yield StoredSession(
                digest, entry.purpose, entry.owner_kind, entry.owner_id, credential_digest, entry.good_until_ms
            )
