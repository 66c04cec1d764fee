"""Repairs damaged projects, service keys, secrets and instants of nodes in etcd (CLI-31)."""

from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec

from ...rules.errors import DamagedRecordError
from ..damage import ADMIN_TOKEN_KIND, PROJECT_KIND, repaired_project
from .endpoints import Endpoints
from .layout import Layout, after, end_of
from .registry_entries import secret_target_in
from .transactions import Compare, Delete, Get, KeyValue, Put

KEYS_PER_PAGE: Final = 500


class EtcdRepairs:
    """The RegistryRepairs. Made by `EtcdCluster`."""

    def __init__(self, endpoints: Endpoints, layout: Layout) -> None:
        self._endpoints: Final = endpoints
        self._layout: Final = layout

    async def repair(self, record: str, now_ms: int) -> None:
        kind, _, name = record.partition("/")
        match kind:
            case _ if kind == PROJECT_KIND:
                await self._repair_project(name, now_ms)
            case "service-key":
                await self._delete_key(name)
            case "secret":
                await self._delete_secrets(name)
            case _ if kind == ADMIN_TOKEN_KIND:
                await self._delete_admin_token(name)
            case "node":
                await self._endpoints.write((), [Delete(self._layout.node(name))])

    async def _repair_project(self, project_id: str, now_ms: int) -> None:
        key = self._layout.project(project_id)
        found = (await self._endpoints.read(Get(key))).one(0)
        if found is None:
            return
        names = self._layout.project_names
        own = [one.key[len(names) :].decode() async for one in self._all(names) if one.value == project_id.encode()]
        fields = _fields(found.value)
        name = own[0] if own else fields.get("name")
        limit, created_at_ms = fields.get("requests_per_minute"), fields.get("created_at_ms")
        project = repaired_project(project_id, name, limit, created_at_ms, now_ms)
        puts = [
            Put(key, msgspec.json.encode(project)),
            Put(self._layout.project_name(project.name), project_id.encode()),
        ]
        await self._endpoints.write([Compare(key, found.mod_revision)], puts)

    async def _delete_key(self, key_id: str) -> None:
        """The names and secrets that lead to it are found by their values."""
        key = self._layout.service_key(key_id)
        await self._endpoints.write((), [Delete(key)])
        async for one in self._all(self._layout.key_names):
            if one.value == key_id.encode():
                await self._endpoints.write((), [Delete(one.key)])
        async for one in self._all(self._layout.secrets):
            if _key_of(one) == key_id:
                await self._endpoints.write((), [Delete(one.key)])

    async def _delete_admin_token(self, token_id: str) -> None:
        await self._endpoints.write((), [Delete(self._layout.admin_token(token_id))])
        for begin in (self._layout.admin_token_names, self._layout.admin_secrets):
            async for one in self._all(begin):
                if one.value == token_id.encode():
                    await self._endpoints.write((), [Delete(one.key)])

    async def _delete_secrets(self, digest_begin: str) -> None:
        begin = self._layout.secrets + digest_begin.encode()
        async for one in self._all(self._layout.secrets):
            if one.key.startswith(begin) and _key_of(one) is None:
                await self._endpoints.write((), [Delete(one.key)])

    async def _all(self, begin: bytes) -> AsyncIterator[KeyValue]:
        first = begin
        while page := (await self._endpoints.read(Get(first, end_of(begin), KEYS_PER_PAGE))).reads[0]:
            for one in page:
                yield one
            first = after(page[-1].key)


def _key_of(secret: KeyValue) -> str | None:
    """The service key of a secret, None if its record is damaged."""
    try:
        return secret_target_in(secret).key_id
    except DamagedRecordError:
        return None


def _fields(value: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(value, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}
