"""Repairs damaged projects and service keys in PostgreSQL (CLI-31)."""

from typing import Final

from ..damage import ADMIN_TOKEN_KIND, PROJECT_KIND, repaired_project
from .connections import ConnectionPool

_PROJECT: Final = "SELECT name, requests_per_minute, created_at_ms FROM volcano_locks.project WHERE id = $1 FOR UPDATE"
_WRITE: Final = "UPDATE volcano_locks.project SET name = $2, requests_per_minute = $3, created_at_ms = $4 WHERE id = $1"


class PostgresRepairs:
    """The RegistryRepairs on `connections`. Made by `PostgresDatabase`."""

    def __init__(self, connections: ConnectionPool) -> None:
        self._connections: Final = connections

    async def repair(self, record: str, now_ms: int) -> None:
        kind, _, entry_id = record.partition("/")
        async with self._connections.transaction() as transaction:
            if kind != PROJECT_KIND:
                table = "admin_token" if kind == ADMIN_TOKEN_KIND else "service_key"
                await transaction.fetch(f"DELETE FROM volcano_locks.{table} WHERE id = $1", entry_id)
                return
            for name, limit, created_at_ms in await transaction.fetch(_PROJECT, entry_id):
                one = repaired_project(entry_id, name, limit, created_at_ms, now_ms)
                await transaction.fetch(_WRITE, entry_id, one.name, one.requests_per_minute, one.created_at_ms)
