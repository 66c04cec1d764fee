"""Maps errors of SQLite and of the disk to the service's errors.

Each cause has its own `cause_code` for logs, metrics and `/readyz`. SQLite's text stays in the exception's `__cause__`,
because it may name paths and SQL, which no client should see.
"""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import apsw

from ...rules.errors import StoreUnavailableError

_FAULTS: Final[tuple[tuple[type[apsw.Error], str, str], ...]] = (
    (
        apsw.FullError,
        "disk_full",
        "the disk of the store is full: free some space; the service then recovers without a restart",
    ),
    (apsw.BusyError, "store_busy", "another program holds the store's file: close that program"),
    (apsw.LockedError, "store_busy", "another program holds the store's file: close that program"),
    (apsw.ReadOnlyError, "read_only", "the store's file cannot be written: check its permissions and its mount"),
    (apsw.PermissionsError, "no_permission", "this user may not open the store's file: check its owner"),
    (apsw.NotADBError, "not_a_database", "the store's file is not a SQLite database: name another file"),
    (apsw.CorruptError, "store_corrupt", "the store's file is damaged: stop the server and restore a backup"),
    (apsw.CantOpenError, "cannot_open", "the store's file cannot be opened: check its path and permissions"),
    (apsw.IOError, "disk_error", "the disk of the store reported an error: check the disk and its mount"),
    (apsw.NoMemError, "no_memory", "there is not enough memory for the store"),
)

_NO_PERMISSION: Final = "this user cannot read and write it: check the owner of the file and its directory"


def store_fault(error: apsw.Error) -> StoreUnavailableError:
    """The error for callers, with `error` as its cause."""
    previous = ((cause_code, message) for kind, cause_code, message in _FAULTS if isinstance(error, kind))
    fault = StoreUnavailableError(*next(previous, ("store_error", "the store failed; the log says why")))
    fault.__cause__ = error
    return fault


@contextmanager
def store_errors(prefix: str = "") -> Iterator[None]:
    """Inside the block, errors of SQLite become StoreUnavailableError, whose messages begin with `prefix`."""
    try:
        yield
    except apsw.Error as error:
        fault = store_fault(error)
        raise StoreUnavailableError(fault.cause_code, prefix + fault.message) from error
    except StoreUnavailableError as error:
        raise StoreUnavailableError(error.cause_code, prefix + error.message) from error


def file_fault(error: OSError, path: Path) -> StoreUnavailableError:
    """The error for what the system reports about a file. At the start the message may name the path."""
    code, advice = {
        errno.ENOENT: ("no_directory", "its directory does not exist: create it first"),
        errno.ENOTDIR: ("no_directory", "a part of its path is not a directory"),
        errno.EISDIR: ("not_a_file", "it is a directory: name a file in it"),
        errno.EACCES: ("no_permission", _NO_PERMISSION),
        errno.EPERM: ("no_permission", _NO_PERMISSION),
        errno.EROFS: ("read_only", "its disk is mounted read-only"),
        errno.ENOSPC: ("disk_full", "its disk is full: free some space"),
        errno.EDQUOT: ("disk_full", "its disk quota is used up: free some space"),
        errno.ELOOP: ("not_a_file", "it is a symbolic link where none is allowed, or a loop of links"),
    }.get(error.errno or 0, ("disk_error", error.strerror or "the system gives no reason"))
    fault = StoreUnavailableError(code, f"cannot open {error.filename or path}: {advice}")
    fault.__cause__ = error
    return fault
