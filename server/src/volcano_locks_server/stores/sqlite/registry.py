"""Stores projects and service keys in SQLite, on the same connection and thread as the lock records.

Ids, names and secrets are unique by constraint. Lists are in order of `number`, which is never reused, so a page
continues correctly whatever was deleted meanwhile.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

import apsw

from ...ports.audit import key_entry, project_entry
from ...ports.audit_entry import Act
from ...ports.registry import Credential, NewSecret, Page, Project, ServiceKey
from ...ports.snapshot import StoredSecret, StoredServiceKey
from ...rules.errors import LockError
from .. import registry_rows
from ..cursor import decode_cursor
from ..damage import intact_or_none
from ..errors import project_name_taken, project_not_found, service_key_name_taken, service_key_not_found
from ..registry_rows import project_of, service_key_of
from .file_lock import FileLock
from .history import SqliteHistory
from .tables import Cells, SqliteTables, as_bytes, insert_row
from .writer import WriterThread

DELETE_ROWS_MAX: Final = 250
PROJECT_CELLS: Final = as_bytes(registry_rows.PROJECT_COLUMNS)
KEY_CELLS: Final = as_bytes(registry_rows.KEY_COLUMNS)
_CREDENTIAL_CELLS: Final = as_bytes(registry_rows.CREDENTIAL_COLUMNS)
_DUPLICATES: Final = {
    "project": "a project with this id",
    "service_key": "a service key with this id",
    "secret": "a service key with this secret",
}


class SqliteRegistry(SqliteTables):
    """The Registry on the one connection. Made by `SqliteFile`."""

    def __init__(
        self, connection: apsw.Connection, writer: WriterThread, file_lock: FileLock, history: SqliteHistory
    ) -> None:
        super().__init__(connection, writer, file_lock)
        self._history: Final = history

    async def add_project(self, project: Project, *, by: Act | None = None) -> None:
        def work() -> None:
            self._refuse_taken_project_name(project.id, project.name)
            self._insert(project)
            self._record(project_entry(by, None, project, project.id))

        await self._write(work)

    async def project(self, project_id: str) -> Project:
        return await self._read(partial(self._project, project_id))

    async def projects(self, *, limit: int, cursor: str | None) -> Page:
        after = decode_cursor("projects", cursor)
        sql = f"SELECT number, {PROJECT_CELLS} FROM project WHERE number > ? ORDER BY number LIMIT ?"
        rows = await self._read(lambda: self._rows(sql, (after, limit + 1)))
        return registry_rows.page_of("projects", rows, limit, project_of)

    async def change_project(
        self, project_id: str, *, name: str | None, requests_per_minute: int | None, by: Act | None = None
    ) -> Project:
        def work() -> Project:
            if name is not None:
                self._refuse_taken_project_name(project_id, name)
            before = self._project(project_id)
            self._connection.execute(
                "UPDATE project SET name = coalesce(?, name), requests_per_minute = coalesce(?, requests_per_minute) "
                "WHERE id = ?",
                (name, requests_per_minute, project_id),
            )
            after = self._project(project_id)
            self._record(project_entry(by, before, after, project_id))
            return after

        return await self._write(work)

    async def delete_project(self, project_id: str, *, by: Act | None = None) -> None:
        """Deletes the project and its keys at once, then its lock records and their history in several transactions,
        between batches.

        A crash in between leaves records that no client can reach, which purging deletes later.
        """

        def delete_project() -> None:
            before = intact_or_none(lambda: self._project(project_id))
            self._record(project_entry(by, before, None, project_id))
            self._connection.execute("DELETE FROM project WHERE id = ?", (project_id,))
            if not self._connection.changes():
                raise project_not_found()

        def delete_locks() -> bool:
            chosen = "SELECT number FROM lock WHERE project_id = ? LIMIT ?"
            self._connection.execute(f"DELETE FROM lock WHERE number IN ({chosen})", (project_id, DELETE_ROWS_MAX))
            return self._connection.changes() == DELETE_ROWS_MAX

        await self._write(delete_project)
        while await self._write(delete_locks):
            pass
        while await self._write(partial(self._history.delete_of, project_id, DELETE_ROWS_MAX)):
            pass

    async def add_service_key(self, service_key: ServiceKey, secret_digest: bytes, *, by: Act | None = None) -> None:
        def work() -> None:
            self._project(service_key.project_id)
            named = "SELECT 1 FROM service_key WHERE project_id = ? AND name = ?"
            if self._rows(named, (service_key.project_id, service_key.name)):
                raise service_key_name_taken(service_key.name)
            self._insert(StoredServiceKey(service_key, (StoredSecret(secret_digest, None),)))
            self._record(key_entry(by, None, service_key, (service_key.project_id, service_key.id)))

        await self._write(work)

    async def service_key(self, project_id: str, key_id: str) -> ServiceKey:
        return await self._read(partial(self._service_key, project_id, key_id))

    async def service_keys(self, project_id: str, *, limit: int, cursor: str | None) -> Page:
        after = decode_cursor("service-keys", cursor)
        listed = f"SELECT number, {KEY_CELLS} FROM service_key"
        sql = f"{listed} WHERE project_id = ? AND number > ? ORDER BY number LIMIT ?"

        def work() -> list[registry_rows.Row]:
            self._project(project_id)
            return self._rows(sql, (project_id, after, limit + 1))

        rows = await self._read(work)
        return registry_rows.page_of("service-keys", rows, limit, service_key_of)

    async def delete_service_key(self, project_id: str, key_id: str, *, by: Act | None = None) -> None:
        def work() -> None:
            before = intact_or_none(lambda: self._service_key(project_id, key_id))
            self._record(key_entry(by, before, None, (project_id, key_id)))
            self._connection.execute("DELETE FROM service_key WHERE project_id = ? AND id = ?", (project_id, key_id))
            if not self._connection.changes():
                raise service_key_not_found()

        await self._write(work)

    async def replace_secret(
        self, project_id: str, key_id: str, new: NewSecret, *, by: Act | None = None
    ) -> ServiceKey:
        """Only the secret that the new one replaces may stay valid for a while; older secrets become invalid now."""

        def work() -> ServiceKey:
            before = self._service_key(project_id, key_id)
            until_ms = self._old_secrets([key_id]).get(key_id), new.old_good_until_ms
            execute = self._connection.execute
            execute("DELETE FROM secret WHERE key_id = ? AND is_old = 1", (key_id,))
            if new.old_good_until_ms is None:
                execute("DELETE FROM secret WHERE key_id = ?", (key_id,))
            else:
                until = (new.old_good_until_ms, key_id)
                execute("UPDATE secret SET is_old = 1, good_until_ms = ? WHERE key_id = ?", until)
            self._insert_row("secret", "digest, key_id, is_old", (new.digest, key_id, 0))
            execute("UPDATE service_key SET key_prefix = ? WHERE id = ?", (new.key_prefix, key_id))
            after = self._service_key(project_id, key_id)
            self._record(key_entry(by, before, after, (project_id, key_id), until_ms))
            return after

        return await self._write(work)

    async def old_secrets(self, key_ids: Sequence[str]) -> Mapping[str, int]:
        return await self._read(partial(self._old_secrets, key_ids))

    async def credential(self, secret_digest: bytes) -> Credential | None:
        sql = (
            f"SELECT {_CREDENTIAL_CELLS} FROM secret "
            "JOIN service_key ON service_key.id = secret.key_id JOIN project ON project.id = service_key.project_id "
            "WHERE secret.digest = ?"
        )
        return registry_rows.credential_of(await self._read(lambda: self._rows(sql, (secret_digest,))))

    async def touch_service_keys(self, last_used_at_ms: Mapping[str, int]) -> None:
        await self._touch("service_key", last_used_at_ms)

    def _project(self, project_id: str) -> Project:
        rows = self._rows(f"SELECT {PROJECT_CELLS} FROM project WHERE id = ?", (project_id,))
        if not rows:
            raise project_not_found()
        return project_of(rows[0])

    def _service_key(self, project_id: str, key_id: str) -> ServiceKey:
        rows = self._rows(f"SELECT {KEY_CELLS} FROM service_key WHERE project_id = ? AND id = ?", (project_id, key_id))
        if not rows:
            raise service_key_not_found()
        return service_key_of(rows[0])

    def _old_secrets(self, key_ids: Sequence[str]) -> dict[str, int]:
        sql = "SELECT good_until_ms FROM secret WHERE key_id = ? AND is_old = 1 AND good_until_ms IS NOT NULL"
        return {key_id: until_ms for key_id in key_ids for (until_ms,) in self._rows(sql, (key_id,))}

    def _refuse_taken_project_name(self, project_id: str, name: str) -> None:
        if self._rows("SELECT 1 FROM project WHERE name = ? AND id <> ?", (name, project_id)):
            raise project_name_taken(name)

    def _insert(self, entry: Project | StoredServiceKey) -> None:
        for row in registry_rows.entry_rows([entry]):
            self._insert_row(*row)

    def _insert_row(self, table: str, columns: str, cells: Cells) -> None:
        try:
            insert_row(self._connection, table, columns, cells)
        except apsw.ConstraintError as error:
            raise LockError("name_taken", f"{_DUPLICATES[table]} exists already") from error
