"""The admin tokens of the store in memory."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import count
from typing import Final

from ..ports.admin_tokens import AdminToken
from ..ports.audit import token_entry
from ..ports.audit_entry import Act
from ..ports.registry import Page
from ..ports.snapshot import StoredAdminToken
from ..rules.errors import LockError
from .cursor import decode_cursor, encode_cursor
from .errors import admin_token_name_taken, admin_token_not_found
from .memory_audit import MemoryAudit


class MemoryAdminTokens:
    """Admin tokens in a dictionary by id, in order of creation."""

    def __init__(self, audit: MemoryAudit) -> None:
        self._audit: Final = audit
        self._next_position: Final = count(1)
        self._tokens: Final[dict[str, tuple[int, StoredAdminToken]]] = {}

    async def add(self, token: AdminToken, digest: bytes, *, by: Act | None = None) -> None:
        if any(stored.token.name == token.name for stored in self.entries()):
            raise admin_token_name_taken(token.name)
        if token.id in self._tokens or any(stored.digest == digest for stored in self.entries()):
            raise LockError("name_taken", "an admin token with this id or digest exists already")
        self._tokens[token.id] = next(self._next_position), StoredAdminToken(token, digest)
        self._audit.add([token_entry(by, None, token)])

    async def page(self, *, limit: int, cursor: str | None) -> Page:
        after = decode_cursor("admin-tokens", cursor)
        left = [(position, stored.token) for position, stored in self._tokens.values() if position > after]
        more = encode_cursor("admin-tokens", left[limit - 1][0]) if len(left) > limit else None
        return Page([token for _, token in left[:limit]], more)

    async def delete(self, token_id: str, *, by: Act | None = None) -> AdminToken:
        if token_id not in self._tokens:
            raise admin_token_not_found()
        token = self._tokens.pop(token_id)[1].token
        self._audit.add([token_entry(by, token, None)])
        return token

    async def of_digest(self, digest: bytes) -> AdminToken | None:
        return next((stored.token for stored in self.entries() if stored.digest == digest), None)

    async def touch(self, last_used_at_ms: Mapping[str, int]) -> None:
        for token_id, at_ms in last_used_at_ms.items():
            if token_id in self._tokens:
                position, (token, digest) = self._tokens[token_id]
                used = replace(token, last_used_at_ms=max(token.last_used_at_ms or 0, at_ms))
                self._tokens[token_id] = position, StoredAdminToken(used, digest)

    def entries(self) -> list[StoredAdminToken]:
        """All admin tokens, in order of creation."""
        return [stored for _, stored in self._tokens.values()]
