"""Stores projects and service keys in PostgreSQL.

Constraints make ids, names and secrets unique; a check beforehand would race with other nodes. Lists are in order of
`number`, which is never reused.
"""

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Final

import asyncpg

from ...ports.registry import Credential, NewSecret, Page, Project, ServiceKey
from ...ports.snapshot import Entry, StoredSecret, StoredServiceKey
from ...rules.errors import LockError, StoreUnavailableError
from .. import registry_rows
from ..cursor import decode_cursor
from ..errors import project_name_taken, project_not_found, service_key_name_taken, service_key_not_found
from ..registry_rows import KEY_COLUMNS, PROJECT_COLUMNS, project_of, service_key_of
from .connections import ConnectionPool, Transaction
from .read_only import read_transaction

DELETE_ROWS_MAX: Final = 250
_DUPLICATES: Final = {
    "project_id_taken": "project with this id",
    "service_key_id_taken": "service key with this id",
    "secret_taken": "service key with this secret",
}


class PostgresRegistry:
    """The Registry on `connections`. Made by `PostgresDatabase`."""

    def __init__(self, connections: ConnectionPool) -> None:
        self._connections: Final = connections

    async def add_project(self, project: Project) -> None:
        async with self._writing(project.name) as transaction:
            await insert_entries(transaction, [project])

    async def project(self, project_id: str) -> Project:
        async with read_transaction(self._connections) as transaction:
            return await _project_of(transaction, project_id)

    async def projects(self, *, limit: int, cursor: str | None) -> Page:
        after = decode_cursor("projects", cursor)
        sql = f"SELECT number, {PROJECT_COLUMNS} FROM volcano_locks.project WHERE number > $1 ORDER BY number LIMIT $2"
        async with read_transaction(self._connections) as transaction:
            rows = await transaction.fetch(sql, after, limit + 1)
        return registry_rows.page_of("projects", rows, limit, project_of)

    async def change_project(self, project_id: str, *, name: str | None, requests_per_minute: int | None) -> Project:
        sql = (
            "UPDATE volcano_locks.project SET name = coalesce($2, name), "
            f"requests_per_minute = coalesce($3, requests_per_minute) WHERE id = $1 RETURNING {PROJECT_COLUMNS}"
        )
        async with self._writing(name or "") as transaction:
            rows = await transaction.fetch(sql, project_id, name, requests_per_minute)
            if not rows:
                raise project_not_found()
        return project_of(rows[0])

    async def delete_project(self, project_id: str) -> None:
        """Deletes the project and its keys at once, then its lock records in several transactions. A crash in between
        leaves records that no client can reach, which purging deletes later.
        """
        async with self._writing("") as transaction:
            if not await transaction.fetch("DELETE FROM volcano_locks.project WHERE id = $1 RETURNING id", project_id):
                raise project_not_found()
        sql = """
            WITH gone AS (
                DELETE FROM volcano_locks.lock WHERE ctid = ANY (ARRAY(
                    SELECT ctid FROM volcano_locks.lock WHERE project_id = $1 ORDER BY project_id, key LIMIT $2
                    FOR UPDATE)) RETURNING 1
            ) SELECT count(*) FROM gone"""
        deleted = DELETE_ROWS_MAX
        while deleted == DELETE_ROWS_MAX:
            async with self._writing("") as transaction:
                deleted = (await transaction.fetch(sql, project_id, DELETE_ROWS_MAX))[0][0]

    async def add_service_key(self, service_key: ServiceKey, secret_digest: bytes) -> None:
        async with self._writing(service_key.name) as transaction:
            await insert_entries(transaction, [StoredServiceKey(service_key, (StoredSecret(secret_digest, None),))])

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

    async def delete_service_key(self, project_id: str, key_id: str) -> None:
        async with self._writing("") as transaction:
            sql = "DELETE FROM volcano_locks.service_key WHERE project_id = $1 AND id = $2 RETURNING id"
            if not await transaction.fetch(sql, project_id, key_id):
                raise service_key_not_found()

    async def replace_secret(self, project_id: str, key_id: str, new: NewSecret) -> ServiceKey:
        """Only the secret that the new one replaces may stay valid for a while; older secrets become invalid now."""
        changed = (
            "UPDATE volcano_locks.service_key SET key_prefix = $3 WHERE project_id = $1 AND id = $2 "
            f"RETURNING {KEY_COLUMNS}"
        )
        async with self._writing("") as transaction:
            # The key's row first: two nodes that replace the secret at once take turns.
            rows = await transaction.fetch(changed, project_id, key_id, new.key_prefix)
            if not rows:
                raise service_key_not_found()
            await transaction.fetch("DELETE FROM volcano_locks.secret WHERE key_id = $1 AND is_old", key_id)
            if new.old_good_until_ms is None:
                await transaction.fetch("DELETE FROM volcano_locks.secret WHERE key_id = $1", key_id)
            else:
                old = "UPDATE volcano_locks.secret SET is_old = true, good_until_ms = $2 WHERE key_id = $1"
                await transaction.fetch(old, key_id, new.old_good_until_ms)
            added = "INSERT INTO volcano_locks.secret (digest, key_id, is_old) VALUES ($1, $2, false)"
            await transaction.fetch(added, new.digest, key_id)
        return service_key_of(rows[0])

    async def credential(self, secret_digest: bytes) -> Credential | None:
        sql = (
            f"SELECT {registry_rows.CREDENTIAL_COLUMNS} FROM volcano_locks.secret "
            "JOIN volcano_locks.service_key ON service_key.id = secret.key_id "
            "JOIN volcano_locks.project ON project.id = service_key.project_id WHERE secret.digest = $1"
        )
        async with read_transaction(self._connections) as transaction:
            return registry_rows.credential_of(await transaction.fetch(sql, secret_digest))

    async def touch_service_keys(self, last_used_at_ms: Mapping[str, int]) -> None:
        """In order of ids, so that two nodes with the same keys cannot deadlock."""
        if not last_used_at_ms:
            return
        sql = """
            WITH touched AS (
                SELECT id, at_ms FROM volcano_locks.service_key
                JOIN unnest($1::text[], $2::bigint[]) AS used (key_id, at_ms) ON id = key_id
                ORDER BY id FOR UPDATE OF service_key
            )
            UPDATE volcano_locks.service_key SET last_used_at_ms = greatest(coalesce(last_used_at_ms, 0), at_ms)
            FROM touched WHERE service_key.id = touched.id"""
        async with self._writing("") as transaction:
            await transaction.fetch(sql, list(last_used_at_ms), list(last_used_at_ms.values()))

    @asynccontextmanager
    async def _writing(self, name: str) -> AsyncIterator[Transaction]:
        """A transaction whose constraint violations become errors of the registry; `name` is the new entry's name."""
        try:
            async with self._connections.transaction() as transaction:
                yield transaction
        except StoreUnavailableError as error:
            if isinstance(error.__cause__, asyncpg.IntegrityConstraintViolationError):
                raise _constraint_error(error.__cause__.constraint_name, name) from error
            raise


def _constraint_error(constraint: str, name: str) -> LockError:
    match constraint:
        case "project_name_taken":
            return project_name_taken(name)
        case "service_key_name_taken":
            return service_key_name_taken(name)
        case "service_key_of_project":
            return project_not_found()
    if constraint in _DUPLICATES:
        return LockError("name_taken", f"a {_DUPLICATES[constraint]} exists already")
    return StoreUnavailableError("store_error", "the database refused a row; the log says why")


async def _project_of(transaction: Transaction, project_id: str) -> Project:
    rows = await transaction.fetch(f"SELECT {PROJECT_COLUMNS} FROM volcano_locks.project WHERE id = $1", project_id)
    if not rows:
        raise project_not_found()
    return project_of(rows[0])


async def _service_key_of(transaction: Transaction, project_id: str, key_id: str) -> ServiceKey:
    sql = f"SELECT {KEY_COLUMNS} FROM volcano_locks.service_key WHERE project_id = $1 AND id = $2"
    rows = await transaction.fetch(sql, project_id, key_id)
    if not rows:
        raise service_key_not_found()
    return service_key_of(rows[0])


async def insert_entries(transaction: Transaction, entries: Iterable[Entry]) -> None:
    """Insert the projects and service keys among `entries`."""
    for table, columns, cells in registry_rows.entry_rows(entries):
        placeholders = ", ".join(f"${index}" for index in range(1, len(cells) + 1))
        await transaction.fetch(f"INSERT INTO volcano_locks.{table} ({columns}) VALUES ({placeholders})", *cells)
