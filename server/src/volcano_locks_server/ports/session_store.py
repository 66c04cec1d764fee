"""The port of the dashboard's sessions and one-time codes. Only SHA-256 digests of their secrets are stored."""

from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from .audit_entry import AuditEntry

Purpose = Literal["session", "code"]
OwnerKind = Literal["service_key", "admin_token"]


@dataclass(frozen=True, slots=True)
class StoredSession:
    """A session of the dashboard, or a one-time code for one.

    `digest` is that of the session id, or of `code ` and the code. `credential_digest` is that of the credential with
    which it was made: if the store no longer knows that credential, the session has ended. `owner_id` is the id of the
    service key or the admin token, empty for the configured admin token, which no store knows: its `credential_digest`
    is that of the secret and the token together, so that nothing can be tried out against the stored value.
    """

    digest: bytes
    purpose: Purpose
    owner_kind: OwnerKind
    owner_id: str
    credential_digest: bytes
    good_until_ms: int


class SessionLimits(NamedTuple):
    """How many entries of one purpose are kept, of one owner and in all."""

    per_owner: int
    in_all: int


class SessionStore(Protocol):
    """The port for sessions and codes. Methods raise `StoreUnavailableError`.

    Entries past their end may stay until the next `add`: the caller checks `good_until_ms`. Writes are durable when the
    method returns. Nodes that add at the same instant may exceed the limits by their number; the next `add` corrects
    that. `audit` is an entry of the audit to write in the same transaction (AUDIT-2).
    """

    async def add(
        self, session: StoredSession, limits: SessionLimits, now_ms: int, *, audit: AuditEntry | None = None
    ) -> None:
        """Store the session. Entries of its purpose that have ended make room, then those of its owner that end first,
        then of all that end first.
        """
        ...

    async def session(self, digest: bytes) -> StoredSession | None: ...
    async def take(self, digest: bytes, *, audit: AuditEntry | None = None) -> StoredSession | None:
        """Delete the entry and return it. Of concurrent calls, one gets it and the others None, without `audit`."""
        ...
