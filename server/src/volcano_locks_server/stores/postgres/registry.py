"""Stores projects and service keys in PostgreSQL.

Constraints make ids, names and secrets unique; a check beforehand would race with other nodes. Lists are in order of
`number`, which is never reused.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from ...ports.audit import key_entry, project_entry
from ...ports.audit_entry import Act
from ...ports.registry import Credential, NewSecret, Page, Project, ServiceKey
from ...ports.snapshot import Entry, StoredSecret, StoredServiceKey
from ...rules.errors import LockError
from .. import registry_rows
from ..cursor import decode_cursor
from ..damage import intact_or_none
from ..errors import project_name_taken, project_not_found, service_key_name_taken, service_key_not_found
from ..registry_rows import KEY_COLUMNS, PROJECT_COLUMNS, project_of, service_key_of
from .connections import Transaction
from .read_only import read_transaction
from .tables import PostgresTables, insert_audit

DELETE_ROWS_MAX: Final = 250
_DELETE_LOCKS: Final = """
    WITH gone AS (
        DELETE FROM volcano_locks.lock WHERE ctid = ANY (ARRAY(
            SELECT ctid FROM volcano_locks.lock WHERE project_id = $1 ORDER BY project_id, key LIMIT $2
            FOR UPDATE)) RETURNING 1
    ) SELECT count(*) FROM gone"""
_DELETE_HISTORY: Final = """
    WITH gone AS (
        DELETE FROM volcano_locks.hold WHERE ctid = ANY (ARRAY(
            SELECT ctid FROM volcano_locks.hold WHERE project_id = $1 LIMIT $2 FOR UPDATE)) RETURNING 1
    ) SELECT count(*) FROM gone"""
_DUPLICATES: Final = {
    "project_id_taken": "project with this id",
    "service_key_id_taken": "service key with this id",
    "secret_taken": "service key with this secret",
}


class PostgresRegistry(PostgresTables):
    """The Registry on `connections`. Made by `PostgresDatabase`."""

    async def add_project(self, project: Project, *, by: Act | None = None) -> None:
        async with self._writing(project.name) as transaction:
            await insert_entries(transaction, [project])
            await insert_audit(transaction, project_entry(by, None, project, project.id))

    async def project(self, project_id: str) -> Project:
        async with read_transaction(self._connections) as transaction:
            return await _project_of(transaction, project_id)

    async def projects(self, *, limit: int, cursor: str | None) -> Page:
        after = decode_cursor("projects", cursor)
        sql = f"SELECT number, {PROJECT_COLUMNS} FROM volcano_locks.project WHERE number > $1 ORDER BY number LIMIT $2"
        async with read_transaction(self._connections) as transaction:
            rows = await transaction.fetch(sql, after, limit + 1)
        return registry_rows.page_of("projects", rows, limit, project_of)

    async def change_project(
        self, project_id: str, *, name: str | None, requests_per_minute: int | None, by: Act | None = None
    ) -> Project:
        sql = (
            "UPDATE volcano_locks.project SET name = coalesce($2, name), "
            f"requests_per_minute = coalesce($3, requests_per_minute) WHERE id = $1 RETURNING {PROJECT_COLUMNS}"
        )
        async with self._writing(name or "") as transaction:
            before = None if by is None else await _project_of(transaction, project_id, "FOR UPDATE")
            rows = await transaction.fetch(sql, project_id, name, requests_per_minute)
            if not rows:
                raise project_not_found()
            after = project_of(rows[0])  # raises before the commit if it is damaged
            await insert_audit(transaction, project_entry(by, before, after, project_id))
            return after

    async def delete_project(self, project_id: str, *, by: Act | None = None) -> None:
        """Deletes the project and its keys at once, then its lock records and their history in several transactions. A
        crash in between leaves records that no client can reach, which purging deletes later.
        """
        async with self._writing() as transaction:
            deleted = f"DELETE FROM volcano_locks.project WHERE id = $1 RETURNING {PROJECT_COLUMNS}"
            if not (rows := await transaction.fetch(deleted, project_id)):
                raise project_not_found()
            before = intact_or_none(lambda: project_of(rows[0]))
            await insert_audit(transaction, project_entry(by, before, None, project_id))
        for sql in (_DELETE_LOCKS, _DELETE_HISTORY):
            count = DELETE_ROWS_MAX
            while count == DELETE_ROWS_MAX:
                async with self._writing() as transaction:
                    count = (await transaction.fetch(sql, project_id, DELETE_ROWS_MAX))[0][0]

    async def add_service_key(self, service_key: ServiceKey, secret_digest: bytes, *, by: Act | None = None) -> None:
        async with self._writing(service_key.name) as transaction:
            await insert_entries(transaction, [StoredServiceKey(service_key, (StoredSecret(secret_digest, None),))])
            ids = service_key.project_id, service_key.id
            await insert_audit(transaction, key_entry(by, None, service_key, ids))

    async def service_key(self, project_id: str, key_id: str) -> ServiceKey:
        async with read_transaction(self._connections) as transaction:
            return await _service_key_of(transaction, project_id, key_id)

    async def service_keys(self, project_id: str, *, limit: int, cursor: str | None) -> Page:
        after = decode_cursor("service-keys", cursor)
        sql = (
            f"SELECT number, {KEY_COLUMNS} FROM volcano_locks.service_key WHERE project_id = $1 AND number > $2 "
            "ORDER BY number LIMIT $3"
        )
        async with read_transaction(self._connections) as transaction:
            await _project_of(transaction, project_id)
            rows = await transaction.fetch(sql, project_id, after, limit + 1)
        return registry_rows.page_of("service-keys", rows, limit, service_key_of)

    async def delete_service_key(self, project_id: str, key_id: str, *, by: Act | None = None) -> None:
        async with self._writing() as transaction:
            sql = f"DELETE FROM volcano_locks.service_key WHERE project_id = $1 AND id = $2 RETURNING {KEY_COLUMNS}"
            if not (rows := await transaction.fetch(sql, project_id, key_id)):
                raise service_key_not_found()
            before = intact_or_none(lambda: service_key_of(rows[0]))
            await insert_audit(transaction, key_entry(by, before, None, (project_id, key_id)))

    async def replace_secret(
        self, project_id: str, key_id: str, new: NewSecret, *, by: Act | None = None
    ) -> ServiceKey:
        """Only the secret that the new one replaces may stay valid for a while; older secrets become invalid now."""
        changed = (
            "UPDATE volcano_locks.service_key SET key_prefix = $3 WHERE project_id = $1 AND id = $2 "
            f"RETURNING {KEY_COLUMNS}"
        )
        async with self._writing() as transaction:
            # The key's row first: two nodes that replace the secret at once take turns.
            before = None if by is None else await _service_key_of(transaction, project_id, key_id, "FOR UPDATE")
            rows = await transaction.fetch(changed, project_id, key_id, new.key_prefix)
            if not rows:
                raise service_key_not_found()
            until_ms = (await _old_secrets_of(transaction, [key_id])).get(key_id), new.old_good_until_ms
            await transaction.fetch("DELETE FROM volcano_locks.secret WHERE key_id = $1 AND is_old", key_id)
            if new.old_good_until_ms is None:
                await transaction.fetch("DELETE FROM volcano_locks.secret WHERE key_id = $1", key_id)
            else:
                old = "UPDATE volcano_locks.secret SET is_old = true, good_until_ms = $2 WHERE key_id = $1"
                await transaction.fetch(old, key_id, new.old_good_until_ms)
            added = "INSERT INTO volcano_locks.secret (digest, key_id, is_old) VALUES ($1, $2, false)"
            await transaction.fetch(added, new.digest, key_id)
            after = service_key_of(rows[0])  # raises before the commit if it is damaged
            entry = key_entry(by, before, after, (project_id, key_id), until_ms)
            await insert_audit(transaction, entry)
            return after

    async def old_secrets(self, key_ids: Sequence[str]) -> Mapping[str, int]:
        async with read_transaction(self._connections) as transaction:
            return await _old_secrets_of(transaction, key_ids)

    async def credential(self, secret_digest: bytes) -> Credential | None:
        sql = (
            f"SELECT {registry_rows.CREDENTIAL_COLUMNS} FROM volcano_locks.secret "
            "JOIN volcano_locks.service_key ON service_key.id = secret.key_id "
            "JOIN volcano_locks.project ON project.id = service_key.project_id WHERE secret.digest = $1"
        )
        async with read_transaction(self._connections) as transaction:
            return registry_rows.credential_of(await transaction.fetch(sql, secret_digest))

    async def touch_service_keys(self, last_used_at_ms: Mapping[str, int]) -> None:
        await self._touch("service_key", last_used_at_ms)

    def _constraint_error(self, constraint: str, name: str) -> LockError:
        match constraint:
            case "project_name_taken":
                return project_name_taken(name)
            case "service_key_name_taken":
                return service_key_name_taken(name)
            case "service_key_of_project":
                return project_not_found()
        if constraint in _DUPLICATES:
            return LockError("name_taken", f"a {_DUPLICATES[constraint]} exists already")
        return super()._constraint_error(constraint, name)


async def _project_of(transaction: Transaction, project_id: str, lock: str = "") -> Project:
    sql = f"SELECT {PROJECT_COLUMNS} FROM volcano_locks.project WHERE id = $1 {lock}"
    rows = await transaction.fetch(sql, project_id)
    if not rows:
        raise project_not_found()
    return project_of(rows[0])


async def _old_secrets_of(transaction: Transaction, key_ids: Sequence[str]) -> dict[str, int]:
    sql = (
        "SELECT key_id, good_until_ms FROM volcano_locks.secret "
        "WHERE key_id = ANY ($1::text[]) AND is_old AND good_until_ms IS NOT NULL"
    )
    return {row[0]: row[1] for row in await transaction.fetch(sql, list(key_ids))}


async def _service_key_of(transaction: Transaction, project_id: str, key_id: str, lock: str = "") -> ServiceKey:
    sql = f"SELECT {KEY_COLUMNS} FROM volcano_locks.service_key WHERE project_id = $1 AND id = $2 {lock}"
    rows = await transaction.fetch(sql, project_id, key_id)
    if not rows:
        raise service_key_not_found()
    return service_key_of(rows[0])


async def insert_entries(transaction: Transaction, entries: Iterable[Entry]) -> None:
    """Insert `entries` without the locks."""
    for table, columns, cells in registry_rows.entry_rows(entries):
        placeholders = ", ".join(f"${index}" for index in range(1, len(cells) + 1))
        await transaction.fetch(f"INSERT INTO volcano_locks.{table} ({columns}) VALUES ({placeholders})", *cells)
