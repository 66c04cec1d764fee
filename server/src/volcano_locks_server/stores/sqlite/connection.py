"""The one connection: its settings, its migrations, and its transactions.

WAL with `synchronous=FULL`: COMMIT returns after the fsync of the log. `locking_mode=EXCLUSIVE`: no other program can
read the file, so no reader delays a checkpoint, the log stays small, and its index is in memory. At the start the log
that a crash left is checkpointed: its end may be only in the system's cache, and must be durable before the server acts
on it.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Final, TypeVar

import apsw

from ...rules.errors import StoreUnavailableError

APPLICATION_ID: Final = 0x564C434B  # "VLCK", marks a file as a database of this store
BUSY_TIMEOUT_MS: Final = 2_000
CACHE_BYTES: Final = 32 * 1024 * 1024
WAL_CHECKPOINT_PAGES: Final = 1_000
WAL_BYTES_KEPT_MAX: Final = 16 * 1024 * 1024

T = TypeVar("T")


def open_connection(path: Path, vfs: str = "", *, opened: Callable[[], None] = lambda: None) -> apsw.Connection:
    """Connect to an existing file, migrate it, and checkpoint what a crash left.

    Calls `opened` when no other program can open the file any longer, before the file or its log is changed. Raises
    apsw.Error, and StoreUnavailableError for a file of another program or of a newer version, which stays unchanged.
    """
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_NOMUTEX | apsw.SQLITE_OPEN_EXRESCODE
    connection = apsw.Connection(str(path), flags=flags, vfs=vfs or None)
    try:
        connection.set_busy_timeout(BUSY_TIMEOUT_MS)
        connection.execute("PRAGMA locking_mode = EXCLUSIVE").fetchall()
        version = schema_version(connection)
        opened()
        _set_up(connection)
        _migrate(connection, version)
        with suppress(apsw.FullError):  # SQLite syncs the log first, and only that is needed
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    except BaseException:
        connection.close(True)
        raise
    return connection


@contextmanager
def closed_after(connection: apsw.Connection) -> Iterator[apsw.Connection]:
    """Closes the connection after the block, whatever is still open on it."""
    try:
        yield connection
    finally:
        connection.close(True)


def run_in_transaction(connection: apsw.Connection, work: Callable[[], T]) -> T:
    """Run `work` between BEGIN IMMEDIATE and COMMIT; roll everything back on any error."""
    roll_back_if_open(connection)
    connection.execute("BEGIN IMMEDIATE")
    try:
        result = work()
        connection.execute("COMMIT")
    except BaseException:
        roll_back_if_open(connection)
        raise
    return result


def roll_back_if_open(connection: apsw.Connection) -> None:
    """Roll back an open transaction. After some errors SQLite has already ended the transaction."""
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def migrations() -> list[tuple[int, str]]:
    """The numbered scripts of `migrations/`, each with the schema version it leads to, in order."""
    scripts = []
    for script in files(__package__).joinpath("migrations").iterdir():
        match = re.fullmatch(r"(\d{4})_\w+\.sql", script.name)
        if match:
            scripts.append((int(match[1]), script.read_text("utf-8")))
    return sorted(scripts)


def _set_up(connection: apsw.Connection) -> None:
    if connection.execute("PRAGMA journal_mode = WAL").get != "wal":
        raise StoreUnavailableError("no_wal", "the store's file cannot use a write-ahead log: move it to a local disk")
    for setting in (
        "synchronous = FULL",
        "fullfsync = ON",
        "checkpoint_fullfsync = ON",
        "foreign_keys = ON",
        "trusted_schema = OFF",
        "cell_size_check = ON",
        "temp_store = MEMORY",  # else a many-row upsert writes its statement journal to a temporary file
        f"wal_autocheckpoint = {WAL_CHECKPOINT_PAGES}",
        f"journal_size_limit = {WAL_BYTES_KEPT_MAX}",
    ):
        connection.execute(f"PRAGMA {setting}").fetchall()
    set_cache_size(connection, CACHE_BYTES)


def set_cache_size(connection: apsw.Connection, size_bytes: int) -> None:
    """Limit the memory for the file's pages."""
    connection.execute(f"PRAGMA cache_size = -{size_bytes // 1024}").fetchall()


def schema_version(connection: apsw.Connection) -> int:
    """The file's schema version, 0 for an empty file. StoreUnavailableError if this release must not change it."""
    if connection.execute("SELECT count(*) FROM sqlite_schema").get == 0:
        return 0
    if connection.execute("PRAGMA application_id").get != APPLICATION_ID:
        raise StoreUnavailableError(
            "foreign_file", "the store's file is a SQLite database of another program: name another file"
        )
    version = int(connection.execute("PRAGMA user_version").get)
    newest = migrations()[-1][0]
    if version > newest:
        raise StoreUnavailableError(
            "newer_version",
            f"the store's file has schema version {version}, this release knows up to {newest}: use a newer release",
        )
    return version


def _migrate(connection: apsw.Connection, version: int) -> None:
    for number, script in migrations():
        if number > version:
            pragmas = f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {number};"
            run_in_transaction(connection, partial(connection.execute, script + pragmas))
