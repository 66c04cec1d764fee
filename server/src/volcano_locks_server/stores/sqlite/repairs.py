"""Repairs damaged projects and service keys in SQLite (CLI-31)."""

from functools import partial
from typing import Final

import apsw

from ..damage import ADMIN_TOKEN_KIND, PROJECT_KIND, repaired_project
from .commits import ServedNote, run_counted
from .registry import PROJECT_CELLS
from .tables import read_rows
from .writer import WriterThread


class SqliteRepairs:
    """The RegistryRepairs on the one connection. Made by `SqliteFile`."""

    def __init__(self, connection: apsw.Connection, writer: WriterThread, served: ServedNote) -> None:
        self._connection: Final = connection
        self._writer: Final = writer
        self._served: Final = served

    async def repair(self, record: str, now_ms: int) -> None:
        kind, _, entry_id = record.partition("/")
        if kind == PROJECT_KIND:
            work = partial(self._repair_project, entry_id, now_ms)
        else:
            work = partial(self._delete, "admin_token" if kind == ADMIN_TOKEN_KIND else "service_key", entry_id)
        await self._writer.run(partial(run_counted, self._connection, self._served, work))

    def _repair_project(self, project_id: str, now_ms: int) -> None:
        for _id, *cells in read_rows(
            self._connection, f"SELECT {PROJECT_CELLS} FROM project WHERE id = ?", (project_id,)
        ):
            name, limit, created_at_ms = cells
            project = repaired_project(project_id, name, limit, created_at_ms, now_ms)
            values = (project.name, project.requests_per_minute, project.created_at_ms, project_id)
            sql = "UPDATE project SET name = ?, requests_per_minute = ?, created_at_ms = ? WHERE id = ?"
            self._connection.execute(sql, values)

    def _delete(self, table: str, entry_id: str) -> None:
        self._connection.execute(f"DELETE FROM {table} WHERE id = ?", (entry_id,))
