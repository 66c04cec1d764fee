"""Stores admin tokens in PostgreSQL, as `registry` stores projects and service keys."""

from collections.abc import Mapping
from typing import Final

from ...ports.admin_tokens import AdminToken
from ...ports.audit import token_entry
from ...ports.audit_entry import Act
from ...ports.registry import Page
from ...ports.snapshot import StoredAdminToken
from ...rules.errors import LockError
from .. import registry_rows
from ..cursor import decode_cursor
from ..errors import admin_token_name_taken, admin_token_not_found
from ..registry_rows import ADMIN_TOKEN_COLUMNS, admin_token_of
from .read_only import read_transaction
from .registry import insert_entries
from .tables import PostgresTables, insert_audit

_DUPLICATES: Final = frozenset({"admin_token_id_taken", "admin_token_taken"})


class PostgresAdminTokens(PostgresTables):
    """The AdminTokens on `connections`. Made by `PostgresDatabase`."""

    async def add(self, token: AdminToken, digest: bytes, *, by: Act | None = None) -> None:
        async with self._writing(token.name) as transaction:
            await insert_entries(transaction, [StoredAdminToken(token, digest)])
            await insert_audit(transaction, token_entry(by, None, token))

    async def page(self, *, limit: int, cursor: str | None) -> Page:
        after = decode_cursor("admin-tokens", cursor)
        sql = (
            f"SELECT number, {ADMIN_TOKEN_COLUMNS} FROM volcano_locks.admin_token WHERE number > $1 "
            "ORDER BY number LIMIT $2"
        )
        async with read_transaction(self._connections) as transaction:
            rows = await transaction.fetch(sql, after, limit + 1)
        return registry_rows.page_of("admin-tokens", rows, limit, admin_token_of)

    async def delete(self, token_id: str, *, by: Act | None = None) -> AdminToken:
        async with self._writing() as transaction:
            sql = f"DELETE FROM volcano_locks.admin_token WHERE id = $1 RETURNING {ADMIN_TOKEN_COLUMNS}"
            rows = await transaction.fetch(sql, token_id)
            if not rows:
                raise admin_token_not_found()
            token = admin_token_of(rows[0])  # raises before the commit if it is damaged
            await insert_audit(transaction, token_entry(by, token, None))
            return token

    async def of_digest(self, digest: bytes) -> AdminToken | None:
        sql = f"SELECT {ADMIN_TOKEN_COLUMNS} FROM volcano_locks.admin_token WHERE digest = $1"
        async with read_transaction(self._connections) as transaction:
            rows = await transaction.fetch(sql, digest)
        return admin_token_of(rows[0]) if rows else None

    async def touch(self, last_used_at_ms: Mapping[str, int]) -> None:
        await self._touch("admin_token", last_used_at_ms)

    def _constraint_error(self, constraint: str, name: str) -> LockError:
        if constraint == "admin_token_name_taken":
            return admin_token_name_taken(name)
        if constraint in _DUPLICATES:
            return LockError("name_taken", "an admin token with this id or digest exists already")
        return super()._constraint_error(constraint, name)
