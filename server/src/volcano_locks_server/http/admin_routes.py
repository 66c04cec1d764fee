"""The admin API: projects and their service keys (ADMIN rules in spec/http.md).

A secret is generated here, returned once, and stored only as its digest. Every change of a project or a key empties
this node's credential cache, so that the change takes effect with the next request.
"""

import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from ..ports.audit_entry import Act
from ..ports.clock import Clock
from ..ports.registry import Listed, NewSecret, Page, Project, Registry, ServiceKey
from ..rules.errors import LockError
from ..rules.values import (
    KEEP_OLD_SECONDS_MAX,
    PAGE_LIMIT_DEFAULT,
    PAGE_LIMIT_MAX,
    REQUESTS_PER_MINUTE_DEFAULT,
    REQUESTS_PER_MINUTE_MAX,
    parse_limit,
    parse_name,
    parse_permissions,
    parse_whole_number,
    shown,
)
from ..telemetry import Log
from .acts import act_of
from .audit_log import log_error, made_by
from .auth import PREFIX_LENGTH, Authenticator, new_secret, secret_digest
from .codec import instant, json_object, parse_instant_ms, read_body
from .responses import json_response
from .store_deadline import store_deadline


class AdminRoutes:
    """The endpoints under `/projects`. Each may raise LockError."""

    def __init__(self, registry: Registry, authenticator: Authenticator, clock: Clock, log: Log) -> None:
        self._registry: Final = registry
        self._authenticator: Final = authenticator
        self._clock: Final = clock
        self._log: Final = log

    async def create_project(self, request: Request) -> Response:
        fields = json_object(await read_body(request.receive), ("name",))
        project = Project(
            str(uuid.uuid4()), parse_name(fields.get("name")), REQUESTS_PER_MINUTE_DEFAULT, self._clock.now_ms()
        )
        async with store_deadline():
            await self._registry.add_project(project, by=self._act(request))
        self._log_event("project_created", request, project_id=project.id, name=project.name)
        return json_response(entry_of(project), 201)

    async def projects(self, request: Request) -> Response:
        limit, cursor = page_position(request)
        async with store_deadline():
            return page_response(await self._registry.projects(limit=limit, cursor=cursor), request, self._log)

    async def project(self, request: Request) -> Response:
        async with store_deadline():
            return json_response(entry_of(await self._registry.project(_project_id(request))))

    async def change_project(self, request: Request) -> Response:
        project_id = _project_id(request)
        fields = json_object(await read_body(request.receive), ("name", "requests_per_minute"))
        if not fields:
            raise LockError("invalid_request", "the body must have name, requests_per_minute or both; got neither")
        name = parse_name(fields["name"]) if "name" in fields else None
        requests_per_minute = None
        if "requests_per_minute" in fields:
            asked = fields["requests_per_minute"]
            requests_per_minute = parse_whole_number(asked, "requests_per_minute", 0, REQUESTS_PER_MINUTE_MAX)
        async with self._effective_at_once(), store_deadline():
            project = await self._registry.change_project(
                project_id, name=name, requests_per_minute=requests_per_minute, by=self._act(request)
            )
        now = {"name": project.name, "requests_per_minute": project.requests_per_minute}
        self._log_event("project_changed", request, project_id=project.id, **now)
        return json_response(entry_of(project))

    async def delete_project(self, request: Request) -> Response:
        project_id = _project_id(request)
        async with self._effective_at_once():  # without a deadline: it deletes the project's locks too
            await self._registry.delete_project(project_id, by=self._act(request))
        self._log_event("project_deleted", request, project_id=project_id)
        return Response(status_code=204)

    async def create_service_key(self, request: Request) -> Response:
        project_id = _project_id(request)
        fields = json_object(await read_body(request.receive), ("name", "permissions", "expires_at"))
        now_ms = self._clock.now_ms()
        secret = new_secret()
        service_key = ServiceKey(
            id=str(uuid.uuid4()),
            project_id=project_id,
            name=parse_name(fields.get("name")),
            key_prefix=secret[:PREFIX_LENGTH],
            permissions=parse_permissions(fields.get("permissions")),
            created_at_ms=now_ms,
            expires_at_ms=_expiry(fields.get("expires_at"), now_ms),
        )
        async with store_deadline():
            await self._registry.add_service_key(service_key, secret_digest(secret), by=self._act(request))
        self._log_key("service_key_created", request, service_key)
        return json_response(_key_entry(service_key, None) | {"key_value": secret}, 201)

    async def service_keys(self, request: Request) -> Response:
        limit, cursor = page_position(request)
        async with store_deadline():
            page = await self._registry.service_keys(_project_id(request), limit=limit, cursor=cursor)
            until_ms = await self._registry.old_secrets([item.id for item in page.items])
            return page_response(page, request, self._log, lambda item: _key_entry(item, until_ms.get(item.id)))

    async def service_key(self, request: Request) -> Response:
        async with store_deadline():
            service_key = await self._registry.service_key(_project_id(request), _key_id(request))
            until_ms = await self._registry.old_secrets([service_key.id])
            return json_response(_key_entry(service_key, until_ms.get(service_key.id)))

    async def delete_service_key(self, request: Request) -> Response:
        project_id, key_id = _project_id(request), _key_id(request)
        async with self._effective_at_once(), store_deadline():
            await self._registry.delete_service_key(project_id, key_id, by=self._act(request))
        self._log_event("service_key_deleted", request, project_id=project_id, key_id=key_id)
        return Response(status_code=204)

    async def regenerate_service_key(self, request: Request) -> Response:
        project_id, key_id = _project_id(request), _key_id(request)
        fields = json_object(await read_body(request.receive), ("keep_old_seconds",), empty_is_object=True)
        asked = fields.get("keep_old_seconds", 0)
        keep_old_seconds = parse_whole_number(asked, "keep_old_seconds", 0, KEEP_OLD_SECONDS_MAX)
        secret = new_secret()
        async with self._effective_at_once(), store_deadline():
            until_ms = self._clock.now_ms() + keep_old_seconds * 1_000 if keep_old_seconds else None
            new = NewSecret(secret_digest(secret), secret[:PREFIX_LENGTH], until_ms)
            service_key = await self._registry.replace_secret(project_id, key_id, new, by=self._act(request))
        self._log_key("service_key_regenerated", request, service_key, keep_old_seconds=keep_old_seconds)
        return json_response(_key_entry(service_key, until_ms) | {"key_value": secret})

    @asynccontextmanager
    async def _effective_at_once(self) -> AsyncIterator[None]:
        """Invalidate cached credentials, even if the store fails: the change may have happened, whole or in part."""
        try:
            yield
        finally:
            self._authenticator.invalidate()

    def _act(self, request: Request) -> Act:
        return act_of(request.scope, self._clock.now_ms())

    def _log_event(self, event: str, request: Request, **about: object) -> None:
        self._log.info(event, **made_by(request.scope), **about)

    def _log_key(self, event: str, request: Request, service_key: ServiceKey, **more: object) -> None:
        about = {"project_id": service_key.project_id, "key_id": service_key.id, "name": service_key.name}
        self._log_event(event, request, **about, **more)


# --- requests ---------------------------------------------------------------------------------------------


def _project_id(request: Request) -> str:
    return known_id(request.path_params["project_id"], "project")


def _key_id(request: Request) -> str:
    return known_id(request.path_params["key_id"], "service key")


def known_id(text: str, what: str) -> str:
    """The id if this server can have made it, else LockError `not_found`."""
    try:
        if str(uuid.UUID(text)) == text:
            return text
    except ValueError:
        pass
    raise LockError("not_found", f"there is no {what} with the id {shown(text)}")


def page_position(request: Request) -> tuple[int, str | None]:
    query = request.query_params
    return parse_limit(query.get("limit"), PAGE_LIMIT_DEFAULT, PAGE_LIMIT_MAX), query.get("cursor")


def _expiry(value: object, now_ms: int) -> int | None:
    if value is None:
        return None
    expires_at_ms = parse_instant_ms(value, "expires_at")
    if expires_at_ms <= now_ms:
        raise LockError("invalid_request", f"expires_at must be in the future; got {shown(value)}")
    return expires_at_ms


# --- responses --------------------------------------------------------------------------------------------


def entry_of(entry: Listed) -> dict[str, object]:
    """All fields of a project, a key or an admin token, which are public; those named `…_ms` as instants in text."""
    return {
        name.removesuffix("_ms"): instant(value) if name.endswith("_ms") and value is not None else value
        for name, value in asdict(entry).items()  # type: ignore[call-overload]  # each is a dataclass
    }


def _key_entry(service_key: Listed, old_good_until_ms: int | None) -> dict[str, object]:
    """A service key, with until when its previous secret is valid."""
    until = None if old_good_until_ms is None else instant(old_good_until_ms)
    return entry_of(service_key) | {"old_secret_good_until": until}


def page_response(
    page: Page, request: Request, log: Log, shown_entry: Callable[[Listed], dict[str, object]] = entry_of
) -> Response:
    """A page of a list; logs its damaged entries (LEASE-18)."""
    for error in page.damaged:
        log_error(log, error, made_by(request.scope))
    return json_response({"items": [shown_entry(item) for item in page.items], "next_cursor": page.next_cursor})
