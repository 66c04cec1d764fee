"""Projects and service keys as rows, for the two SQL stores: the same columns in the same order."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple
from typing import Any, Final

from ..ports.registry import Credential, Page, Project, ServiceKey
from ..ports.snapshot import Entry, StoredServiceKey
from .cursor import encode_cursor

PROJECT_COLUMNS: Final = "id, name, requests_per_minute, created_at_ms"
KEY_COLUMNS: Final = "id, project_id, name, key_prefix, permissions, created_at_ms, expires_at_ms, last_used_at_ms"
_KEY_WIDTH: Final = KEY_COLUMNS.count(",") + 1
CREDENTIAL_COLUMNS: Final = ", ".join(
    f"{table}.{column}"
    for table, columns in (("service_key", KEY_COLUMNS), ("project", PROJECT_COLUMNS), ("secret", "good_until_ms"))
    for column in columns.split(", ")
)

Row = Sequence[Any]


def project_of(row: Row) -> Project:
    """The project in a row of PROJECT_COLUMNS."""
    return Project(*row)


def service_key_of(row: Row) -> ServiceKey:
    """The service key in a row of KEY_COLUMNS; its permissions are one text, separated by spaces."""
    key_id, project_id, name, key_prefix, permissions, created_at_ms, expires_at_ms, last_used_at_ms = row
    granted = tuple(permissions.split())
    return ServiceKey(key_id, project_id, name, key_prefix, granted, created_at_ms, expires_at_ms, last_used_at_ms)


def credential_of(rows: Sequence[Row]) -> Credential | None:
    """The credential in the first row of CREDENTIAL_COLUMNS, if there is one."""
    if not rows:
        return None
    *cells, good_until_ms = rows[0]
    return Credential.of(service_key_of(cells[:_KEY_WIDTH]), project_of(cells[_KEY_WIDTH:]), good_until_ms)


def page_of(kind: str, rows: Sequence[Row], limit: int, item_of: Callable[[Row], Any]) -> Page:
    """The page of items in `rows`, each a position and an item. One row more than `limit` shows that a page follows."""
    next_cursor = encode_cursor(kind, rows[limit - 1][0]) if len(rows) > limit else None
    return Page([item_of(row[1:]) for row in rows[:limit]], next_cursor)


def entry_rows(entries: Iterable[Entry]) -> Iterator[tuple[str, str, tuple[str | int | bytes | None, ...]]]:
    """The rows of the projects and service keys among `entries`: table, columns and cells."""
    for entry in entries:
        match entry:
            case Project():
                yield "project", PROJECT_COLUMNS, astuple(entry)
            case StoredServiceKey(key, secrets):
                cells = (" ".join(cell) if isinstance(cell, tuple) else cell for cell in astuple(key))
                yield "service_key", KEY_COLUMNS, tuple(cells)
                for index, (digest, good_until_ms) in enumerate(secrets):
                    yield "secret", "digest, key_id, is_old, good_until_ms", (digest, key.id, index == 1, good_until_ms)
