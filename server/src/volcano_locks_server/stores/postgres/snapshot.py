"""Reads and writes the whole database, page by page (see `volcano_locks_server.ports.snapshot`).

A load is one transaction under locks that exclude every other writer, so it takes effect as a whole or not at all.
Reading uses one transaction for each page; the service is stopped meanwhile.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Final

from ...ports.audit_entry import AuditEntry
from ...ports.lock_store import RecordKey
from ...ports.snapshot import (
    PAGE_ENTRIES_MAX,
    Entry,
    StoredAdminToken,
    StoredLock,
    StoredSecret,
    StoredServiceKey,
    store_not_empty,
)
from ...rules.clock_history import NO_HISTORY, ClockHistory
from ...rules.errors import DamagedRecordError
from ...rules.lease import StoredRecord
from ...rules.values import LockKey
from ..audit_rows import AUDIT_COLUMNS, audit_entry
from ..damage import damage_in, decoded, intact_pages, lock_entry, sorted_out
from ..readiness import PROBE_PROJECT
from ..registry_rows import (
    ADMIN_TOKEN_COLUMNS,
    KEY_COLUMNS,
    PROJECT_COLUMNS,
    Row,
    admin_token_of,
    project_of,
    service_key_of,
)
from .clock import DatabaseClock, write_clock
from .clock_repair import clock_damage
from .connections import ConnectionPool
from .registry import insert_entries
from .rows import WRITTEN_AT, read_page, write_records

LOAD_SECONDS_MAX: Final = 3_600.0
LOAD_STATEMENT_SECONDS_MAX: Final = 30.0

_LOCK_TABLES: Final = (
    "LOCK TABLE volcano_locks.project, volcano_locks.service_key, volcano_locks.secret, "
    "volcano_locks.admin_token, volcano_locks.audit_entry, volcano_locks.lock IN EXCLUSIVE MODE"
)
_HAS_ENTRIES: Final = (
    "SELECT EXISTS (SELECT FROM volcano_locks.project) OR EXISTS (SELECT FROM volcano_locks.service_key) "
    "OR EXISTS (SELECT FROM volcano_locks.admin_token) OR EXISTS (SELECT FROM volcano_locks.audit_entry) "
    f"OR EXISTS (SELECT FROM volcano_locks.lock WHERE project_id <> '{PROBE_PROJECT}')"
)
_SECRETS: Final = (
    "SELECT key_id, digest, good_until_ms FROM volcano_locks.secret WHERE key_id = ANY ($1::text[]) "
    "ORDER BY key_id, is_old"
)


class PostgresSnapshot:
    """The Snapshot on `connections`. Made by `PostgresDatabase`."""

    def __init__(self, connections: ConnectionPool, clock: DatabaseClock) -> None:
        self._connections: Final = connections
        self._clock: Final = clock

    async def newest_ms(self) -> int:
        """The clock, or the newest instant in a record or in the database if that is later."""
        async with self._connections.transaction(statement_seconds=LOAD_STATEMENT_SECONDS_MAX) as transaction:
            reading = await self._clock.read(transaction)
            ((written_at_ms,),) = await transaction.fetch(WRITTEN_AT)
            transaction.keep = False
        return max(reading.database_ms, reading.newest_ms, int(written_at_ms))

    async def clock_history(self) -> ClockHistory:
        async with self._connections.transaction() as transaction:
            transaction.keep = False
            return (await self._clock.read(transaction)).history

    def pages(self) -> AsyncIterator[Sequence[Entry]]:
        return intact_pages(self._pages())

    async def damaged(self) -> AsyncIterator[DamagedRecordError]:
        """Also a damaged record of the clock."""
        async with self._connections.transaction() as transaction:
            transaction.keep = False
            of_clock = await clock_damage(transaction)
        if of_clock is not None:
            yield of_clock
        async for error in damage_in(self._pages()):
            yield error

    async def _pages(self) -> AsyncIterator[Sequence[Entry | DamagedRecordError]]:
        number = 0
        while rows := await self._rows("project", PROJECT_COLUMNS, number):
            yield [*decoded(rows, lambda row: project_of(row[1:]))]
            number = rows[-1][0]
        number = 0
        while rows := await self._rows("service_key", KEY_COLUMNS, number):
            keys, damaged = sorted_out(decoded(rows, lambda row: service_key_of(row[1:])))
            secrets = await self._secrets([key.id for key in keys])
            yield [*(StoredServiceKey(key, tuple(secrets[key.id])) for key in keys), *damaged]
            number = rows[-1][0]
        number = 0
        while rows := await self._rows("admin_token", f"{ADMIN_TOKEN_COLUMNS}, digest", number):
            yield decoded(rows, _stored_token)
            number = rows[-1][0]
        after_id = ""
        while audit := await self._audit(after_id):
            yield [*audit]
            after_id = audit[-1].id
        after = RecordKey("", LockKey(""))
        while records := await self._records(after):
            yield [lock_entry(key, record) for key, record in records.items()]
            after = list(records)[-1]

    async def load(
        self, pages: AsyncIterator[Sequence[Entry]], newest_ms: int, history: ClockHistory = NO_HISTORY
    ) -> None:
        async with self._connections.transaction(
            seconds=LOAD_SECONDS_MAX, statement_seconds=LOAD_STATEMENT_SECONDS_MAX
        ) as transaction:
            await transaction.fetch(_LOCK_TABLES)
            began_ms = (await self._clock.read(transaction)).database_ms
            mark = self._clock.mark(began_ms).later(max(0, newest_ms - began_ms))
            if (await transaction.fetch(_HAS_ENTRIES))[0][0]:
                raise store_not_empty()
            async for page in pages:
                await insert_entries(transaction, page)
                records = {entry.key: entry.record for entry in page if isinstance(entry, StoredLock)}
                await write_records(transaction, records, dict.fromkeys(records), mark)
            await write_clock(transaction, mark, history.after_jump(began_ms, began_ms - newest_ms))

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

    async def _audit(self, after_id: str) -> list[AuditEntry]:
        sql = f"SELECT {AUDIT_COLUMNS} FROM volcano_locks.audit_entry WHERE id > $1 ORDER BY id LIMIT $2"
        async with self._connections.transaction() as transaction:
            transaction.keep = False
            return [audit_entry(row) for row in await transaction.fetch(sql, after_id, PAGE_ENTRIES_MAX)]

    async def _records(self, after: RecordKey) -> dict[RecordKey, StoredRecord]:
        async with self._connections.transaction() as transaction:
            transaction.keep = False
            return await read_page(transaction, after, PAGE_ENTRIES_MAX)


def _stored_token(row: Row) -> StoredAdminToken:
    _number, *cells, digest = row
    return StoredAdminToken(admin_token_of(cells), digest)
