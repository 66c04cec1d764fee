"""Entries of the audit as rows, for the two SQL stores. `before` and `after` are JSON."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ..ports.audit_entry import AuditEntry

AUDIT_COLUMNS: Final = (
    "id, at_ms, action, actor_kind, actor_id, actor_name, address, project_id, target_kind, target_id, target_name, "
    "before, after, reason, request_id"
)
_BEFORE, _AFTER = 11, 12


def audit_row(entry: AuditEntry) -> tuple[str | int | None, ...]:
    """The row of AUDIT_COLUMNS."""
    cells: list[Any] = list(msgspec.structs.astuple(entry))
    for place in (_BEFORE, _AFTER):
        cells[place] = None if cells[place] is None else msgspec.json.encode(cells[place]).decode()
    return tuple(cells)


def audit_entry(row: Sequence[Any]) -> AuditEntry:
    """The entry in a row of AUDIT_COLUMNS. What another program spoilt is shown as it can be."""
    cells = list(row)
    for place in (_BEFORE, _AFTER):
        cells[place] = None if cells[place] is None else _decoded(cells[place])
    return AuditEntry(*cells)


def _decoded(text: Any) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.MsgspecError, TypeError, UnicodeDecodeError):
        return {"damaged": True}
