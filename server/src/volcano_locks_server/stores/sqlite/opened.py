"""Opens a SQLite file for a command that works on it while no server does."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw

from .connection import closed_after, open_connection
from .faults import store_errors
from .file_lock import FileLock


@contextmanager
def opened_file(path: Path) -> Iterator[apsw.Connection]:
    """A connection, with the file's lock. Raises StoreUnavailableError, also for errors of SQLite in the block."""
    file_lock = FileLock.acquire(path)
    try:
        with store_errors(), closed_after(open_connection(file_lock.path, opened=file_lock.note_opened)) as connection:
            yield connection
    finally:
        file_lock.release()
