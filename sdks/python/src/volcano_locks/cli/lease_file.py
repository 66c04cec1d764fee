"""A lease kept outside of a program: a record with the owner token, in a file for its owner's eyes (CLI-10).

The file is written beside its place and renamed, so that a reader finds the old lease or the new one, never
half of one. The room for it is made before the lock is acquired: a lease nobody could keep would only be in
everybody's way.
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


def record_of(lease: Lease) -> dict[str, str | int]:
    """The lease as JSON, the owner token included, with the wire's form of dates."""
    return lease.to_record() | {"expires_at": instant_json(lease.expires_at)}


def read_lease(source: Path) -> Lease:
    """The lease in the file, or on stdin for `-`; Stop 64 when there is none."""
    where = "stdin" if source == STDIN else str(source)
    try:
        text = sys.stdin.read(_RECORD_BYTES_MAX) if source == STDIN else source.read_text(encoding="utf-8")
        record = json.loads(text)
        return Lease.from_record(record if isinstance(record, dict) else {})
    except OSError as error:
        raise exit_codes.Stop(f"cannot read the lease in {where}: {error.strerror}", exit_codes.USAGE) from None
    except json.JSONDecodeError:
        raise exit_codes.Stop(f"no lease in {where}: it is not JSON", exit_codes.USAGE) from None
    except (TypeError, ValueError) as error:
        raise exit_codes.Stop(f"no lease in {where}: {error}", exit_codes.USAGE) from None


def has_lapsed(lease: Lease, now: datetime) -> bool:
    """Whether somebody else may have the lock by then, so that the lease's owner token is of no use any more."""
    return now >= lease.expires_at + GRACE


class LeaseFile:
    """Room for a lease of `key` at `path`, as a context manager; `keep` fills it. Left without, nothing changed.

    The lease of another lock is not overwritten while it may live, nor is what is no lease (CLI-10). Whether an
    older lease of `key` itself lives, the server has judged before `keep`.
    """

    def __init__(self, path: Path, key: str) -> None:
        self._path = path
        self._key = key
        self._draft: Path | None = None

    def __enter__(self) -> Self:
        self._look()
        try:
            descriptor, name = tempfile.mkstemp(prefix=f".{self._path.name}.", dir=self._path.parent)
        except OSError as error:
            reason = f"cannot write {self._path}: {error.strerror}; nothing was acquired"
            raise exit_codes.Stop(reason, exit_codes.INPUT_OUTPUT) from None
        os.close(descriptor)
        self._draft = Path(name)
        return self

    def keep(self, lease: Lease) -> None:
        """Put `lease` there, readable by its owner alone; OSError when the disk does not take it, Stop 64 when
        something came there that must stay."""
        assert self._draft is not None
        self._look()
        self._draft.write_text(json.dumps(record_of(lease)) + "\n", encoding="utf-8")
        self._draft.replace(self._path)
        self._draft = None

    def _look(self) -> None:
        """Stop 64 when what is there must stay."""
        if not self._path.exists():
            return
        if not self._path.is_file():
            raise exit_codes.Stop(f"{self._path} is no ordinary file: name another file", exit_codes.USAGE)
        if self._path.stat().st_size == 0:
            return
        try:
            kept = read_lease(self._path)
        except exit_codes.Stop as stop:
            raise exit_codes.Stop(
                f"{stop.message}\nIt is not overwritten: name another file", exit_codes.USAGE
            ) from None
        if kept.key != self._key and not has_lapsed(kept, datetime.now(UTC)):
            raise exit_codes.Stop(
                f"{self._path} keeps the lease of {kept.key} until {instant_text(kept.expires_at)}\n"
                f"Release it (volcano-locks release --lease-file {self._path}) or name another file",
                exit_codes.USAGE,
            )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._draft is not None:
            with contextlib.suppress(OSError):
                self._draft.unlink()
