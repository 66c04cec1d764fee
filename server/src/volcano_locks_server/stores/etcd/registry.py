"""Stores projects and service keys in etcd.

Ids, names and secrets are unique because the transaction that writes them requires that their keys do not exist. A
change compares everything that it relies on; if a comparison fails, the store reads and decides again. Lists are in
order of the revision that created an entry; revisions rise, are never reused, and do not change.

Deleting a project is one transaction; from then on no secret of the project is valid and nothing can be added. Its keys
and locks are deleted afterwards, in several transactions. A mark stays until they are gone, so that another node can
continue (`finish_deletions`) if this one dies.
"""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeVar

import msgspec

from ...ports.audit import key_entry, project_entry
from ...ports.audit_entry import Act, AuditEntry
from ...ports.registry import Credential, NewSecret, Page, Project, ServiceKey
from ...rules.errors import DamagedRecordError, LockError, StoreUnavailableError
from ..cursor import decode_cursor, encode_cursor
from ..damage import decoded, sorted_out
from ..errors import project_name_taken, project_not_found, service_key_name_taken, service_key_not_found
from .audit import audit_puts
from .endpoints import Endpoints
from .history import EtcdHistory
from .layout import Layout, after, end_of
from .registry_entries import (
    SecretEntry,
    SecretTarget,
    ServiceKeyEntry,
    project_in,
    secret_target_in,
    service_key_in,
)
from .transactions import Compare, Delete, Get, KeyValue, Op, Put

ATTEMPTS_MAX: Final = 10
KEYS_PER_TRANSACTION: Final = 30  # four deletions each; etcd allows 128 operations
LOCKS_PER_TRANSACTION: Final = 500

T = TypeVar("T")


class EtcdRegistry:
    """The Registry. Made by `EtcdCluster`."""

    def __init__(self, endpoints: Endpoints, layout: Layout, history: EtcdHistory) -> None:
        self._endpoints: Final = endpoints
        self._layout: Final = layout
        self._history: Final = history

    async def add_project(self, project: Project, *, by: Act | None = None) -> None:
        key, name = self._layout.project(project.id), self._layout.project_name(project.name)
        deleting = self._layout.deletion(project.id)
        result = await self._endpoints.write(
            (Compare(key, 0), Compare(name, 0), Compare(deleting, 0)),
            (
                Put(key, msgspec.json.encode(project)),
                Put(name, project.id.encode()),
                *self._audit(project_entry(by, None, project, project.id)),
            ),
            (Get(name),),
        )
        if not result.succeeded:
            if result.one(0) is not None:
                raise project_name_taken(project.name)
            raise LockError("name_taken", "a project with this id exists already")

    async def project(self, project_id: str) -> Project:
        return (await self._project(project_id))[1]

    async def projects(self, *, limit: int, cursor: str | None) -> Page:
        begin = self._layout.projects
        found = await self._list(begin, decode_cursor("projects", cursor), limit + 1)
        projects, damaged = sorted_out(decoded(found[:limit], project_in))
        return Page(projects, _next_cursor("projects", found, limit), damaged)

    async def change_project(
        self, project_id: str, *, name: str | None, requests_per_minute: int | None, by: Act | None = None
    ) -> Project:
        for _ in range(ATTEMPTS_MAX):
            found, before = await self._project(project_id)
            changed = before.changed(name, requests_per_minute)
            compares, otherwise = [Compare(found.key, found.mod_revision)], []
            then: list[Op] = [Put(found.key, msgspec.json.encode(changed))]
            then += self._audit(project_entry(by, before, changed, project_id))
            if changed.name != before.name:
                new_name = self._layout.project_name(changed.name)
                compares.append(Compare(new_name, 0))
                then += [Put(new_name, project_id.encode())]
                then += [Delete(self._layout.project_name(before.name))]
                otherwise = [Get(new_name)]
            result = await self._endpoints.write(compares, then, otherwise)
            if result.succeeded:
                return changed
            if otherwise and result.one(0) is not None:
                raise project_name_taken(changed.name)
        raise _conflict()

    async def delete_project(self, project_id: str, *, by: Act | None = None) -> None:
        for _ in range(ATTEMPTS_MAX):
            found, project = await self._project(project_id)
            name, mark = self._layout.project_name(project.name), self._layout.deletion(project_id)
            result = await self._endpoints.write(
                [Compare(found.key, found.mod_revision)],
                [
                    Delete(found.key),
                    Delete(name),
                    Put(mark, b""),
                    *self._audit(project_entry(by, project, None, project_id)),
                ],
            )
            if result.succeeded:
                return await self._finish_deletion(project_id)
        raise _conflict()

    async def finish_deletions(self) -> None:
        """Continue the deletions of a node that died."""
        marks = (await self._endpoints.read(Get(self._layout.deletions, end_of(self._layout.deletions)))).reads[0]
        for mark in marks:
            await self._finish_deletion(mark.key[len(self._layout.deletions) :].decode())

    async def add_service_key(self, service_key: ServiceKey, secret_digest: bytes, *, by: Act | None = None) -> None:
        entry = key_entry(by, None, service_key, (service_key.project_id, service_key.id))
        await self.add_stored(ServiceKeyEntry(service_key, (SecretEntry(secret_digest.hex()),)), entry)

    async def add_stored(self, stored: ServiceKeyEntry, audit: AuditEntry | None = None) -> None:
        """Add a service key with all its secrets."""
        service_key = stored.service_key
        key, name = self._key_and_name(service_key)
        secrets = list(map(self._layout.secret, stored.digests()))
        target = msgspec.json.encode(SecretTarget(service_key.project_id, service_key.id))
        for _ in range(ATTEMPTS_MAX):
            project, _project = await self._project(service_key.project_id)
            result = await self._endpoints.write(
                (Compare(project.key, project.mod_revision), *(Compare(one, 0) for one in (key, name, *secrets))),
                (
                    Put(key, msgspec.json.encode(stored)),
                    Put(name, service_key.id.encode()),
                    *(Put(secret, target) for secret in secrets),
                    *self._audit(audit),
                ),
                (Get(name), Get(key), *map(Get, secrets)),
            )
            if result.succeeded:
                return
            if result.one(0) is not None:
                raise service_key_name_taken(service_key.name)
            if any(result.reads):
                raise LockError("name_taken", "a service key with this id or secret exists already")
        raise _conflict()

    async def service_key(self, project_id: str, key_id: str) -> ServiceKey:
        return (await self._stored(project_id, key_id))[1].service_key

    async def service_keys(self, project_id: str, *, limit: int, cursor: str | None) -> Page:
        position = decode_cursor("service-keys", cursor)
        await self._project(project_id)
        named = await self._list(self._layout.keys_of(project_id), position, limit + 1)
        stored, damaged = sorted_out(await self._stored_keys(one.value for one in named[:limit]))
        return Page([one.service_key for one in stored], _next_cursor("service-keys", named, limit), damaged)

    async def delete_service_key(self, project_id: str, key_id: str, *, by: Act | None = None) -> None:
        for _ in range(ATTEMPTS_MAX):
            found, stored, _project_compare = await self._stored(project_id, key_id)
            compare = Compare(found.key, found.mod_revision)
            entry = key_entry(by, stored.service_key, None, (project_id, key_id))
            if (await self._endpoints.write([compare], [*self._deletions(stored), *self._audit(entry)])).succeeded:
                return
        raise _conflict()

    async def replace_secret(
        self, project_id: str, key_id: str, new: NewSecret, *, by: Act | None = None
    ) -> ServiceKey:
        """Only the secret that the new one replaces may stay valid for a while; older secrets become invalid now."""
        secret, target = self._layout.secret(new.digest), msgspec.json.encode(SecretTarget(project_id, key_id))
        for _ in range(ATTEMPTS_MAX):
            found, before, project_compare = await self._stored(project_id, key_id)
            current, *older = before.secrets
            secrets = [SecretEntry(new.digest.hex())]
            if new.old_good_until_ms is None:
                older.append(current)
            else:
                secrets.append(SecretEntry(current.digest, new.old_good_until_ms))
            changed = ServiceKeyEntry(replace(before.service_key, key_prefix=new.key_prefix), tuple(secrets))
            ids = project_id, key_id
            until_ms = before.old_good_until_ms(), new.old_good_until_ms
            entry = key_entry(by, before.service_key, changed.service_key, ids, until_ms)
            result = await self._endpoints.write(
                (project_compare, Compare(found.key, found.mod_revision), Compare(secret, 0)),
                (
                    Put(found.key, msgspec.json.encode(changed)),
                    Put(secret, target),
                    *(Delete(self._layout.secret(bytes.fromhex(one.digest))) for one in older),
                    *self._audit(entry),
                ),
                [Get(secret)],
            )
            if result.succeeded:
                return changed.service_key
            if result.one(0) is not None:
                raise LockError("name_taken", "a service key with this secret exists already")
        raise _conflict()

    async def old_secrets(self, key_ids: Sequence[str]) -> Mapping[str, int]:
        stored, _damaged = sorted_out(await self._stored_keys(key_id.encode() for key_id in key_ids))
        untils = ((one.service_key.id, one.old_good_until_ms()) for one in stored)
        return {key_id: until_ms for key_id, until_ms in untils if until_ms is not None}

    async def credential(self, secret_digest: bytes) -> Credential | None:
        """Leftovers of a deleted project or key are not valid: secret, key and project must all exist and agree."""
        found = (await self._endpoints.read(Get(self._layout.secret(secret_digest)))).one(0)
        if found is None:
            return None
        target = secret_target_in(found)
        reads = Get(self._layout.service_key(target.key_id)), Get(self._layout.project(target.project_id))
        result = await self._endpoints.read(*reads)
        key, project = result.one(0), result.one(1)
        if key is None or project is None:
            return None
        stored = service_key_in(key)
        secret = next((one for one in stored.secrets if one.digest == secret_digest.hex()), None)
        if secret is None or stored.service_key.project_id != target.project_id:
            return None
        return Credential.of(stored.service_key, project_in(project), secret.good_until_ms)

    async def touch_service_keys(self, last_used_at_ms: Mapping[str, int]) -> None:
        for key_id, at_ms in last_used_at_ms.items():
            for _ in range(ATTEMPTS_MAX):
                found = (await self._endpoints.read(Get(self._layout.service_key(key_id)))).one(0)
                stored = None if found is None else _intact_key(found)
                if found is None or stored is None or at_ms <= (stored.service_key.last_used_at_ms or 0):
                    break
                used = ServiceKeyEntry(replace(stored.service_key, last_used_at_ms=at_ms), stored.secrets)
                put = Put(found.key, msgspec.json.encode(used))
                if (await self._endpoints.write([Compare(found.key, found.mod_revision)], [put])).succeeded:
                    break

    async def all_projects(self, page_max: int) -> AsyncIterator[list[Project | DamagedRecordError]]:
        """All projects in order of creation, page by page."""
        async for page in self._pages(self._layout.projects, page_max):
            yield decoded(page, project_in)

    async def all_keys(self, page_max: int) -> AsyncIterator[list[ServiceKeyEntry | DamagedRecordError]]:
        """All service keys in order of creation, page by page, including leftovers of a deleted project."""
        async for page in self._pages(self._layout.service_keys, page_max):
            yield decoded(page, service_key_in)

    async def _pages(self, begin: bytes, page_max: int) -> AsyncIterator[Sequence[KeyValue]]:
        position = 0
        while page := await self._list(begin, position, page_max):
            yield page
            position = page[-1].create_revision

    async def _list(self, begin: bytes, position: int, limit: int) -> Sequence[KeyValue]:
        """Up to `limit` entries created after `position`, in that order."""
        return (await self._endpoints.read(Get(begin, end_of(begin), limit, created_from=position + 1))).reads[0]

    async def _project(self, project_id: str) -> tuple[KeyValue, Project]:
        found = (await self._endpoints.read(Get(self._layout.project(project_id)))).one(0)
        if found is None:
            raise project_not_found()
        return found, project_in(found)

    async def _stored(self, project_id: str, key_id: str) -> tuple[KeyValue, ServiceKeyEntry, Compare]:
        """The service key, and the comparison that its project is unchanged."""
        reads = Get(self._layout.service_key(key_id)), Get(self._layout.project(project_id))
        result = await self._endpoints.read(*reads)
        found, project = result.one(0), result.one(1)
        stored = None if found is None else service_key_in(found)
        if found is None or stored is None or project is None or stored.service_key.project_id != project_id:
            raise service_key_not_found()
        return found, stored, Compare(project.key, project.mod_revision)

    async def _stored_keys(self, key_ids: Iterable[bytes]) -> list[ServiceKeyEntry | DamagedRecordError]:
        """The service keys with these ids, except those deleted meanwhile."""
        reads = [Get(self._layout.service_keys + key_id) for key_id in key_ids]
        result = await self._endpoints.read(*reads) if reads else None
        return [] if result is None else decoded((found[0] for found in result.reads if found), service_key_in)

    def _audit(self, entry: AuditEntry | None) -> list[Put]:
        return audit_puts(self._layout, entry)

    def _key_and_name(self, key: ServiceKey) -> tuple[bytes, bytes]:
        return self._layout.service_key(key.id), self._layout.key_name(key.project_id, key.name)

    def _deletions(self, stored: ServiceKeyEntry) -> list[Op]:
        secrets = map(self._layout.secret, stored.digests())
        return [Delete(key) for key in (*self._key_and_name(stored.service_key), *secrets)]

    async def _finish_deletion(self, project_id: str) -> None:
        """Delete keys, then locks, then their history, then the mark. Safe to repeat, even by two nodes at once."""
        names = self._layout.keys_of(project_id)
        while named := (await self._endpoints.read(Get(names, end_of(names), KEYS_PER_TRANSACTION))).reads[0]:
            stored_keys, _damaged = sorted_out(await self._stored_keys(one.value for one in named))
            of_keys = [op for stored in stored_keys for op in self._deletions(stored)]
            orphans = {key for one in named for key in (one.key, self._layout.service_keys + one.value)}
            orphans -= {op.key for op in of_keys}
            await self._endpoints.write((), [*of_keys, *map(Delete, orphans)])
        locks = self._layout.locks_of(project_id)
        while page := (
            await self._endpoints.read(Get(locks, end_of(locks), LOCKS_PER_TRANSACTION, keys_only=True))
        ).reads[0]:
            await self._endpoints.write((), [Delete(locks, after(page[-1].key))])
        await self._history.delete_of(project_id)
        await self._endpoints.write(
            (), [Delete(self._layout.quota(project_id)), Delete(self._layout.deletion(project_id))]
        )


def _intact_key(found: KeyValue) -> ServiceKeyEntry | None:
    try:
        return service_key_in(found)
    except DamagedRecordError:
        return None


def _next_cursor(kind: str, found: Sequence[KeyValue], limit: int) -> str | None:
    return encode_cursor(kind, found[limit - 1].create_revision) if len(found) > limit else None


def _conflict() -> StoreUnavailableError:
    return StoreUnavailableError("conflict", "other nodes kept changing the same entries: try again in a moment")
