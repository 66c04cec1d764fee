"""Names and shows the records that a store cannot decode, for logs, `doctor` and copies (LEASE-18, CLI-31)."""

import re
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

from ..ports.admin_tokens import AdminToken
from ..ports.lock_store import RecordKey, lock_name
from ..ports.registry import Project, ServiceKey
from ..ports.snapshot import StoredLock
from ..rules.errors import DamagedRecordError, LockError, StoreUnavailableError
from ..rules.lease import Damaged, LockRecord, StoredRecord
from ..rules.record_check import INSTANT_MS_MAX, damage_of
from ..rules.values import REQUESTS_PER_MINUTE_DEFAULT, REQUESTS_PER_MINUTE_MAX, parse_name

STORED_LENGTH_MAX: Final = 500
PROJECT_KIND: Final = "project"
ADMIN_TOKEN_KIND: Final = "admin-token"  # noqa: S105 - a kind of records
R = TypeVar("R")
T = TypeVar("T")

# In hex, or the end of one in base64, as a queue state has them.
_DIGEST: Final = re.compile(r'[0-9a-fA-F]{16,}|(?<=")[0-9a-zA-Z+/]{11}=(?=")')


def damaged(record: LockRecord, names: Sequence[str], cells: Sequence[object]) -> Damaged:
    """What is wrong with a record that is not intact. It was made of these cells of a row, with these names."""
    return Damaged(damage_of(record) or "its parts have wrong types", shown_row(names, cells))


def shown_row(names: Sequence[str], cells: Sequence[object]) -> str:
    """A row for operators."""
    named = zip(names, cells, strict=True)
    return shown_stored(" ".join(f"{name}={_shown_cell(cell)}" for name, cell in named if cell is not None))


def shown_stored(stored: str | bytes) -> str:
    """What an engine returned, for operators: without digests, and cut to STORED_LENGTH_MAX characters."""
    if isinstance(stored, bytes):
        stored = stored.decode("ascii", "backslashreplace")
    return _DIGEST.sub("<digest>", stored)[:STORED_LENGTH_MAX]


def project_name(project_id: str) -> str:
    return f"{PROJECT_KIND}/{project_id}"


def service_key_name(key_id: str) -> str:
    return f"service-key/{key_id}"


def admin_token_name(token_id: str) -> str:
    return f"{ADMIN_TOKEN_KIND}/{token_id}"


def lock_entry(key: RecordKey, record: StoredRecord) -> StoredLock | DamagedRecordError:
    """The lock, or its damage, for those who read a whole store."""
    if isinstance(record, Damaged):
        return DamagedRecordError(lock_name(key), record.reason, record.stored)
    return StoredLock(key, record)


def decoded(rows: Iterable[R], decode: Callable[[R], T]) -> list[T | DamagedRecordError]:
    """The decoded rows; in place of those that are damaged, their damage."""
    entries: list[T | DamagedRecordError] = []
    for row in rows:
        try:
            entries.append(decode(row))
        except DamagedRecordError as error:
            entries.append(error)
    return entries


def intact_or_none(read: Callable[[], T]) -> T | None:
    """What `read` returns, None if it is damaged: a damaged entry can still be deleted."""
    try:
        return read()
    except DamagedRecordError:
        return None


def sorted_out(entries: Iterable[T | DamagedRecordError]) -> tuple[list[T], list[DamagedRecordError]]:
    """The intact entries, and the damage of the others."""
    items: list[T] = []
    damaged: list[DamagedRecordError] = []
    for entry in entries:
        if isinstance(entry, DamagedRecordError):
            damaged.append(entry)
        else:
            items.append(entry)
    return items, damaged


async def intact_pages(pages: AsyncIterator[Sequence[T | DamagedRecordError]]) -> AsyncIterator[Sequence[T]]:
    """The pages, for a copy, which must be complete: StoreUnavailableError at the first damaged record."""
    async for page in pages:
        items, damaged = sorted_out(page)
        for error in damaged:
            raise StoreUnavailableError(
                "record_damaged",
                f"{error.record} is damaged ({error.reason}): repair it with volcano-locks doctor --repair "
                f"{error.record}, then copy again",
            )
        yield items


async def damage_in(pages: AsyncIterator[Sequence[object]]) -> AsyncIterator[DamagedRecordError]:
    """The damaged records in the pages."""
    async for page in pages:
        for entry in page:
            if isinstance(entry, DamagedRecordError):
                yield entry


def checked_project(project: Project) -> Project:
    """The project, whose fields may have any type. Raises DamagedRecordError."""
    reason = None
    if not (_is_text(project.id) and _is_text(project.name)):
        reason = "its id or name is not text"
    elif type(project.requests_per_minute) is not int or project.requests_per_minute < 0:
        reason = "requests_per_minute is not a number of requests"
    elif not _is_instant(project.created_at_ms):
        reason = "created_at_ms is not an instant"
    if reason is not None:
        raise DamagedRecordError(project_name(_text(project.id)), reason, shown_stored(str(project)))
    return project


def checked_service_key(key: ServiceKey) -> ServiceKey:
    """The service key, whose fields may have any type. Raises DamagedRecordError."""
    reason = None
    if not all(map(_is_text, (key.id, key.project_id, key.name, key.key_prefix, *key.permissions))):
        reason = "its ids, name or permissions are not text"
    elif not all(map(_is_instant, (key.created_at_ms, key.expires_at_ms or 0, key.last_used_at_ms or 0))):
        reason = "one of its instants is not an instant"
    if reason is not None:
        raise DamagedRecordError(service_key_name(_text(key.id)), reason, shown_stored(str(key)))
    return key


def checked_admin_token(token: AdminToken) -> AdminToken:
    """The admin token, whose fields may have any type. Raises DamagedRecordError."""
    reason = None
    if not all(map(_is_text, (token.id, token.name, token.token_prefix))):
        reason = "its id, name or prefix is not text"
    elif not all(map(_is_instant, (token.created_at_ms, token.last_used_at_ms or 0))):
        reason = "one of its instants is not an instant"
    if reason is not None:
        raise DamagedRecordError(admin_token_name(_text(token.id)), reason, shown_stored(str(token)))
    return token


def repaired_project(project_id: str, name: Any, limit: object, created_at_ms: object, now_ms: int) -> Project:
    """The project with defaults for what cannot be read."""
    return Project(
        project_id,
        name if _is_name(name) else f"repaired-{project_id[:8]}",
        limit if type(limit) is int and 0 <= limit <= REQUESTS_PER_MINUTE_MAX else REQUESTS_PER_MINUTE_DEFAULT,
        created_at_ms if type(created_at_ms) is int and _is_instant(created_at_ms) else now_ms,
    )


def _text(value: object) -> str:
    """An id for a message, also if it is no text."""
    return value if isinstance(value, str) else ascii(value)


def _shown_cell(cell: object) -> str:
    return f"<{len(cell)} bytes>" if isinstance(cell, bytes) else repr(cell)


def _is_name(value: object) -> bool:
    try:
        parse_name(value)
    except LockError:
        return False
    return True


def _is_text(value: object) -> bool:
    return type(value) is str


def _is_instant(value: object) -> bool:
    return type(value) is int and 0 <= value <= INSTANT_MS_MAX
