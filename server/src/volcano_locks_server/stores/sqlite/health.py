"""Checks the health of a SQLite store, and migrates its schema.

No other process can read a file that a server has open, and none needs to: the file's header holds the schema version,
and the lock beside it shows the server. A file that is not in use is opened as a server would open it, but only if its
schema is this release's, so that no record changes. A server that starts at that moment is refused.
"""

import fcntl
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from ...ports.clock import Clock
from ...rules.errors import StoreUnavailableError
from ..health_findings import HealthFinding, latency_finding, record_findings, schema_finding
from .connection import APPLICATION_ID, WAL_BYTES_KEPT_MAX, migrations
from .file_lock import marker_path, refuse_mount_point
from .store import SqliteFile

MAGIC: Final = b"SQLite format 3\0"
LOG_BYTES_MAX: Final = 4 * WAL_BYTES_KEPT_MAX
REPLACED_ADVICE: Final = (
    "stop the server and run volcano-locks restore with a backup; if you put the same file back, delete the file that "
    "ends in .replaced-while-served"
)
_HEADER_BYTES: Final = 100
_VERSION_AT: Final = 60
_APPLICATION_AT: Final = 68


async def migrate(path: Path, clock: Clock) -> tuple[int, int]:
    """The schema's version before and after; creates a missing file. Raises StoreUnavailableError."""
    before = _version(path)
    await (await SqliteFile.open(path, clock)).close()
    return before or 0, migrations()[-1][0]


async def check_health(path: Path, clock: Clock) -> Sequence[HealthFinding]:
    """All findings about the file that do not disturb a server that has it open."""
    findings, can_be_opened = _check_closed(path)
    return [*findings, *(await _check_open(path, clock))] if can_be_opened else findings


def _check_closed(path: Path) -> tuple[Sequence[HealthFinding], bool]:
    """The findings without opening the store, and whether it can be opened."""
    if not path.exists():
        return [_missing(path)], False
    try:
        findings = [_file(path), *_permissions(path), _schema(path), _log(path)]
        owner = _owner(path)
    except OSError as error:
        advice = "run this as the user that serve runs as"
        return [HealthFinding("file", f"{path} cannot be read: {error.strerror}", advice)], False
    if owner is not None:
        in_use = f"{owner} has the file open: see its /readyz and /metrics for the rest"
        return [*findings, HealthFinding("server", in_use)], False
    findings.append(HealthFinding("server", "no server has the file open"))
    return findings, all(finding.good for finding in findings if finding.about in ("file", "access", "schema"))


def _file(path: Path) -> HealthFinding:
    true_path = path.resolve()
    if marker_path(true_path).exists():
        return HealthFinding("file", f"a server found {true_path} replaced while it served it", REPLACED_ADVICE)
    try:
        refuse_mount_point(true_path)
    except StoreUnavailableError as error:
        return HealthFinding("file", error.message, "no server opens it")
    return HealthFinding("file", f"{true_path} is there")


def _log(path: Path) -> HealthFinding:
    """Whether the write-ahead log is as small as checkpoints keep it."""
    log = path.resolve().with_name(path.resolve().name + "-wal")
    size = log.stat().st_size if log.exists() else 0
    found = f"the write-ahead log has {size / 2**20:.1f} MiB"
    if size <= LOG_BYTES_MAX:
        return HealthFinding("log", found)
    advice = "checkpoints fail: check the disk of the store, its space, and the server's log for checkpoint_failing"
    return HealthFinding("log", found, advice)


def _missing(path: Path) -> HealthFinding:
    folder = path.resolve().parent
    if not folder.is_dir():
        return HealthFinding("file", f"there is no folder {folder}", "create it, owned by the user that serve runs as")
    if not os.access(folder, os.W_OK | os.X_OK):
        return HealthFinding(
            "file", f"this user cannot create files in {folder}", f"chown {folder} to the user of serve"
        )
    return HealthFinding(
        "file", f"there is no file {path.resolve()}", "run volcano-locks migrate, or serve, or check --store"
    )


def _permissions(path: Path) -> Iterator[HealthFinding]:
    """The findings about access (of this user) and permissions (of others)."""
    true_path = path.resolve()
    token = path.with_name(path.name + ".admin-token")
    named = (*(true_path.with_name(true_path.name + end) for end in ("", "-wal", ".lock")), token)
    files = [one for one in named if one.exists()]
    barred = [one for one in files if not os.access(one, os.R_OK | os.W_OK)]
    if barred or not os.access(true_path.parent, os.W_OK | os.X_OK):
        names = ", ".join(str(one) for one in barred) or str(true_path.parent)
        owner = path.stat().st_uid
        advice = f"run this and serve as user {owner}, or chown the files and their folder"
        yield HealthFinding("access", f"this user cannot read and write {names}", advice)
    else:
        yield HealthFinding("access", "this user can read and write the files and their folder")
    open_to_others = [one for one in files if stat.S_IMODE(one.stat().st_mode) & 0o077]
    if open_to_others:
        names = " ".join(str(one) for one in open_to_others)
        yield HealthFinding("permissions", f"other users can read {names}", f"chmod 600 {names}")
    else:
        yield HealthFinding("permissions", "only their owner can read the files")


def _schema(path: Path) -> HealthFinding:
    version, newest = _version(path), migrations()[-1][0]
    if version is None:
        return HealthFinding("schema", "the file is not a store of volcano-locks", "name another file with --store")
    if version > newest:
        return HealthFinding("schema", f"version {version}, this release knows up to {newest}", "use a newer release")
    return schema_finding(version, newest)


def _version(path: Path) -> int | None:
    """The schema's version in the file's header; 0 for a missing or empty file, None for a file that is not a store."""
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
    """The server that has the file open, None if there is none."""
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


async def _check_open(path: Path, clock: Clock) -> Sequence[HealthFinding]:
    """The findings of opening the file as a server would, and writing to it."""
    try:
        file = await SqliteFile.open(path, clock)
    except StoreUnavailableError as error:
        about = "clock" if error.cause_code == "clock_behind" else "opens"
        return [HealthFinding(about, error.message, "a server would not start either")]
    try:
        slow = "the disk is slow to sync: move the file to a faster local disk, not to a network disk"
        return [
            HealthFinding("opens", "a server could open the file"),
            await latency_finding(file.locks.ready, slow),
            *(await record_findings(file.snapshot.damaged())),
            HealthFinding("clock", "this machine's clock is not behind the newest instant in the file"),
        ]
    except StoreUnavailableError as error:
        return [HealthFinding("writes", error.message, "nothing can be written: free some space or repair the disk")]
    finally:
        await file.close()
