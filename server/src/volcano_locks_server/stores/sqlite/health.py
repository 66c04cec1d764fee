"""Examining a SQLite store and bringing its schema on.

What a running server has open cannot be read by anybody else, and need not be: the file's header tells the schema,
the lock beside it who has it. A file that nobody has is opened as a server would open it, if its schema is this
release's, so that no record changes; a server that starts in that moment is refused.
"""

import fcntl
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from ...ports.clock import Clock
from ...rules.errors import StoreUnavailableError
from ..health_findings import Finding, latency
from ..health_findings import schema as schema_finding
from .connection import APPLICATION_ID, migrations
from .store import SqliteFile

MAGIC: Final = b"SQLite format 3\0"
_HEADER_BYTES: Final = 100
_VERSION_AT: Final = 60
_APPLICATION_AT: Final = 68


async def migrate(path: Path, clock: Clock) -> tuple[int, int]:
    """The schema's version before and after; makes a file that is not there. Raises StoreUnavailableError."""
    before = _version(path)
    await (await SqliteFile.open(path, clock)).close()
    return before or 0, migrations()[-1][0]


async def examine(path: Path, clock: Clock) -> Sequence[Finding]:
    """All that can be told of the file without disturbing whoever has it."""
    findings, may_be_opened = _from_outside(path)
    return [*findings, *(await _opened(path, clock))] if may_be_opened else findings


def _from_outside(path: Path) -> tuple[Sequence[Finding], bool]:
    """What is found without opening the store, and whether it can be opened."""
    if not path.exists():
        return [_missing(path)], False
    try:
        findings = [Finding("file", f"{path.resolve()} is there"), *_permissions(path), _schema(path)]
        owner = _owner(path)
    except OSError as error:
        advice = "run this as the user that serve runs as"
        return [Finding("file", f"{path} cannot be read: {error.strerror}", advice)], False
    if owner is not None:
        in_use = f"{owner} has the file: what only it can tell is at its /readyz and /metrics"
        return [*findings, Finding("server", in_use)], False
    findings.append(Finding("server", "no server has the file open"))
    return findings, all(finding.good for finding in findings if finding.about in ("access", "schema"))


def _missing(path: Path) -> Finding:
    folder = path.resolve().parent
    if not folder.is_dir():
        return Finding("file", f"there is no folder {folder}", "make it, owned by the user that serve runs as")
    if not os.access(folder, os.W_OK | os.X_OK):
        return Finding("file", f"this user may not make files in {folder}", f"chown {folder} to the user of serve")
    return Finding(
        "file", f"there is no file {path.resolve()}", "run volcano-locks migrate, or serve, or check --store"
    )


def _permissions(path: Path) -> Iterator[Finding]:
    """Who may read and write what: access is ours, permissions are what others have."""
    true_path = path.resolve()
    named = (*(true_path.with_name(true_path.name + end) for end in ("", "-wal", ".lock")), _token_path(path))
    files = [one for one in named if one.exists()]
    barred = [one for one in files if not os.access(one, os.R_OK | os.W_OK)]
    if barred or not os.access(true_path.parent, os.W_OK | os.X_OK):
        told = ", ".join(str(one) for one in barred) or str(true_path.parent)
        owner = path.stat().st_uid
        advice = f"run this and serve as user {owner}, or chown the files and their folder"
        yield Finding("access", f"this user may not read and write {told}", advice)
    else:
        yield Finding("access", "this user may read and write the files and their folder")
    open_to_others = [one for one in files if stat.S_IMODE(one.stat().st_mode) & 0o077]
    if open_to_others:
        told = " ".join(str(one) for one in open_to_others)
        yield Finding("permissions", f"others may open {told}", f"chmod 600 {told}")
    else:
        yield Finding("permissions", "the files are their owner's alone")


def _token_path(path: Path) -> Path:
    return path.with_name(path.name + ".admin-token")


def _schema(path: Path) -> Finding:
    version, newest = _version(path), migrations()[-1][0]
    if version is None:
        return Finding("schema", "the file is not a store of volcano-locks", "name another file with --store")
    if version > newest:
        return Finding("schema", f"version {version}, this release knows up to {newest}", "use a newer release")
    return schema_finding(version, newest)


def _version(path: Path) -> int | None:
    """The schema's version from the file's header, 0 for none or an empty file, None for a file that is not ours."""
    try:
        with path.open("rb") as file:
            header = file.read(_HEADER_BYTES)
    except FileNotFoundError:
        return 0
    if not header:
        return 0
    if not header.startswith(MAGIC) or _number(header, _APPLICATION_AT) != APPLICATION_ID:
        return None
    return _number(header, _VERSION_AT)


def _number(header: bytes, at: int) -> int:
    return int.from_bytes(header[at : at + 4], "big")


def _owner(path: Path) -> str | None:
    """Who has the file, None if nobody."""
    lock_path = path.resolve().with_name(path.resolve().name + ".lock")
    if not lock_path.exists():
        return None
    with lock_path.open("rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            number = lock.read(20).strip().decode("ascii", "replace")
            return f"a running server (process {number})" if number.isdigit() else "a running server"
    return None


async def _opened(path: Path, clock: Clock) -> Sequence[Finding]:
    """What opening it as a server would, and writing to it, tells."""
    try:
        file = await SqliteFile.open(path, clock)
    except StoreUnavailableError as error:
        about = "clock" if error.cause_code == "clock_behind" else "opens"
        return [Finding(about, error.message, "do that: a server would not start either")]
    try:
        slow = "the disk is slow to sync: put the file on a faster local one, and on none that a network serves"
        return [
            Finding("opens", "a server could open the file"),
            await latency(file.locks.ready, slow, tries=1),  # a second one right after would write nothing
            Finding("clock", "this machine's clock is not behind the newest instant in the file"),
        ]
    except StoreUnavailableError as error:
        return [Finding("writes", error.message, "nothing can be written: free the disk or mend it")]
    finally:
        await file.close()
