"""Projects and service keys as rows, for the two SQL stores: the same columns in the same order."""

from collections.abc import Sequence
from typing import Any

from ..ports.registry import Project, ServiceKey
from .cursor import encode_cursor


def project_of(row: Sequence[Any]) -> Project:
    """The project in a row of id, name, requests_per_minute and created_at_ms."""
    return Project(*row)


def service_key_of(row: Sequence[Any]) -> ServiceKey:
    """The service key in a row of `key_cells`."""
    key_id, project_id, name, key_prefix, permissions, created_at_ms, expires_at_ms, last_used_at_ms = row
    granted = tuple(permissions.split())
    return ServiceKey(key_id, project_id, name, key_prefix, granted, created_at_ms, expires_at_ms, last_used_at_ms)


def key_cells(key: ServiceKey) -> tuple[str | int | None, ...]:
    """The cells of a service key; its permissions are one text, separated by spaces."""
    return (
        key.id,
        key.project_id,
        key.name,
        key.key_prefix,
        " ".join(key.permissions),
        key.created_at_ms,
        key.expires_at_ms,
        key.last_used_at_ms,
    )


def next_cursor(kind: str, rows: Sequence[Sequence[Any]], limit: int) -> str | None:
    """The cursor of the page after these rows; None on the last page.

    Each row begins with its position in the list. `rows` has `limit + 1` rows if there is another page.
    """
    return encode_cursor(kind, rows[limit - 1][0]) if len(rows) > limit else None
