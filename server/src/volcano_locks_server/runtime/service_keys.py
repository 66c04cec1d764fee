"""Issues a service key directly in the registry, for `dev`, the tests and the demo."""

import uuid
from typing import NamedTuple

from ..http.auth import PREFIX_LENGTH, new_secret, secret_digest
from ..ports.registry import Project, Registry, ServiceKey
from ..rules.values import PAGE_LIMIT_MAX, REQUESTS_PER_MINUTE_DEFAULT, parse_name


class IssuedKey(NamedTuple):
    """A service key with its secret, which is stored nowhere."""

    project_id: str
    key_id: str
    secret: str

    def __repr__(self) -> str:
        return f"IssuedKey(project_id={self.project_id!r}, key_id={self.key_id!r}, secret=…)"


async def issue_service_key(registry: Registry, now_ms: int, project_name: str, key_name: str) -> IssuedKey:
    """A new secret for this key of this project; creates whichever is missing. Raises LockError."""
    secret = new_secret()
    project = await _project(registry, now_ms, parse_name(project_name, "project name"))
    known = await _service_key(registry, project.id, parse_name(key_name, "key name"))
    if known is None:
        made = ServiceKey(str(uuid.uuid4()), project.id, key_name, secret[:PREFIX_LENGTH], ("*",), now_ms)
        await registry.add_service_key(made, secret_digest(secret))
        return IssuedKey(project.id, made.id, secret)
    await registry.replace_secret(
        project.id,
        known.id,
        secret_digest=secret_digest(secret),
        key_prefix=secret[:PREFIX_LENGTH],
        old_secret_good_until_ms=None,
    )
    return IssuedKey(project.id, known.id, secret)


async def _project(registry: Registry, now_ms: int, name: str) -> Project:
    cursor: str | None = None
    while True:
        page = await registry.projects(limit=PAGE_LIMIT_MAX, cursor=cursor)
        for found in page.items:
            if isinstance(found, Project) and found.name == name:
                return found
        cursor = page.next_cursor
        if cursor is None:
            break
    made = Project(str(uuid.uuid4()), name, REQUESTS_PER_MINUTE_DEFAULT, now_ms)
    await registry.add_project(made)
    return made


async def _service_key(registry: Registry, project_id: str, name: str) -> ServiceKey | None:
    cursor: str | None = None
    while True:
        page = await registry.service_keys(project_id, limit=PAGE_LIMIT_MAX, cursor=cursor)
        for found in page.items:
            if isinstance(found, ServiceKey) and found.name == name:
                return found
        cursor = page.next_cursor
        if cursor is None:
            return None
