"""Reads and writes the whole file, page by page, on the writer thread (see `volcano_locks_server.ports.snapshot`).

A load is one transaction from the first page to the last, so a process that dies in between leaves an empty file. No
other write happens meanwhile: the file is locked and its service stopped.

Locks may come in any order, each in its own page of the index of keys. So a load has a cache of LOAD_CACHE_BYTES,
because a changed page that leaves the cache is written to the log each time. It sorts SORTED_LOCKS_MAX locks at a time
by their keys, so that neighbours are written together.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Final

import apsw

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
from ...rules.values import LockKey
from ..audit_rows import AUDIT_COLUMNS, audit_entry
from ..damage import damage_in, decoded, intact_pages, lock_entry
from ..readiness import PROBE_PROJECT
from ..registry_rows import Row, admin_token_of, entry_rows, project_of, service_key_of
from .admin_tokens import ADMIN_TOKEN_CELLS
from .commits import ServedNote
from .connection import CACHE_BYTES, roll_back_if_open, set_cache_size
from .locks import SqliteStore
from .registry import KEY_CELLS, PROJECT_CELLS
from .rows import read_records, write_records
from .tables import insert_row, read_rows
from .writer import WriterThread

LOAD_CACHE_BYTES: Final = 128 * 1024 * 1024
SORTED_LOCKS_MAX: Final = 50_000  # about 40 MB

IS_EMPTY: Final = (
    "SELECT NOT EXISTS (SELECT 1 FROM project) AND NOT EXISTS (SELECT 1 FROM service_key) "
    "AND NOT EXISTS (SELECT 1 FROM admin_token) AND NOT EXISTS (SELECT 1 FROM audit_entry) "
    f"AND NOT EXISTS (SELECT 1 FROM lock WHERE project_id <> '{PROBE_PROJECT}')"
)
PROJECTS: Final = f"SELECT number, {PROJECT_CELLS} FROM project WHERE number > ? ORDER BY number LIMIT ?"
KEYS: Final = f"SELECT number, {KEY_CELLS} FROM service_key WHERE number > ? ORDER BY number LIMIT ?"
TOKENS: Final = (
    f"SELECT number, {ADMIN_TOKEN_CELLS}, hex(digest) FROM admin_token WHERE number > ? ORDER BY number LIMIT ?"
)
AUDIT: Final = f"SELECT {AUDIT_COLUMNS} FROM audit_entry WHERE id > ? ORDER BY id LIMIT ?"
# Leftovers of an interrupted project deletion are skipped.
LOCK_KEYS: Final = (
    "SELECT number, project_id, key FROM lock WHERE number > ? AND project_id IN (SELECT id FROM project) "
    "ORDER BY number LIMIT ?"
)

_Page = list[Entry | DamagedRecordError]
_Read = Callable[[int], tuple[int, _Page]]


class SqliteSnapshot:
    """The Snapshot on the one connection. Made by `SqliteFile`."""

    def __init__(
        self, connection: apsw.Connection, writer: WriterThread, served: ServedNote, locks: SqliteStore
    ) -> None:
        self._connection: Final = connection
        self._writer: Final = writer
        self._served: Final = served
        self._locks: Final = locks

    async def newest_ms(self) -> int:
        return max(self._locks.clock.newest_ms, self._locks.clock.unchecked_ms())

    async def clock_history(self) -> ClockHistory:
        return self._locks.clock.history

    def pages(self) -> AsyncIterator[Sequence[Entry]]:
        return intact_pages(self._pages())

    def damaged(self) -> AsyncIterator[DamagedRecordError]:
        return damage_in(self._pages())

    async def _pages(self) -> AsyncIterator[_Page]:
        registry: tuple[_Read, ...] = (self._projects, self._keys, self._tokens)
        for read in registry:
            async for page in self._read_all(read):
                yield page
        after_id = ""
        while audit := await self._writer.run(partial(self._audit, after_id)):
            yield [*audit]
            after_id = audit[-1].id
        async for page in self._read_all(self._held_and_free):
            yield page

    async def _read_all(self, read: _Read) -> AsyncIterator[_Page]:
        after = 0
        while True:
            after, entries = await self._writer.run(partial(read, after))
            if not entries:
                return
            yield entries

    async def load(
        self, pages: AsyncIterator[Sequence[Entry]], newest_ms: int, history: ClockHistory = NO_HISTORY
    ) -> None:
        locks: list[StoredLock] = []
        try:
            await self._writer.run(self._begin)
            began_ms = self._locks.clock.unchecked_ms()
            async for page in pages:
                await self._writer.run(partial(self._write_registry, page))
                locks += [entry for entry in page if isinstance(entry, StoredLock)]
                if len(locks) >= SORTED_LOCKS_MAX:
                    await self._writer.run(partial(self._write_locks, locks))
                    locks = []
            await self._writer.run(partial(self._write_locks, locks))
            await self._writer.run(partial(self._commit, began_ms, newest_ms, history))
        finally:
            await self._writer.run(self._end)

    def _begin(self) -> None:
        set_cache_size(self._connection, LOAD_CACHE_BYTES)
        self._connection.execute("BEGIN IMMEDIATE")
        if not self._connection.execute(IS_EMPTY).get:
            raise store_not_empty()

    def _commit(self, began_ms: int, newest_ms: int, history: ClockHistory) -> None:
        self._locks.clock.continue_from(began_ms, newest_ms, history)
        self._served.count_commit(self._connection)
        self._connection.execute("COMMIT")
        self._served.committed()

    def _end(self) -> None:
        roll_back_if_open(self._connection)
        set_cache_size(self._connection, CACHE_BYTES)

    def _projects(self, after: int) -> tuple[int, _Page]:
        after, rows = self._rows(PROJECTS, after)
        return after, [*decoded(rows, project_of)]

    def _keys(self, after: int) -> tuple[int, _Page]:
        after, rows = self._rows(KEYS, after)
        return after, [*decoded(rows, self._stored_key)]

    def _stored_key(self, row: Row) -> StoredServiceKey:
        key = service_key_of(row)
        return StoredServiceKey(key, self._secrets(key.id))

    def _tokens(self, after: int) -> tuple[int, _Page]:
        after, rows = self._rows(TOKENS, after)
        return after, [*decoded(rows, _stored_token)]

    def _audit(self, after_id: str) -> list[AuditEntry]:
        rows = self._connection.execute(AUDIT, (after_id, PAGE_ENTRIES_MAX)).fetchall()
        return [audit_entry(row) for row in rows]

    def _secrets(self, key_id: str) -> tuple[StoredSecret, ...]:
        sql = "SELECT digest, good_until_ms FROM secret WHERE key_id = ? ORDER BY is_old"
        return tuple(StoredSecret(*row) for row in self._connection.execute(sql, (key_id,)))

    def _held_and_free(self, after: int) -> tuple[int, _Page]:
        after, rows = self._rows(LOCK_KEYS, after)
        keys = [RecordKey(project_id, LockKey(key)) for project_id, key in rows]
        records = read_records(self._connection, keys) if keys else {}
        return after, [lock_entry(key, record) for key, record in records.items() if record is not None]

    def _rows(self, sql: str, after: int) -> tuple[int, list[Row]]:
        """Rows after that number, without their numbers, and the last number."""
        rows = read_rows(self._connection, sql, (after, PAGE_ENTRIES_MAX))
        return (rows[-1][0] if rows else after), [row[1:] for row in rows]

    def _write_registry(self, page: Sequence[Entry]) -> None:
        for row in entry_rows(page):
            insert_row(self._connection, *row)

    def _write_locks(self, locks: Sequence[StoredLock]) -> None:
        write_records(self._connection, sorted(locks, key=attrgetter("key")))


def _stored_token(row: Row) -> StoredAdminToken:
    *cells, digest = row
    return StoredAdminToken(admin_token_of(cells), bytes.fromhex(digest))
