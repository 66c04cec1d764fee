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
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from volcano_locks.messages import Lease

from . import exits
from .output import instant_json

STDIN: Final = Path("-")
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
        raise exits.Stop(f"cannot read the lease in {where}: {error.strerror}", exits.USAGE) from None
    except json.JSONDecodeError:
        raise exits.Stop(f"no lease in {where}: it is not JSON", exits.USAGE) from None
    except (TypeError, ValueError) as error:
        raise exits.Stop(f"no lease in {where}: {error}", exits.USAGE) from None


class LeaseFile:
    """Room for a lease at `path`, as a context manager; `keep` fills it. Left without `keep`, nothing changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._draft: Path | None = None

    def __enter__(self) -> Self:
        try:
            descriptor, name = tempfile.mkstemp(prefix=f".{self._path.name}.", dir=self._path.parent)
        except OSError as error:
            reason = f"cannot write {self._path}: {error.strerror}; nothing was acquired"
            raise exits.Stop(reason, exits.INPUT_OUTPUT) from None
        os.close(descriptor)
        self._draft = Path(name)
        return self

    def keep(self, lease: Lease) -> None:
        """Put `lease` there, readable by its owner alone; OSError when the disk does not take it."""
        assert self._draft is not None
        self._draft.write_text(json.dumps(record_of(lease)) + "\n", encoding="utf-8")
        self._draft.replace(self._path)
        self._draft = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._draft is not None:
            with contextlib.suppress(OSError):
                self._draft.unlink()
