"""One server a file: an OS lock beside it, and a watch that the file on disk is still ours.

The lock is on `<file>.lock`, not on the database: closing any descriptor of a file drops the locks SQLite has
on it. It is taken on the resolved path, so a symbolic link or another working directory names the same lock; a
file with a second hard link is refused, for nothing could protect it. The system drops the lock when the process
ends, however it ends, so the lock file stays behind and means nothing by itself.

What this cannot prevent: somebody deletes or replaces the files under a running server. `check` notices, and then
nothing is served any more.
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


class Claim:
    """The sole right to `path` (resolved), from `take` until `drop`."""

    def __init__(self, path: Path, lock_descriptor: int) -> None:
        self.path: Final = path
        self._lock_descriptor = lock_descriptor
        self._known: dict[Path, _Identity] = {}
        self._checked_at = 0.0

    @classmethod
    def take(cls, named: Path) -> Self:
        """Lock the file and create it where it is missing, mode 0600. StoreUnavailableError says what is in the way."""
        claim = cls.take_name(named)
        path = claim.path
        try:
            _create(path)
        except BaseException as error:
            claim.drop()
            if isinstance(error, OSError):
                raise file_fault(error, named) from error
            raise
        return claim

    @classmethod
    def take_name(cls, named: Path) -> Self:
        """Lock the name alone, whatever stands there or does not. StoreUnavailableError says what is in the way."""
        try:
            path = Path(os.path.realpath(named))
            if path.is_dir():
                raise IsADirectoryError(errno.EISDIR, "is a directory")
            return cls(path, _locked(path))
        except OSError as error:
            raise file_fault(error, named) from error

    def remember(self) -> None:
        """Take the files on disk as they are now for the true ones."""
        write_ahead_log = self.path.with_name(self.path.name + "-wal")
        self._known = {one: _identity(one.stat()) for one in (self.path, write_ahead_log)}
        self._known[_lock_path(self.path)] = _identity(os.fstat(self._lock_descriptor))

    def check(self, *, now: bool = False) -> None:
        """Raise StoreUnavailableError if a file was deleted or replaced; looks once a second, or `now`."""
        moment = time.monotonic()
        if not now and moment - self._checked_at < CHECK_SECONDS:
            return
        for path, identity in self._known.items():
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

    def drop(self) -> None:
        """Give the file free. Once."""
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
        with suppress(OSError):  # the number is a courtesy; a full disk must not keep the server from starting
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except BlockingIOError:
        owner = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip()
        os.close(descriptor)
        who = f"process {owner}" if owner.isdigit() else "another process"
        raise StoreUnavailableError(
            "file_in_use",
            f"{path} is in use by another server ({who}): stop that one, or give this one a file of its own",
        ) from None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _create(path: Path) -> None:
    """Make sure that `path` is a plain file that this user may read and write, and that its name is durable.

    An existing file is not opened here: closing it again would drop SQLite's own locks on it in this process.
    """
    try:
        found = path.stat()
    except FileNotFoundError:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        found = os.fstat(descriptor)
        os.close(descriptor)
        _sync_directory(path.parent)
    if not stat.S_ISREG(found.st_mode):
        raise StoreUnavailableError("not_a_file", f"cannot open {path}: it is not a plain file")
    if found.st_nlink > 1:
        raise StoreUnavailableError(
            "hard_linked", f"cannot open {path}: it has a second hard link, by which another server could open it"
        )
    if not os.access(path, os.R_OK | os.W_OK, effective_ids=os.access in os.supports_effective_ids):
        raise PermissionError(errno.EACCES, "permission denied", str(path))


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
