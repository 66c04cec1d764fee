"""What the ports on a SQLite file share: reads and writes of rows on the one connection, on its writer thread."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final, TypeVar

import apsw

from ...ports.audit_entry import AuditEntry
from ..audit_rows import AUDIT_COLUMNS, audit_row
from ..registry_rows import Row
from .commits import run_counted
from .file_lock import FileLock
from .writer import WriterThread

Cells = Sequence[str | int | bytes | None]

_TEXT: Final = frozenset({"id", "project_id", "name", "key_prefix", "permissions", "token_prefix"})

T = TypeVar("T")


class SqliteTables:
    """The base of the ports on the one connection. They are made by `SqliteFile`."""

    def __init__(self, connection: apsw.Connection, writer: WriterThread, file_lock: FileLock) -> None:
        self._connection: Final = connection
        self._writer: Final = writer
        self._file_lock: Final = file_lock

    async def _read(self, work: Callable[[], T]) -> T:
        def checked() -> T:
            self._file_lock.check_files()
            return work()

        return await self._writer.run(checked)

    async def _write(self, work: Callable[[], T]) -> T:
        return await self._read(lambda: run_counted(self._connection, self._file_lock.served, work))

    async def _touch(self, table: str, last_used_at_ms: Mapping[str, int]) -> None:
        """Store when the table's entries (by id) were last used; never an earlier instant."""
        sql = f"UPDATE {table} SET last_used_at_ms = max(coalesce(last_used_at_ms, 0), ?) WHERE id = ?"
        touched = [(at_ms, entry_id) for entry_id, at_ms in last_used_at_ms.items()]
        if touched:
            await self._write(lambda: self._connection.executemany(sql, touched).fetchall())

    def _record(self, entry: AuditEntry | None) -> None:
        """Add the entry of the audit, if there is one. Call in the transaction of what it is about."""
        if entry is not None:
            insert_audit(self._connection, entry)

    def _rows(self, sql: str, cells: Cells = ()) -> list[Row]:
        return read_rows(self._connection, sql, cells)


def as_bytes(columns: str) -> str:
    """The columns with text as bytes: apsw fails for a whole query if one text is not UTF-8 (LEASE-18)."""
    return ", ".join(
        f"CAST({column} AS BLOB)" if column.rpartition(".")[2] in _TEXT else column for column in columns.split(", ")
    )


def read_rows(connection: apsw.Connection, sql: str, cells: Cells) -> list[Row]:
    """The rows; text that was selected as bytes becomes text again, or stays bytes if it is none."""
    return [tuple(map(_text_if_any, row)) for row in connection.execute(sql, cells)]


def insert_row(connection: apsw.Connection, table: str, columns: str, cells: Cells) -> None:
    connection.execute(f"INSERT INTO {table} ({columns}) VALUES ({','.join('?' * len(cells))})", cells)


def insert_audit(connection: apsw.Connection, entry: AuditEntry) -> None:
    """Add an entry of the audit. Call in the transaction of what it is about."""
    insert_row(connection, "audit_entry", AUDIT_COLUMNS, audit_row(entry))


def _text_if_any(cell: object) -> object:
    if isinstance(cell, bytes):
        with suppress(UnicodeDecodeError):
            return cell.decode()
    return cell
