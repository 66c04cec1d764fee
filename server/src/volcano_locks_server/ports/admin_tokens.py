"""The port of admin tokens, the credentials of the admin API. Only the SHA-256 digest of a token is stored."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from .audit_entry import Act
from .registry import Page


@dataclass(frozen=True, slots=True)
class AdminToken:
    """A named admin token. `token_prefix` is its beginning, by which people recognize it."""

    id: str
    name: str
    token_prefix: str
    created_at_ms: int
    last_used_at_ms: int | None = None


class AdminTokens(Protocol):
    """The port for admin tokens, which belong to no project.

    Ids are UUIDs that the caller generates. A token that cannot be decoded raises `DamagedRecordError` for itself only.
    Methods raise LockError `name_taken` for a name, id or token that is not unique, `not_found` for an unknown id,
    `invalid_request` for an unknown cursor, and `StoreUnavailableError`. Writes are durable when the method returns.
    `by` is who asked for a change: its entry of the audit is written in the same transaction (AUDIT-2).
    """

    async def add(self, token: AdminToken, digest: bytes, *, by: Act | None = None) -> None: ...
    async def page(self, *, limit: int, cursor: str | None) -> Page: ...
    async def delete(self, token_id: str, *, by: Act | None = None) -> AdminToken:
        """Delete the token and return it."""
        ...

    async def of_digest(self, digest: bytes) -> AdminToken | None: ...
    async def touch(self, last_used_at_ms: Mapping[str, int]) -> None:
        """Store when tokens (by id) were last used. Ignores unknown ids and instants that are earlier than stored."""
        ...
