"""The audit over HTTP: `GET /audit`, and `GET /projects/{id}/audit` also for a key of that project (AUDIT-4)."""

import re
from collections.abc import Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from ..ports.audit import AuditLog, AuditQuery
from ..ports.audit_entry import AuditEntry
from ..rules.errors import LockError
from ..rules.values import PAGE_LIMIT_DEFAULT, PAGE_LIMIT_MAX, parse_limit, shown
from .admin_routes import known_id
from .auth import Principal
from .codec import instant, parse_instant_ms
from .responses import json_response
from .store_deadline import store_deadline

_CURSOR: Final = re.compile(r"audit\.([0-9]{15}-[0-9a-f]{16})", re.ASCII)


class AuditRoutes:
    """The endpoints of the audit. Each may raise LockError."""

    def __init__(self, audit: AuditLog) -> None:
        self._audit: Final = audit

    async def page(self, request: Request) -> Response:
        return await self._page(request, None)

    async def project_page(self, request: Request) -> Response:
        """Also of a project that was deleted. A service key sees its own project's entries alone."""
        project_id = known_id(request.path_params["project_id"], "project")
        actor = request.scope["volcano.actor"]
        if isinstance(actor, Principal) and actor.project_id != project_id:
            raise LockError("not_found", f"there is no project with the id {shown(project_id)}")
        return await self._page(request, project_id)

    async def _page(self, request: Request, project_id: str | None) -> Response:
        query = audit_query(request.query_params, project_id)
        async with store_deadline():
            found = await self._audit.page(query._replace(limit=query.limit + 1))
        entries = found[: query.limit]
        next_cursor = f"audit.{entries[-1].id}" if len(found) > query.limit else None
        return json_response({"items": [_item(entry) for entry in entries], "next_cursor": next_cursor})


def audit_query(parameters: Mapping[str, str], project_id: str | None = None) -> AuditQuery:
    """The query for a page, or LockError `invalid_request`."""
    begin, end, cursor = parameters.get("from"), parameters.get("to"), parameters.get("cursor")
    return AuditQuery(
        parse_limit(parameters.get("limit"), PAGE_LIMIT_DEFAULT, PAGE_LIMIT_MAX),
        project_id,
        0 if begin is None else max(0, parse_instant_ms(begin, "from")),
        None if end is None else max(0, parse_instant_ms(end, "to")),
        None if cursor is None else cursor_id(cursor),
    )


def cursor_id(cursor: str) -> str:
    """The id before which the page begins, or LockError `invalid_request` for an unknown cursor."""
    found = _CURSOR.fullmatch(cursor)
    if found is None:
        raise LockError(
            "invalid_request", f"cursor must be the next_cursor of an earlier page of this list; got {shown(cursor)}"
        )
    return found[1]


def _item(entry: AuditEntry) -> dict[str, object]:
    return {
        "id": entry.id,
        "at": instant(entry.at_ms),
        "action": entry.action,
        "actor": {"kind": entry.actor_kind, "id": entry.actor_id, "name": entry.actor_name},
        "address": entry.address,
        "project_id": entry.project_id,
        "target": {"kind": entry.target_kind, "id": entry.target_id, "name": entry.target_name},
        "before": _facts(entry.before),
        "after": _facts(entry.after),
        "reason": entry.reason,
        "request_id": entry.request_id,
    }


def _facts(facts: Mapping[str, Any] | None) -> dict[str, object] | None:
    """The facts, with instants as text."""
    if facts is None:
        return None
    return {
        name.removesuffix("_ms"): instant(value) if name.endswith("_ms") and type(value) is int else value
        for name, value in facts.items()
    }
