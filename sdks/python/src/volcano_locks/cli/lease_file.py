"""Stores a lease between commands: a JSON record with the owner token, in a file that only its owner can read (CLI-10).

The record is written to a temporary file and renamed, so a reader finds the old lease or the new one, never a part.
The temporary file is created before the lock is acquired: a lease that cannot be stored could not be released.
"""

import contextlib
import json
import os
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from volcano_locks.protocol.lease import Lease

from . import exit_codes
from .output import instant_json, instant_text

STDIN: Final = Path("-")
GRACE: Final = timedelta(seconds=1)
_RECORD_BYTES_MAX: Final = 4096


def lease_record(lease: Lease) -> dict[str, str | int]:
    """The lease as JSON, with the owner token, and with dates as in the HTTP API."""
    return lease.to_record() | {"expires_at": instant_json(lease.expires_at)}


def read_lease(source: Path) -> Lease:
    """The lease in the file, or on stdin for `-`. Exit 64 if there is none."""
    where = "stdin" if source == STDIN else str(source)
    try:
        stdin = sys.stdin.read(_RECORD_BYTES_MAX) if source == STDIN and sys.stdin is not None else ""
        text = stdin if source == STDIN else source.read_text(encoding="utf-8")
        record = json.loads(text)
        return Lease.from_record(record if isinstance(record, dict) else {})
    except OSError as error:
        raise exit_codes.Exit(f"cannot read the lease in {where}: {error.strerror}", exit_codes.USAGE) from None
    except json.JSONDecodeError:
        raise exit_codes.Exit(f"{where} does not contain a lease: it is not JSON", exit_codes.USAGE) from None
    except (TypeError, ValueError) as error:
        raise exit_codes.Exit(f"{where} does not contain a lease: {error}", exit_codes.USAGE) from None


def can_be_taken_over(lease: Lease, now: datetime) -> bool:
    """Whether the lease and its grace have ended by `now`, so that its owner token is useless."""
    return now >= lease.expires_at + GRACE


class LeaseFile:
    """Reserves `path` for a lease of `key` while entered; `write` stores it. Without `write` nothing changes.

    A file that does not contain a lease is never overwritten, nor is another lock's lease that may still be alive
    (CLI-10). An older lease of `key` itself may be overwritten: the server has granted a new one by then.
    """

    def __init__(self, path: Path, key: str) -> None:
        self._path = path
        self._key = key
        self._temporary: Path | None = None

    def __enter__(self) -> Self:
        self._refuse_to_overwrite()
        try:
            descriptor, name = tempfile.mkstemp(prefix=f".{self._path.name}.", dir=self._path.parent)
        except OSError as error:
            reason = f"cannot write {self._path}: {error.strerror}; nothing was acquired"
            raise exit_codes.Exit(reason, exit_codes.INPUT_OUTPUT) from None
        os.close(descriptor)
        self._temporary = Path(name)
        return self

    def write(self, lease: Lease) -> None:
        """Stores `lease`, readable by its owner alone. OSError if the disk fails, Exit 64 if another process has
        written a file there that must stay."""
        assert self._temporary is not None
        self._refuse_to_overwrite()
        self._temporary.write_text(json.dumps(lease_record(lease)) + "\n", encoding="utf-8")
        self._temporary.replace(self._path)
        self._temporary = None

    def _refuse_to_overwrite(self) -> None:
        """Exit 64 if the existing file must stay."""
        if not self._path.exists():
            return
        if not self._path.is_file():
            raise exit_codes.Exit(f"{self._path} is not a regular file: name another file", exit_codes.USAGE)
        if self._path.stat().st_size == 0:
            return
        try:
            existing = read_lease(self._path)
        except exit_codes.Exit as stop:
            raise exit_codes.Exit(
                f"{stop.message}\nThe file was not overwritten: name another file", exit_codes.USAGE
            ) from None
        if existing.key != self._key and not can_be_taken_over(existing, datetime.now(UTC)):
            raise exit_codes.Exit(
                f"{self._path} contains the lease of {existing.key} until {instant_text(existing.expires_at)}\n"
                f"Release it (volcano-locks release --lease-file {self._path}) or name another file",
                exit_codes.USAGE,
            )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._temporary is not None:
            with contextlib.suppress(OSError):
                self._temporary.unlink()
