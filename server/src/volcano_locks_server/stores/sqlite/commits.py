"""Numbers the commits of a server, so that a start without a log knows whether the database has them all (OPS-11).

The number of the last commit is in the database: each transaction that changes anything raises it. After the commit it
is also noted in the lock file. If the server is killed and its log is gone, the database has the noted number if
another program merged the log, and an older one if the log was deleted.

A checkpoint writes the database page by page. Meanwhile, and after one that failed, the number in the database proves
nothing, so none is noted until a checkpoint succeeds.
The note is not synced: it survives a kill. A power loss may leave an older number; if the log is lost after that, a
start may not notice it.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import quote

import apsw

from .connection import closed_after, run_in_transaction

PROCESS_ID_BYTES: Final = 20  # the lock file begins with it, the note follows
_SERVED: Final = b"served\n"
_NUMBER_BYTES: Final = 20
_READ: Final = "SELECT commits FROM newest_instant"
_COUNT: Final = "UPDATE newest_instant SET commits = ? WHERE one = 1"

T = TypeVar("T")


class ServedNote:
    """The note in an open lock file that a server has the database open. If the disk refuses it, the server goes on."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: Final = descriptor
        found = os.pread(descriptor, len(_SERVED) + _NUMBER_BYTES, PROCESS_ID_BYTES)
        number = found[len(_SERVED) :].strip()
        self._killed_after: Final = int(number) if number.isdigit() else None
        self.was_served: Final = found.startswith(_SERVED)
        """Whether the last server that had the database open did not close it."""
        self.commits = 0
        """The number of the last commit."""
        self._needs_log = False

    def is_complete(self, path: Path) -> bool:
        """Whether the database alone is known to have all commits of the server that was killed."""
        stored = _commits_without_log(path)
        return stored is not None and self._killed_after is not None and stored >= self._killed_after

    def begin(self, connection: apsw.Connection) -> None:
        """From now on the database is served. Raises apsw.Error."""
        self.commits = _read_commits(connection) or 0
        with suppress(apsw.Error), self.merging():  # the one at the opening may have failed
            connection.wal_checkpoint()

    def count_commit(self, connection: apsw.Connection) -> None:
        """Write the next number into the database. Call as the last step of a transaction, and then `committed`."""
        connection.execute(_COUNT, (self.commits + 1,))

    def committed(self) -> None:
        """The transaction is durable."""
        self.commits += 1
        if not self._needs_log:
            self._write(self.commits)

    @contextmanager
    def merging(self) -> Iterator[None]:
        """In the block a checkpoint writes the database, which needs its log until a checkpoint has succeeded."""
        self.need_log()
        yield
        self._needs_log = False
        self._write(self.commits)

    def need_log(self) -> None:
        """From now on the database must not be opened without its log."""
        self._needs_log = True
        self._write(None)

    def clear(self) -> None:
        """From now on the database is complete without a log."""
        with suppress(OSError):
            os.ftruncate(self._descriptor, PROCESS_ID_BYTES)

    def _write(self, commits: int | None) -> None:
        number = b"" if commits is None else b"%d" % commits
        with suppress(OSError):
            os.pwrite(self._descriptor, _SERVED + number.rjust(_NUMBER_BYTES), PROCESS_ID_BYTES)


def run_counted(connection: apsw.Connection, served: ServedNote, work: Callable[[], T]) -> T:
    """Run `work` as `run_in_transaction` does, and count the commit. If nothing was changed, the commit stays empty."""
    before = connection.total_changes()

    def counted() -> T:
        result = work()
        if connection.total_changes() != before:
            served.count_commit(connection)
        return result

    result = run_in_transaction(connection, counted)
    if connection.total_changes() != before:
        served.committed()
    return result


def _read_commits(connection: apsw.Connection) -> int | None:
    """The number of the last commit; None in a database whose clock is damaged."""
    found = connection.execute(_READ).get
    return found if type(found) is int else None


def _commits_without_log(path: Path) -> int | None:
    """The number in the database alone, None if it has none or cannot be read. Writes and creates nothing."""
    if not path.is_file():
        return None
    name = f"file://{quote(os.fsencode(path))}?immutable=1"
    try:
        flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
        with closed_after(apsw.Connection(name, flags=flags)) as connection:
            return _read_commits(connection)
    except apsw.Error:
        return None
