"""Reads and writes the whole file, page by page, on the writer thread (see `volcano_locks_server.ports.snapshot`).

A load is one transaction from the first page to the last, so a process that dies in between leaves an empty file. No
other write happens meanwhile: the file is locked and its service stopped.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Final

import apsw

from ...ports.lock_store import RecordKey
from ...ports.snapshot import PAGE_ENTRIES_MAX, Entry, StoredLock, StoredSecret, StoredServiceKey, store_not_empty
from ...rules.values import LockKey
from ..registry_rows import KEY_COLUMNS, PROJECT_COLUMNS, Row, entry_rows, project_of, service_key_of
from .connection import roll_back_if_open
from .locks import SqliteStore
from .registry import insert_row
from .rows import read_records, write_records
from .writer import WriterThread

IS_EMPTY: Final = (
    "SELECT NOT EXISTS (SELECT 1 FROM project) AND NOT EXISTS (SELECT 1 FROM service_key) "
    "AND NOT EXISTS (SELECT 1 FROM lock)"
)
PROJECTS: Final = f"SELECT number, {PROJECT_COLUMNS} FROM project WHERE number > ? ORDER BY number LIMIT ?"
KEYS: Final = f"SELECT number, {KEY_COLUMNS} FROM service_key WHERE number > ? ORDER BY number LIMIT ?"
# Leftovers of an interrupted project deletion are skipped.
LOCK_KEYS: Final = (
    "SELECT number, project_id, key FROM lock WHERE number > ? AND project_id IN (SELECT id FROM project) "
    "ORDER BY number LIMIT ?"
)

_Read = Callable[[int], tuple[int, list[Entry]]]


class SqliteSnapshot:
    """The Snapshot on the one connection. Made by `SqliteFile`."""

    def __init__(self, connection: apsw.Connection, writer: WriterThread, locks: SqliteStore) -> None:
        self._connection: Final = connection
        self._writer: Final = writer
        self._locks: Final = locks

    async def newest_ms(self) -> int:
        return self._locks.newest_ms

    async def pages(self) -> AsyncIterator[Sequence[Entry]]:
        reads: tuple[_Read, ...] = (self._projects, self._keys, self._held_and_free)
        for read in reads:
            after = 0
            while True:
                after, entries = await self._writer.run(partial(read, after))
                if not entries:
                    break
                yield entries

    async def load(self, pages: AsyncIterator[Sequence[Entry]], newest_ms: int) -> None:
        try:
            await self._writer.run(self._begin)
            async for page in pages:
                await self._writer.run(partial(self._write, page))
            await self._writer.run(partial(self._commit, newest_ms))
        finally:
            await self._writer.run(partial(roll_back_if_open, self._connection))
        self._locks.newest_ms = max(self._locks.newest_ms, newest_ms)

    def _begin(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        if not self._connection.execute(IS_EMPTY).get:
            raise store_not_empty()

    def _commit(self, newest_ms: int) -> None:
        self._connection.execute("UPDATE newest_instant SET now_ms = max(now_ms, ?)", (newest_ms,))
        self._connection.execute("COMMIT")

    def _projects(self, after: int) -> tuple[int, list[Entry]]:
        after, rows = self._rows(PROJECTS, after)
        return after, [project_of(row) for row in rows]

    def _keys(self, after: int) -> tuple[int, list[Entry]]:
        after, rows = self._rows(KEYS, after)
        keys = map(service_key_of, rows)
        return after, [StoredServiceKey(key, self._secrets(key.id)) for key in keys]

    def _secrets(self, key_id: str) -> tuple[StoredSecret, ...]:
        sql = "SELECT digest, good_until_ms FROM secret WHERE key_id = ? ORDER BY is_old"
        return tuple(StoredSecret(*row) for row in self._connection.execute(sql, (key_id,)))

    def _held_and_free(self, after: int) -> tuple[int, list[Entry]]:
        after, rows = self._rows(LOCK_KEYS, after)
        keys = [RecordKey(project_id, LockKey(key)) for project_id, key in rows]
        records = read_records(self._connection, keys) if keys else {}
        return after, [StoredLock(key, record) for key, record in records.items() if record is not None]

    def _rows(self, sql: str, after: int) -> tuple[int, list[Row]]:
        """Rows after that number, without their numbers, and the last number."""
        rows: list[Row] = list(self._connection.execute(sql, (after, PAGE_ENTRIES_MAX)))
        return (rows[-1][0] if rows else after), [row[1:] for row in rows]

    def _write(self, page: Sequence[Entry]) -> None:
        for row in entry_rows(page):
            insert_row(self._connection, *row)
        write_records(self._connection, (entry for entry in page if isinstance(entry, StoredLock)))
