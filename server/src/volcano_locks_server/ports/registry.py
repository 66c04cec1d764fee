"""The port of projects and service keys. Of a key's secret only its SHA-256 digest is stored."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol


@dataclass(frozen=True, slots=True)
class Project:
    """A tenant. `requests_per_minute` 0 means no quota."""

    id: str
    name: str
    requests_per_minute: int
    created_at_ms: int


@dataclass(frozen=True, slots=True)
class ServiceKey:
    """A credential of a project; its secret is known only to its bearer.

    `key_prefix` is the beginning of the secret, shown so that people can tell keys apart. `expires_at_ms` None means
    never.
    """

    id: str
    project_id: str
    name: str
    key_prefix: str
    permissions: tuple[str, ...]
    created_at_ms: int
    expires_at_ms: int | None = None
    last_used_at_ms: int | None = None


class Credential(NamedTuple):
    """What a secret opens: the key, its project, and until when: the end of the secret or of the key, whichever is
    first (None: no end).
    """

    service_key: ServiceKey
    project: Project
    good_until_ms: int | None


class Page(NamedTuple):
    """Part of a list: `items` in the order of their ids' creation, and where the next part begins, if any."""

    items: Sequence[Project] | Sequence[ServiceKey]
    next_cursor: str | None


class Registry(Protocol):
    """The port for projects and service keys.

    Ids are UUIDs made by the caller. Methods raise LockError `name_taken` where a name is not unique, `not_found`
    where an id is unknown, `invalid_request` for a cursor that this registry did not give, and
    `StoreUnavailableError`. All writes are durable when the method returns.
    """

    async def add_project(self, project: Project) -> None: ...
    async def project(self, project_id: str) -> Project: ...
    async def projects(self, *, limit: int, cursor: str | None) -> Page: ...
    async def change_project(
        self, project_id: str, *, name: str | None, requests_per_minute: int | None
    ) -> Project: ...
    async def delete_project(self, project_id: str) -> None:
        """Also deletes the project's service keys and lock records."""
        ...

    async def add_service_key(self, service_key: ServiceKey, secret_digest: bytes) -> None: ...
    async def service_key(self, project_id: str, key_id: str) -> ServiceKey: ...
    async def service_keys(self, project_id: str, *, limit: int, cursor: str | None) -> Page: ...
    async def delete_service_key(self, project_id: str, key_id: str) -> None: ...
    async def replace_secret(
        self,
        project_id: str,
        key_id: str,
        *,
        secret_digest: bytes,
        key_prefix: str,
        old_secret_good_until_ms: int | None,
    ) -> ServiceKey:
        """Give the key a new secret; the one before lives on until the instant given, or ends now (None)."""
        ...

    async def credential(self, secret_digest: bytes) -> Credential | None:
        """What this secret opens, without looking at the time: the caller compares `good_until_ms`."""
        ...

    async def touch_service_keys(self, last_used_at_ms: Mapping[str, int]) -> None:
        """Remember when keys (by id) were last used; unknown ids are passed over. Never moves back."""
        ...
