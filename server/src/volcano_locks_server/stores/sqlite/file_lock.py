"""Ensures that one server uses a file: an OS lock beside the file, and a check that the file on disk is still the same.

The lock is on `<file>.lock`, not on the database, because closing any descriptor of a file drops SQLite's locks on it.
It is taken on the resolved path, so symbolic links and other working directories lead to the same lock. A file with a
second hard link is refused, because the lock cannot cover its other name. The system drops the lock when the process
ends, so the lock file may stay behind; only the lock on it counts.

The lock cannot prevent another program from deleting or replacing the files. `check_files` detects this, and the store
then refuses to serve.
"""

import errno
import fcntl
import os
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from ...rules.errors import StoreUnavailableError
from .faults import file_fault

CHECK_SECONDS: Final = 1.0
_Identity = tuple[int, int]


class FileLock:
    """The exclusive right to `path` (resolved), from `acquire` until `release`."""

    def __init__(self, path: Path, lock_descriptor: int) -> None:
        self.path: Final = path
        self._lock_descriptor = lock_descriptor
        self._identities: dict[Path, _Identity] = {}
        self._checked_at = 0.0

    @classmethod
    def acquire(cls, named: Path) -> Self:
        """Lock the file, and create it with mode 0600 if it is missing. StoreUnavailableError says what prevents it."""
        file_lock = cls.acquire_path(named)
        path = file_lock.path
        try:
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
            return cls(path, _locked(path))
        except OSError as error:
            raise file_fault(error, named) from error

    def remember_files(self) -> None:
        """Remember the identity of the files that are on disk now."""
        write_ahead_log = self.path.with_name(self.path.name + "-wal")
        self._identities = {one: _identity(one.stat()) for one in (self.path, write_ahead_log)}
        self._identities[_lock_path(self.path)] = _identity(os.fstat(self._lock_descriptor))

    def check_files(self, *, now: bool = False) -> None:
        """Raise StoreUnavailableError if a file was deleted or replaced; checks once a second, or at once if `now`."""
        moment = time.monotonic()
        if not now and moment - self._checked_at < CHECK_SECONDS:
            return
        for path, identity in self._identities.items():
            try:
                intact = _identity(path.stat()) == identity
            except OSError:
                intact = False
            if not intact:
                self._checked_at = 0.0
                raise StoreUnavailableError(
                    "file_replaced", "a file of the store was deleted or replaced under the running server: restart it"
                )
        self._checked_at = moment

    def release(self) -> None:
        """Release the lock, once."""
        if self._lock_descriptor >= 0:
            os.close(self._lock_descriptor)
            self._lock_descriptor = -1


def _lock_path(path: Path) -> Path:
    return path.with_name(path.name + ".lock")


def _identity(found: os.stat_result) -> _Identity:
    return found.st_dev, found.st_ino


def _locked(path: Path) -> int:
    """A descriptor that holds the OS lock of `path`. Raises OSError, or StoreUnavailableError if it is taken."""
    lock_path = _lock_path(path)
    descriptor = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with suppress(OSError):  # the process id is for messages only; a full disk must not prevent the start
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except BlockingIOError:
        process_id = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip()
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
