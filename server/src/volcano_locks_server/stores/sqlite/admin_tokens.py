"""Stores admin tokens in SQLite, as `registry` stores projects and service keys."""

from collections.abc import Mapping
from typing import Final

import apsw

from ...ports.admin_tokens import AdminToken
from ...ports.audit import token_entry
from ...ports.audit_entry import Act
from ...ports.registry import Page
from ...ports.snapshot import StoredAdminToken
from ...rules.errors import LockError
from .. import registry_rows
from ..cursor import decode_cursor
from ..errors import admin_token_name_taken, admin_token_not_found
from ..registry_rows import admin_token_of
from .tables import SqliteTables, as_bytes, insert_row

ADMIN_TOKEN_CELLS: Final = as_bytes(registry_rows.ADMIN_TOKEN_COLUMNS)


class SqliteAdminTokens(SqliteTables):
    """The AdminTokens on the one connection. Made by `SqliteFile`."""

    async def add(self, token: AdminToken, digest: bytes, *, by: Act | None = None) -> None:
        def work() -> None:
            if self._rows("SELECT 1 FROM admin_token WHERE name = ?", (token.name,)):
                raise admin_token_name_taken(token.name)
            (row,) = registry_rows.entry_rows([StoredAdminToken(token, digest)])
            try:
                insert_row(self._connection, *row)
            except apsw.ConstraintError as error:
                raise LockError("name_taken", "an admin token with this id or digest exists already") from error
            self._record(token_entry(by, None, token))

        await self._write(work)

    async def page(self, *, limit: int, cursor: str | None) -> Page:
        after = decode_cursor("admin-tokens", cursor)
        sql = f"SELECT number, {ADMIN_TOKEN_CELLS} FROM admin_token WHERE number > ? ORDER BY number LIMIT ?"
        rows = await self._read(lambda: self._rows(sql, (after, limit + 1)))
        return registry_rows.page_of("admin-tokens", rows, limit, admin_token_of)

    async def delete(self, token_id: str, *, by: Act | None = None) -> AdminToken:
        def work() -> AdminToken:
            sql = f"SELECT {ADMIN_TOKEN_CELLS} FROM admin_token WHERE id = ?"
            rows = self._rows(sql, (token_id,))
            if not rows:
                raise admin_token_not_found()
            token = admin_token_of(rows[0])
            self._connection.execute("DELETE FROM admin_token WHERE id = ?", (token_id,))
            self._record(token_entry(by, token, None))
            return token

        return await self._write(work)

    async def of_digest(self, digest: bytes) -> AdminToken | None:
        sql = f"SELECT {ADMIN_TOKEN_CELLS} FROM admin_token WHERE digest = ?"
        rows = await self._read(lambda: self._rows(sql, (digest,)))
        return admin_token_of(rows[0]) if rows else None

    async def touch(self, last_used_at_ms: Mapping[str, int]) -> None:
        await self._touch("admin_token", last_used_at_ms)
