"""The port of the audit, and what its entries say about each kind of action (AUDIT rules in spec/audit.md).

A store calls the functions inside the transaction of the action, where it knows what was there before.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Protocol

from ..rules.lease import Held
from .admin_tokens import AdminToken
from .audit_entry import Act, AuditEntry, entry_of, id_at
from .lock_store import RecordKey
from .registry import Project, ServiceKey
from .session_store import StoredSession

ENTRIES_MAX: Final = 100_000
ENTRIES_DAYS: Final = 365
PURGED_AT_ONCE: Final = 250
_DAY_MS: Final = 86_400_000


class AuditQuery(NamedTuple):
    """Selects at most `limit` entries, the latest first: of this project (None: all), from `from_ms` on, before
    `to_ms`, and before the entry `before_id`.
    """

    limit: int
    project_id: str | None = None
    from_ms: int = 0
    to_ms: int | None = None
    before_id: str | None = None

    @property
    def first_id(self) -> str:
        """No entry of the period has a lower id."""
        return id_at(self.from_ms)

    @property
    def end_id(self) -> str:
        """All entries of the page have a lower id."""
        end = "~" if self.to_ms is None else id_at(self.to_ms)
        return end if self.before_id is None else min(end, self.before_id)


class AuditLog(Protocol):
    """The port for the audit. Methods raise `StoreUnavailableError`; writes are durable when a method returns.

    Most entries are written by the ports of what they are about, in the same transaction.
    """

    async def append(self, entry: AuditEntry) -> None:
        """Add the entry of an action that is not in the store."""
        ...

    async def page(self, query: AuditQuery) -> Sequence[AuditEntry]: ...
    async def purge(self, now_ms: int, *, entries_max: int = ENTRIES_MAX) -> int:
        """Delete the entries older than ENTRIES_DAYS, and those past `entries_max`: the oldest of each project past
        `equal_share`; PURGED_AT_ONCE in one transaction. Returns how many.
        """
        ...


def oldest_kept_id(now_ms: int) -> str:
    """Entries with lower ids are too old."""
    return id_at(max(0, now_ms - ENTRIES_DAYS * _DAY_MS))


def project_entry(act: Act | None, before: Project | None, after: Project | None, project_id: str) -> AuditEntry | None:
    """A project was created, changed or deleted. `before` is None too if what was there is damaged.

    Here and below there is no entry without an act, as of a copy.
    """
    if act is None:
        return None
    action = "project_deleted" if after is None else "project_created" if before is None else "project_changed"
    known = after or before
    target = ("project", project_id, None if known is None else known.name)
    return entry_of(act, action, target, project_id=project_id, before=_project(before), after=_project(after))


def key_entry(
    act: Act | None,
    before: ServiceKey | None,
    after: ServiceKey | None,
    ids: tuple[str, str],
    old_good_until_ms: tuple[int | None, int | None] = (None, None),
) -> AuditEntry | None:
    """A service key was created, rotated or revoked. `ids` are those of its project and its own. `old_good_until_ms` is
    until when a previous secret was valid before a rotation, and after it.
    """
    if act is None:
        return None
    action = "key_revoked" if after is None else "key_created" if before is None else "key_rotated"
    known = after or before
    facts = _key(before, old_good_until_ms[0]), _key(after, old_good_until_ms[1])
    target = ("service_key", ids[1], None if known is None else known.name)
    return entry_of(act, action, target, project_id=ids[0], before=facts[0], after=facts[1])


def token_entry(act: Act | None, before: AdminToken | None, after: AdminToken | None) -> AuditEntry | None:
    """An admin token was created or revoked."""
    known = after or before
    if act is None or known is None:
        return None
    action = "admin_token_revoked" if after is None else "admin_token_created"
    target = ("admin_token", known.id, known.name)
    return entry_of(act, action, target, before=_token(before), after=_token(after))


def force_release_entry(act: Act, lock: RecordKey, ended: Held | None, at_ms: int) -> AuditEntry:
    """A lock was force released; `ended` is the lease that this ended."""
    before = None
    if ended is not None:
        before = {
            "holder": ended.holder,
            "fencing_token": ended.fencing_token,
            "acquired_at_ms": ended.acquired_at_ms,
            "expires_at_ms": ended.expires_at_ms,
        }
    target = ("lock", None, str(lock.key))
    after = {"held": False}
    return entry_of(act, "force_released", target, project_id=lock.project_id, before=before, after=after, at_ms=at_ms)


def session_entry(act: Act, session: StoredSession, project_id: str | None, *, begins: bool) -> AuditEntry:
    """A session of the dashboard began, or was ended by its user."""
    target = (session.owner_kind, session.owner_id or None, act.actor_name)
    facts = {"good_until_ms": session.good_until_ms}
    action, before, after = ("signed_in", None, facts) if begins else ("signed_out", facts, None)
    return entry_of(act, action, target, project_id=project_id, before=before, after=after)


def _project(project: Project | None) -> dict[str, Any] | None:
    return None if project is None else {"name": project.name, "requests_per_minute": project.requests_per_minute}


def _key(key: ServiceKey | None, old_good_until_ms: int | None) -> dict[str, Any] | None:
    if key is None:
        return None
    permissions = list(key.permissions)
    facts = {"key_prefix": key.key_prefix, "permissions": permissions, "expires_at_ms": key.expires_at_ms}
    return facts if old_good_until_ms is None else facts | {"old_secret_good_until_ms": old_good_until_ms}


def _token(token: AdminToken | None) -> dict[str, Any] | None:
    return None if token is None else {"token_prefix": token.token_prefix}
