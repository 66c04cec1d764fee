"""What the ports of projects, credentials and sessions share: writing transactions, and instants of last use."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

import asyncpg

from ...ports.audit_entry import AuditEntry
from ...rules.errors import LockError, StoreUnavailableError
from ..audit_rows import AUDIT_COLUMNS, audit_row
from .connections import ConnectionPool, Transaction

INSERT_AUDIT: Final = (
    f"INSERT INTO volcano_locks.audit_entry ({AUDIT_COLUMNS}) "
    f"VALUES ({', '.join(f'${place}' for place in range(1, AUDIT_COLUMNS.count(',') + 2))})"
)


class PostgresTables:
    """The base of the ports on `connections`. They are made by `PostgresDatabase`."""

    def __init__(self, connections: ConnectionPool) -> None:
        self._connections: Final = connections

    @asynccontextmanager
    async def _writing(self, name: str = "") -> AsyncIterator[Transaction]:
        """A transaction whose constraint violations become errors of the port; `name` is the new entry's name."""
        try:
            async with self._connections.transaction() as transaction:
                yield transaction
        except StoreUnavailableError as error:
            if isinstance(error.__cause__, asyncpg.IntegrityConstraintViolationError):
                raise self._constraint_error(error.__cause__.constraint_name or "", name) from error
            raise

    def _constraint_error(self, constraint: str, name: str) -> LockError:  # noqa: ARG002 - ports that have names override it
        """The error of a row that violates this constraint."""
        return StoreUnavailableError("store_error", "the database refused a row; the log says why")

    async def _touch(self, table: str, last_used_at_ms: Mapping[str, int]) -> None:
        """Store when the table's entries (by id) were last used; never an earlier instant.

        In order of ids, so that two nodes with the same entries cannot deadlock.
        """
        if not last_used_at_ms:
            return
        sql = f"""
            WITH touched AS (
                SELECT id, at_ms FROM volcano_locks.{table}
                JOIN unnest($1::text[], $2::bigint[]) AS used (entry_id, at_ms) ON id = entry_id
                ORDER BY id FOR UPDATE OF {table}
            )
            UPDATE volcano_locks.{table} SET last_used_at_ms = greatest(coalesce(last_used_at_ms, 0), at_ms)
            FROM touched WHERE {table}.id = touched.id"""
        async with self._writing() as transaction:
            await transaction.fetch(sql, list(last_used_at_ms), list(last_used_at_ms.values()))


async def insert_audit(transaction: Transaction, entry: AuditEntry | None) -> None:
    """Add the entry of the audit, if there is one, in the transaction of what it is about."""
    if entry is not None:
        await transaction.fetch(INSERT_AUDIT, *audit_row(entry))
