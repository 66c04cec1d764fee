"""Ensures that one server uses a file: an OS lock beside the file, and a check that the file on disk is still the same.

The lock is on `<file>.lock`, not on the database, because closing any descriptor of a file drops SQLite's locks on it.
It is taken on the resolved path, so symbolic links and other working directories lead to the same lock. A file with a
second hard link is refused, because the lock cannot cover its other name. So is a file that is a mount point by itself:
its log would lie outside the mount, where the next start does not find it. The system drops the lock when the process
ends, so the lock file may stay behind; only the lock on it counts.

The lock cannot prevent another program from deleting, replacing or overwriting the files. `check_files` detects this by
their inodes, and by the sizes and times of the database and its log, which only jobs on the store's one thread change.
It also detects a link in the file's path that was set to another place, where the next start would open another file.
The store then refuses to serve (OPS-11). A log beside a database that it does not belong to would spoil it, so a marker
file prevents every later start until a restore has replaced both.

The lock file also notes that the database is being served, and the number of the last commit. A start that finds the
note, but no log and an older number in the database, is refused too: the server was killed, and the log with its last
commits was deleted or not copied along. If another program merged the log, the database has that number.
"""

import errno
import fcntl
import os
import re
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from ...rules.errors import StoreUnavailableError
from .commits import PROCESS_ID_BYTES, ServedNote
from .faults import file_fault

CHECK_SECONDS: Final = 1.0
MOUNT_TABLE: Final = Path("/proc/self/mountinfo")
_MOUNT_POINT_FIELD: Final = 4
_Identity = tuple[int, int]
_Content = tuple[int, int]  # size, and time of the last write


REPLACED: Final = (
    "another program replaced, moved, deleted or wrote over it, or set a link in its path to another file, while a "
    "server served it. Nothing is acknowledged from then on. If the same file is put back, the server goes on; else "
    "stop it and run volcano-locks restore with a backup, which keeps these files aside and waits for leases that the "
    "backup lacks"
)

LOG_LOST: Final = (
    "the server was killed, and the write-ahead log beside the file is gone, with the leases that were granted last. "
    "Put the log back, or run volcano-locks restore with a copy of this file or a backup, which waits for those leases"
)


class FileLock:
    """The exclusive right to `path` (resolved), from `acquire` until `release`."""

    def __init__(self, named: Path, path: Path, lock_descriptor: int) -> None:
        self.path: Final = path
        self._log: Final = path.with_name(path.name + "-wal")
        self._log_name: Final = str(self._log)  # each job looks at it, and a Path costs more than the look
        self._named: Final = named.absolute()
        self._lock_descriptor = lock_descriptor
        self.served: Final = ServedNote(lock_descriptor)
        is_without_log = path.exists() and not self._log.exists()
        self._has_lost_log = self.served.was_served and is_without_log and not self.served.is_complete(path)
        self._identities: dict[Path, _Identity] = {}
        self._content: _Content = (0, 0)
        self._log_content: _Content | None = None
        self._is_log_intact = True
        self._markers: set[Path] = set()
        self._checked_at = 0.0

    @classmethod
    def acquire(cls, named: Path) -> Self:
        """Lock the file, and create it with mode 0600 if it is missing. StoreUnavailableError says what prevents it."""
        file_lock = cls.acquire_path(named)
        path = file_lock.path
        try:
            file_lock.refuse_replaced()
            file_lock.refuse_lost_log()
            _create(path)
        except BaseException as error:
            file_lock.release()
            if isinstance(error, OSError):
                raise file_fault(error, named) from error
            raise
        return file_lock

    @classmethod
    def acquire_path(cls, named: Path) -> Self:
        """Lock the path alone, whether or not a file exists there. StoreUnavailableError says what prevents it."""
        try:
            path = Path(os.path.realpath(named))
            if path.is_dir():
                raise IsADirectoryError(errno.EISDIR, "is a directory")
            refuse_mount_point(path)
            return cls(named, path, _locked(path))
        except OSError as error:
            raise file_fault(error, named) from error

    def refuse_replaced(self) -> None:
        """Raise StoreUnavailableError if a server found that the file was replaced while it served it (OPS-11)."""
        marker = marker_path(self.path)
        if marker.exists():
            message = f"cannot open {self.path}: {REPLACED}. If you put the same file back, delete {marker}"
            raise StoreUnavailableError("file_replaced", message)

    def refuse_lost_log(self) -> None:
        """Raise StoreUnavailableError if the log of a killed server is gone."""
        if self._has_lost_log:
            raise StoreUnavailableError("log_lost", f"cannot open {self.path}: {LOG_LOST}")

    def remember_files(self) -> None:
        """Remember the identity of the files that are on disk now, and the content of the database."""
        self._identities = {one: _identity(one.stat()) for one in (self.path, self._log)}
        self._identities[_lock_path(self.path)] = _identity(os.fstat(self._lock_descriptor))
        self.remember_content()
        self._log_content = self._content_of_log()
        sync(self.path.parent)  # before the note, the log's name must be durable

    def note_opened(self) -> None:
        """No other program can open the database any longer. What is in its log will be merged."""
        if (log := self._content_of_log()) is not None and log[0]:
            self.served.need_log()
        else:
            self.note_not_served()

    def note_not_served(self) -> None:
        """From now on the database may be without a log: it is merged, or was replaced with the database."""
        self._has_lost_log = False
        self.served.clear()

    def remember_content(self) -> None:
        """This process has just written the database; every other change of it is another program's."""
        self._content = _content(self.path.stat())

    def watch_log(self, job: Callable[[], object]) -> object:
        """Run a job on the store's thread. Only a job may write the log, so a change since the last one is another
        program's: `check_files` then raises."""
        self._is_log_intact = self._content_of_log() == self._log_content
        try:
            return job()
        finally:
            if self._is_log_intact:
                self._log_content = self._content_of_log()

    def check_files(self, *, now: bool = False) -> None:
        """Raise StoreUnavailableError if a file was deleted, replaced or overwritten by another program (OPS-11), or if
        this user may no longer look at them.

        Checks once a second, or at once if `now` or if the log was overwritten. The files count as intact again when
        they are back in place.
        """
        moment = time.monotonic()
        if not now and self._is_log_intact and moment - self._checked_at < CHECK_SECONDS:
            return
        self._checked_at = 0.0
        try:
            changed = self._changed()
        except PermissionError as error:
            raise file_fault(error, self.path) from error
        if changed is not None:
            if changed == self._named:
                self._mark(Path(os.path.realpath(self._named)))
            elif changed != _lock_path(self.path):
                self._mark(self.path)
            raise StoreUnavailableError("file_replaced", f"{changed}: {REPLACED}")
        for marker in self._markers:
            marker.unlink(missing_ok=True)
        self._markers.clear()
        self._checked_at = moment

    @property
    def is_marked(self) -> bool:
        """Whether the database or its log is not the one that was opened."""
        return marker_path(self.path) in self._markers

    def _changed(self) -> Path | None:
        """The first file that is not as it was, the database before its lock; or the name, if it leads elsewhere now.

        Raises PermissionError if this user may not look.
        """
        for path, identity in self._identities.items():
            if not _is_same(path, identity):
                return path
        if _content(self.path.stat()) != self._content:
            return self.path
        if not self._is_log_intact:
            return self._log
        return None if Path(os.path.realpath(self._named)) == self.path else self._named

    def _content_of_log(self) -> _Content | None:
        try:
            return _content(os.stat(self._log_name))  # noqa: PTH116 - see above
        except OSError:
            return None

    def _mark(self, path: Path) -> None:
        """Prevent later starts of `path`. If the disk refuses the marker, this process still serves nothing."""
        marker = marker_path(path)
        if marker not in self._markers:
            with suppress(OSError):
                marker.touch(0o600)
                sync(path.parent)
            self._markers.add(marker)

    def release(self) -> None:
        """Release the lock, once."""
        if self._lock_descriptor >= 0:
            if not (self._has_lost_log or self.is_marked or self._log.exists()):
                self.note_not_served()
            os.close(self._lock_descriptor)
            self._lock_descriptor = -1


def _lock_path(path: Path) -> Path:
    return path.with_name(path.name + ".lock")


def marker_path(path: Path) -> Path:
    """The file that says that `path` or its log was replaced while it was served."""
    return path.with_name(path.name + ".replaced-while-served")


def _is_same(path: Path, identity: _Identity) -> bool:
    try:
        return _identity(path.stat()) == identity
    except PermissionError:
        raise
    except OSError:
        return False


def _content(found: os.stat_result) -> _Content:
    return found.st_size, found.st_mtime_ns


def refuse_mount_point(path: Path) -> None:
    """Raise StoreUnavailableError if the file alone is mounted there. Without a mount table nothing is known."""
    try:
        table = MOUNT_TABLE.read_bytes()
    except OSError:
        return
    name = os.fsencode(path)
    if any(_unescaped(line.split(b" ")[_MOUNT_POINT_FIELD]) == name for line in table.splitlines()):
        raise StoreUnavailableError(
            "mounted_alone",
            f"cannot open {path}: it is a mount point by itself, so its log beside it is not on that mount, and leases "
            "are lost when the container or the mount goes: mount the folder instead "
            "(-v ./locks:/data and --store sqlite:////data/locks.db)",
        )


def _unescaped(mount_point: bytes) -> bytes:
    """The path in a mount table, which writes blanks and backslashes as three octal digits."""
    return re.sub(rb"\\([0-7]{3})", lambda found: bytes([int(found[1], 8)]), mount_point)


def _identity(found: os.stat_result) -> _Identity:
    return found.st_dev, found.st_ino


def _locked(path: Path) -> int:
    """A descriptor that holds the OS lock of `path`. Raises OSError, or StoreUnavailableError if it is taken."""
    lock_path = _lock_path(path)
    descriptor = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with suppress(OSError):  # a full disk must not prevent the start
            os.pwrite(descriptor, f"{os.getpid()}\n".encode().ljust(PROCESS_ID_BYTES), 0)
    except BlockingIOError:
        process_id = os.pread(descriptor, PROCESS_ID_BYTES, 0).decode("ascii", "replace").strip()
        os.close(descriptor)
        owner = f"process {process_id}" if process_id.isdigit() else "another process"
        raise StoreUnavailableError(
            "file_in_use",
            f"{path} is in use by another server ({owner}): stop that server, or name another file for this one",
        ) from None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _create(path: Path) -> None:
    """Ensure that `path` is a regular file that this user may read and write, and that its name is durable.

    An existing file is not opened here: closing it again would drop SQLite's locks on it in this process.
    """
    try:
        found = path.stat()
    except FileNotFoundError:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        found = os.fstat(descriptor)
        os.close(descriptor)
        sync(path.parent)
    if not stat.S_ISREG(found.st_mode):
        raise StoreUnavailableError("not_a_file", f"cannot open {path}: it is not a regular file")
    if found.st_nlink > 1:
        raise StoreUnavailableError(
            "hard_linked", f"cannot open {path}: it has a second hard link, through which another server could open it"
        )
    if not os.access(path, os.R_OK | os.W_OK, effective_ids=os.access in os.supports_effective_ids):
        raise PermissionError(errno.EACCES, "permission denied", str(path))


def sync(path: Path) -> None:
    """Make the file, or the names in the directory, durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
