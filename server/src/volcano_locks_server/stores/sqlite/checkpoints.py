"""Copies the log into the database after commits, and notices when that fails (OPS-9).

SQLite's own checkpoint after a commit drops its errors: if the database cannot be written but the log can, leases are
granted, the log grows without a limit, and the next start fails. So this module makes the checkpoints, in the hook that
SQLite calls after each commit on the writer thread. A failure does not fail the commit, which is durable in the log.
"""

from contextlib import suppress
from typing import Final

import apsw

from ...ports.clock import Clock
from ...rules.errors import StoreUnavailableError
from ..errors import format_instant
from .faults import store_fault
from .file_lock import FileLock

RETRY_MS: Final = 1_000
FAILING_MS_MAX: Final = 10_000


class Checkpoints:
    """The checkpoints of one connection, on its thread; other threads may read `failures`. Made by `SqliteFile`.

    A checkpoint follows the commit with which the log has as many pages as the connection's `wal_autocheckpoint`.
    """

    def __init__(self, connection: apsw.Connection, file_lock: FileLock, clock: Clock) -> None:
        self.failures = 0
        self._connection: Final = connection
        self._file_lock: Final = file_lock
        self._clock: Final = clock
        self._pages: Final = int(connection.execute("PRAGMA wal_autocheckpoint").get)
        self._failing_since_ms: int | None = None
        self._tried_at_ms = 0
        self._cause = ""
        connection.set_wal_hook(self._committed)  # in place of SQLite's own

    def refuse_failing(self, *, for_ms: int = 0) -> None:
        """Raise StoreUnavailableError if none has succeeded since one failed, at least `for_ms` ago."""
        if self._failing_since_ms is not None:
            self._run()
        since_ms = self._failing_since_ms
        if since_ms is not None and self._clock.now_ms() - since_ms >= for_ms:
            raise StoreUnavailableError(
                "checkpoint_failing",
                f"no checkpoint of the write-ahead log has succeeded since {format_instant(since_ms)} ({self._cause}): "
                "locks are served, but the log grows without a limit and a restart may fail: check the store's disk",
            )

    def _committed(self, _connection: apsw.Connection, _database: str, pages: int) -> int:
        if pages >= self._pages:
            self._run()
        return apsw.SQLITE_OK

    def _run(self) -> None:
        """Checkpoint, unless one failed a moment ago or another program changed the files. Raises nothing."""
        now_ms = self._clock.now_ms()
        if self._failing_since_ms is not None and now_ms - self._tried_at_ms < RETRY_MS:
            return
        self._tried_at_ms = now_ms
        with suppress(StoreUnavailableError, OSError):
            self._file_lock.check_files(now=True)
            try:
                with self._file_lock.served.merging():
                    self._connection.wal_checkpoint()
                self._failing_since_ms = None
            except apsw.Error as error:
                self.failures += 1
                self._cause = store_fault(error).cause_code
                self._failing_since_ms = now_ms if self._failing_since_ms is None else self._failing_since_ms
            self._file_lock.remember_content()
