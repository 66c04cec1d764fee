"""Issues a service key directly in the registry, for `dev`, the tests and the demo."""

import uuid
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, NamedTuple

from msgspec.structs import replace

from ..http.auth import PREFIX_LENGTH, new_secret, secret_digest
from ..ports.audit_entry import Act, new_unique
from ..ports.registry import NewSecret, Page, Project, Registry, ServiceKey
from ..rules.values import PAGE_LIMIT_MAX, REQUESTS_PER_MINUTE_DEFAULT, parse_name

SERVER_NAME: Final = "(server)"
"""The actor of what a server does at its start, such as `dev`; no token or key can have this name (ADMIN-4)."""


class IssuedKey(NamedTuple):
    """A service key with its secret, which is stored nowhere."""

    project_id: str
    key_id: str
    secret: str

    def __repr__(self) -> str:
        return f"IssuedKey(project_id={self.project_id!r}, key_id={self.key_id!r}, secret=…)"


async def issue_service_key(registry: Registry, now_ms: int, project_name: str, key_name: str) -> IssuedKey:
    """A new secret for this key of this project; creates the key and the project if missing. Raises LockError."""
    secret = new_secret()
    act = Act(now_ms, "server", None, SERVER_NAME, None, None, "")

    def by() -> Act:
        return replace(act, unique=new_unique())

    parse_name(key_name, "key name")
    project_id = await _id_of(registry.projects, parse_name(project_name, "project name"))
    if project_id is None:
        project_id = str(uuid.uuid4())
        await registry.add_project(Project(project_id, project_name, REQUESTS_PER_MINUTE_DEFAULT, now_ms), by=by())
    key_id = await _id_of(partial(registry.service_keys, project_id), key_name)
    if key_id is None:
        key_id = str(uuid.uuid4())
        service_key = ServiceKey(key_id, project_id, key_name, secret[:PREFIX_LENGTH], ("*",), now_ms)
        await registry.add_service_key(service_key, secret_digest(secret), by=by())
    else:
        await registry.replace_secret(
            project_id, key_id, NewSecret(secret_digest(secret), secret[:PREFIX_LENGTH]), by=by()
        )
    return IssuedKey(project_id, key_id, secret)


async def _id_of(list_page: Callable[..., Awaitable[Page]], name: str) -> str | None:
    """The id of the item with this name in a list."""
    cursor: str | None = None
    while True:
        page = await list_page(limit=PAGE_LIMIT_MAX, cursor=cursor)
        for item in page.items:
            if item.name == name:
                return item.id
        cursor = page.next_cursor
        if cursor is None:
            return None
