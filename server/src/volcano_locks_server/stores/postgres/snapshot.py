"""Reads and writes the whole database, page by page (see `volcano_locks_server.ports.snapshot`).

A load is one transaction under locks that exclude every other writer, so it takes effect as a whole or not at all.
Reading uses one transaction for each page; the service is stopped meanwhile.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Final

from ...ports.clock import Clock
from ...ports.lock_store import RecordKey
from ...ports.snapshot import PAGE_ENTRIES_MAX, Entry, StoredLock, StoredSecret, StoredServiceKey, store_not_empty
from ...rules.lease import LockRecord
from ...rules.values import LockKey
from ..registry_rows import KEY_COLUMNS, PROJECT_COLUMNS, project_of, service_key_of
from .connections import ConnectionPool, Row
from .registry import insert_entries
from .rows import NOW, read_page, write_records

LOAD_SECONDS_MAX: Final = 3_600.0
LOAD_STATEMENT_SECONDS_MAX: Final = 30.0

_LOCK_TABLES: Final = (
    "LOCK TABLE volcano_locks.project, volcano_locks.service_key, volcano_locks.secret, volcano_locks.lock "
    "IN EXCLUSIVE MODE"
)
_HAS_ENTRIES: Final = (
    "SELECT EXISTS (SELECT FROM volcano_locks.project) OR EXISTS (SELECT FROM volcano_locks.service_key) "
    "OR EXISTS (SELECT FROM volcano_locks.lock)"
)
_WRITTEN_AT: Final = "SELECT coalesce(max(greatest(freed_at_ms, renewed_at_ms)), 0) FROM volcano_locks.lock"
_ADVANCE_NEWEST: Final = "UPDATE volcano_locks.newest_instant SET now_ms = greatest(now_ms, $1)"
_SECRETS: Final = (
    "SELECT key_id, digest, good_until_ms FROM volcano_locks.secret WHERE key_id = ANY ($1::text[]) "
    "ORDER BY key_id, is_old"
)


class PostgresSnapshot:
    """The Snapshot on `connections`. Made by `PostgresDatabase`. `clock` replaces the database's, for tests."""

    def __init__(self, connections: ConnectionPool, clock: Clock | None) -> None:
        self._connections: Final = connections
        self._clock: Final = clock

    async def newest_ms(self) -> int:
        """The clock, or the newest instant in a record or in the database if that is later."""
        async with self._connections.transaction(statement_seconds=LOAD_STATEMENT_SECONDS_MAX) as transaction:
            database_ms, remembered_ms = (await transaction.fetch(NOW))[0]
            ((written_at_ms,),) = await transaction.fetch(_WRITTEN_AT)
            transaction.keep = False
        now_ms = database_ms if self._clock is None else self._clock.now_ms()
        return max(int(now_ms), int(remembered_ms), int(written_at_ms))

    async def pages(self) -> AsyncIterator[Sequence[Entry]]:
        number = 0
        while rows := await self._rows("project", PROJECT_COLUMNS, number):
            yield [project_of(row[1:]) for row in rows]
            number = rows[-1][0]
        number = 0
        while rows := await self._rows("service_key", KEY_COLUMNS, number):
            keys = [service_key_of(row[1:]) for row in rows]
            secrets = await self._secrets([key.id for key in keys])
            yield [StoredServiceKey(key, tuple(secrets[key.id])) for key in keys]
            number = rows[-1][0]
        after = RecordKey("", LockKey(""))
        while records := await self._records(after):
            yield [StoredLock(key, record) for key, record in records.items()]
            after = list(records)[-1]

    async def load(self, pages: AsyncIterator[Sequence[Entry]], newest_ms: int) -> None:
        async with self._connections.transaction(
            seconds=LOAD_SECONDS_MAX, statement_seconds=LOAD_STATEMENT_SECONDS_MAX
        ) as transaction:
            await transaction.fetch(_LOCK_TABLES)
            if (await transaction.fetch(_HAS_ENTRIES))[0][0]:
                raise store_not_empty()
            async for page in pages:
                await insert_entries(transaction, page)
                records = {entry.key: entry.record for entry in page if isinstance(entry, StoredLock)}
                await write_records(transaction, records, dict.fromkeys(records), newest_ms)
            await transaction.fetch(_ADVANCE_NEWEST, newest_ms)

    async def _rows(self, table: str, columns: str, after: int) -> list[Row]:
        sql = f"SELECT number, {columns} FROM volcano_locks.{table} WHERE number > $1 ORDER BY number LIMIT $2"
        async with self._connections.transaction() as transaction:
            transaction.keep = False
            return await transaction.fetch(sql, after, PAGE_ENTRIES_MAX)

    async def _secrets(self, key_ids: list[str]) -> dict[str, list[StoredSecret]]:
        secrets: dict[str, list[StoredSecret]] = {key_id: [] for key_id in key_ids}
        async with self._connections.transaction() as transaction:
            transaction.keep = False
            for key_id, digest, good_until_ms in await transaction.fetch(_SECRETS, key_ids):
                secrets[key_id].append(StoredSecret(digest, good_until_ms))
        return secrets

    async def _records(self, after: RecordKey) -> dict[RecordKey, LockRecord]:
        async with self._connections.transaction() as transaction:
            transaction.keep = False
            return await read_page(transaction, after, PAGE_ENTRIES_MAX)
