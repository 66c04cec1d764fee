"""Stores admin tokens in etcd, as `registry` stores projects and service keys.

Three keys make a token: the token with its digest, its name, and its digest, which leads to its id. One transaction
writes or deletes all three. A digest counts only while the token is there and has it.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

import msgspec

from ...ports.admin_tokens import AdminToken
from ...ports.audit import token_entry
from ...ports.audit_entry import Act
from ...ports.registry import Page
from ...ports.snapshot import StoredAdminToken
from ...rules.errors import DamagedRecordError, LockError, StoreUnavailableError
from ..cursor import decode_cursor, encode_cursor
from ..damage import decoded, sorted_out
from ..errors import admin_token_name_taken, admin_token_not_found
from .audit import audit_puts
from .endpoints import Endpoints
from .layout import Layout, end_of
from .registry_entries import AdminTokenEntry, admin_token_in
from .transactions import Compare, Delete, Get, KeyValue, Op, Put

ATTEMPTS_MAX: Final = 10


class EtcdAdminTokens:
    """The AdminTokens. Made by `EtcdCluster`."""

    def __init__(self, endpoints: Endpoints, layout: Layout) -> None:
        self._endpoints: Final = endpoints
        self._layout: Final = layout

    async def add(self, token: AdminToken, digest: bytes, *, by: Act | None = None) -> None:
        key, name, secret = self._keys(token, digest)
        result = await self._endpoints.write(
            [Compare(one, 0) for one in (key, name, secret)],
            [
                Put(key, msgspec.json.encode(AdminTokenEntry(token, digest.hex()))),
                Put(name, token.id.encode()),
                Put(secret, token.id.encode()),
                *audit_puts(self._layout, token_entry(by, None, token)),
            ],
            [Get(name)],
        )
        if not result.succeeded:
            if result.one(0) is not None:
                raise admin_token_name_taken(token.name)
            raise LockError("name_taken", "an admin token with this id or digest exists already")

    async def page(self, *, limit: int, cursor: str | None) -> Page:
        found = await self._list(decode_cursor("admin-tokens", cursor), limit + 1)
        entries, damaged = sorted_out(decoded(found[:limit], admin_token_in))
        more = encode_cursor("admin-tokens", found[limit - 1].create_revision) if len(found) > limit else None
        return Page([entry.token for entry in entries], more, damaged)

    async def delete(self, token_id: str, *, by: Act | None = None) -> AdminToken:
        for _ in range(ATTEMPTS_MAX):
            found = (await self._endpoints.read(Get(self._layout.admin_token(token_id)))).one(0)
            if found is None:
                raise admin_token_not_found()
            entry = admin_token_in(found)
            keys = self._keys(entry.token, bytes.fromhex(entry.digest))
            ops: list[Op] = [*map(Delete, keys), *audit_puts(self._layout, token_entry(by, entry.token, None))]
            if (await self._endpoints.write([Compare(found.key, found.mod_revision)], ops)).succeeded:
                return entry.token
        raise StoreUnavailableError("conflict", "other nodes kept changing the same entry: try again in a moment")

    async def of_digest(self, digest: bytes) -> AdminToken | None:
        token_id = (await self._endpoints.read(Get(self._layout.admin_secret(digest)))).one(0)
        if token_id is None:
            return None
        found = (await self._endpoints.read(Get(self._layout.admin_tokens + token_id.value))).one(0)
        entry = None if found is None else admin_token_in(found)
        return entry.token if entry is not None and entry.digest == digest.hex() else None

    async def touch(self, last_used_at_ms: Mapping[str, int]) -> None:
        for token_id, at_ms in last_used_at_ms.items():
            with suppress(DamagedRecordError):
                await self._touch(token_id, at_ms)

    async def all_tokens(self, page_max: int) -> AsyncIterator[list[StoredAdminToken | DamagedRecordError]]:
        """All admin tokens in order of creation, page by page."""
        position = 0
        while found := await self._list(position, page_max):
            yield decoded(found, _stored)
            position = found[-1].create_revision

    async def _touch(self, token_id: str, at_ms: int) -> None:
        for _ in range(ATTEMPTS_MAX):
            found = (await self._endpoints.read(Get(self._layout.admin_token(token_id)))).one(0)
            if found is None:
                return
            token, digest = (entry := admin_token_in(found)).token, entry.digest
            if at_ms <= (token.last_used_at_ms or 0):
                return
            used = msgspec.json.encode(AdminTokenEntry(replace(token, last_used_at_ms=at_ms), digest))
            compare = Compare(found.key, found.mod_revision)
            if (await self._endpoints.write([compare], [Put(found.key, used)])).succeeded:
                return

    async def _list(self, position: int, limit: int) -> Sequence[KeyValue]:
        """Up to `limit` entries created after `position`, in that order."""
        begin = self._layout.admin_tokens
        return (await self._endpoints.read(Get(begin, end_of(begin), limit, created_from=position + 1))).reads[0]

    def _keys(self, token: AdminToken, digest: bytes) -> tuple[bytes, bytes, bytes]:
        layout = self._layout
        return layout.admin_token(token.id), layout.admin_token_name(token.name), layout.admin_secret(digest)


def _stored(found: KeyValue) -> StoredAdminToken:
    entry = admin_token_in(found)
    return StoredAdminToken(entry.token, bytes.fromhex(entry.digest))
