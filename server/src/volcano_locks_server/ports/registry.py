"""The port of projects and service keys. Only the SHA-256 digest of a key's secret is stored."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, Self

from ..rules.errors import DamagedRecordError
from .audit_entry import Act


@dataclass(frozen=True, slots=True)
class Project:
    """A tenant. `requests_per_minute` 0 means no quota."""

    id: str
    name: str
    requests_per_minute: int
    created_at_ms: int

    def changed(self, name: str | None, requests_per_minute: int | None) -> Self:
        """The project with these values; None keeps a value."""
        return replace(
            self,
            name=self.name if name is None else name,
            requests_per_minute=self.requests_per_minute if requests_per_minute is None else requests_per_minute,
        )


@dataclass(frozen=True, slots=True)
class ServiceKey:
    """A credential of a project.

    `key_prefix` is the beginning of its secret, by which people recognize it. `expires_at_ms` None means never.
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
    """The service key of a secret, its project, and when the secret or the key expires, whichever is first."""

    service_key: ServiceKey
    project: Project
    good_until_ms: int | None

    @classmethod
    def of(cls, service_key: ServiceKey, project: Project, secret_good_until_ms: int | None) -> Self:
        ends = [end for end in (service_key.expires_at_ms, secret_good_until_ms) if end is not None]
        return cls(service_key, project, min(ends, default=None))


class NewSecret(NamedTuple):
    """A service key's new secret. The old one stays valid until `old_good_until_ms`; None ends it now."""

    digest: bytes
    key_prefix: str
    old_good_until_ms: int | None = None


class Listed(Protocol):
    """What every entry of a list has."""

    @property
    def id(self) -> str: ...
    @property
    def name(self) -> str: ...


class Page(NamedTuple):
    """A page of a list: `items` in the order of their creation, and the cursor of the next page, if any.

    The items are projects, service keys or admin tokens. `damaged` are entries that cannot be decoded; `items` leaves
    them out (LEASE-18).
    """

    items: Sequence["Listed"]
    next_cursor: str | None
    damaged: Sequence[DamagedRecordError] = ()


class RegistryRepairs(Protocol):
    """The port for repairs of damaged projects and service keys (CLI-31)."""

    async def repair(self, record: str, now_ms: int) -> None:
        """Repair the damaged record of that name, as `DamagedRecordError.record` has it.

        A project is written anew, with defaults for what cannot be read. Everything else is deleted: a service key, of
        which it is not known what it may do, and an admin token are thereby revoked.
        """
        ...


class Registry(Protocol):
    """The port for projects and service keys.

    Ids are UUIDs that the caller generates. A project or key that cannot be decoded raises `DamagedRecordError` for
    itself only. Methods raise LockError `name_taken` for a name that is not unique,
    `not_found` for an unknown id, `invalid_request` for an unknown cursor, and `StoreUnavailableError`. Writes are
    durable when the method returns. `by` is who asked for a change: its entry of the audit is written in the same
    transaction (AUDIT-2).
    """

    async def add_project(self, project: Project, *, by: Act | None = None) -> None: ...
    async def project(self, project_id: str) -> Project: ...
    async def projects(self, *, limit: int, cursor: str | None) -> Page: ...
    async def change_project(
        self, project_id: str, *, name: str | None, requests_per_minute: int | None, by: Act | None = None
    ) -> Project: ...
    async def delete_project(self, project_id: str, *, by: Act | None = None) -> None:
        """Also deletes the project's service keys and lock records."""
        ...

    async def add_service_key(
        self, service_key: ServiceKey, secret_digest: bytes, *, by: Act | None = None
    ) -> None: ...
    async def service_key(self, project_id: str, key_id: str) -> ServiceKey: ...
    async def service_keys(self, project_id: str, *, limit: int, cursor: str | None) -> Page: ...
    async def delete_service_key(self, project_id: str, key_id: str, *, by: Act | None = None) -> None: ...
    async def replace_secret(
        self, project_id: str, key_id: str, new: NewSecret, *, by: Act | None = None
    ) -> ServiceKey: ...
    async def old_secrets(self, key_ids: Sequence[str]) -> Mapping[str, int]:
        """Until when the previous secret of each of these keys is valid, also if that is past (ADMIN-8). Keys without
        a stored previous secret are left out.
        """
        ...

    async def credential(self, secret_digest: bytes) -> Credential | None:
        """The credential of a secret, expired or not: the caller checks `good_until_ms`."""
        ...

    async def touch_service_keys(self, last_used_at_ms: Mapping[str, int]) -> None:
        """Store when keys (by id) were last used. Ignores unknown ids and instants that are earlier than stored."""
        ...
