"""Projects, service keys, admin tokens and the audit as rows, for the two SQL stores: the same columns in one order."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple
from typing import Any, Final

from ..ports.admin_tokens import AdminToken
from ..ports.audit_entry import AuditEntry
from ..ports.registry import Credential, Page, Project, ServiceKey
from ..ports.snapshot import Entry, StoredAdminToken, StoredServiceKey
from .audit_rows import AUDIT_COLUMNS, audit_row
from .cursor import encode_cursor
from .damage import checked_admin_token, checked_project, checked_service_key, decoded, sorted_out

PROJECT_COLUMNS: Final = "id, name, requests_per_minute, created_at_ms"
KEY_COLUMNS: Final = "id, project_id, name, key_prefix, permissions, created_at_ms, expires_at_ms, last_used_at_ms"
_KEY_WIDTH: Final = KEY_COLUMNS.count(",") + 1
ADMIN_TOKEN_COLUMNS: Final = "id, name, token_prefix, created_at_ms, last_used_at_ms"  # noqa: S105 - names of columns
CREDENTIAL_COLUMNS: Final = ", ".join(
    f"{table}.{column}"
    for table, columns in (("service_key", KEY_COLUMNS), ("project", PROJECT_COLUMNS), ("secret", "good_until_ms"))
    for column in columns.split(", ")
)

Row = Sequence[Any]


def project_of(row: Row) -> Project:
    """The project in a row of PROJECT_COLUMNS. Raises DamagedRecordError."""
    return checked_project(Project(*row))


def service_key_of(row: Row) -> ServiceKey:
    """The service key in a row of KEY_COLUMNS; its permissions are one text, separated by spaces. Raises
    DamagedRecordError.
    """
    key_id, project_id, name, key_prefix, permissions, created_at_ms, expires_at_ms, last_used_at_ms = row
    granted = tuple(permissions.split())
    return checked_service_key(
        ServiceKey(key_id, project_id, name, key_prefix, granted, created_at_ms, expires_at_ms, last_used_at_ms)
    )


def admin_token_of(row: Row) -> AdminToken:
    """The admin token in a row of ADMIN_TOKEN_COLUMNS. Raises DamagedRecordError."""
    return checked_admin_token(AdminToken(*row))


def credential_of(rows: Sequence[Row]) -> Credential | None:
    """The credential in the first row of CREDENTIAL_COLUMNS, if there is one."""
    if not rows:
        return None
    *cells, good_until_ms = rows[0]
    return Credential.of(service_key_of(cells[:_KEY_WIDTH]), project_of(cells[_KEY_WIDTH:]), good_until_ms)


def page_of(kind: str, rows: Sequence[Row], limit: int, item_of: Callable[[Row], Any]) -> Page:
    """The page of items in `rows`, each a position and an item. One row more than `limit` shows that a page follows."""
    next_cursor = encode_cursor(kind, rows[limit - 1][0]) if len(rows) > limit else None
    items, damaged = sorted_out(decoded(rows[:limit], lambda row: item_of(row[1:])))
    return Page(items, next_cursor, damaged)


def entry_rows(entries: Iterable[Entry]) -> Iterator[tuple[str, str, tuple[str | int | bytes | None, ...]]]:
    """The rows of `entries` without the locks: table, columns and cells."""
    for entry in entries:
        match entry:
            case Project():
                yield "project", PROJECT_COLUMNS, astuple(entry)
            case StoredServiceKey(key, secrets):
                cells = (" ".join(cell) if isinstance(cell, tuple) else cell for cell in astuple(key))
                yield "service_key", KEY_COLUMNS, tuple(cells)
                for index, (digest, good_until_ms) in enumerate(secrets):
                    yield "secret", "digest, key_id, is_old, good_until_ms", (digest, key.id, index == 1, good_until_ms)
            case StoredAdminToken(token, digest):
                yield "admin_token", f"{ADMIN_TOKEN_COLUMNS}, digest", (*astuple(token), digest)
            case AuditEntry():
                yield "audit_entry", AUDIT_COLUMNS, audit_row(entry)
