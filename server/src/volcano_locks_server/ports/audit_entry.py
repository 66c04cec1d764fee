"""Entries of the audit, and the act that one begins with: who did what, from where and why (AUDIT-1).

Pure: no I/O and no clock. No entry has a secret.
"""

import secrets
from collections.abc import Mapping
from itertools import count
from typing import Any, Final, Literal

from msgspec import Struct

ActorKind = Literal["service_key", "admin_token", "command_line", "server"]
Facts = Mapping[str, Any]

_AT_DIGITS: Final = 15
_numbers: Final = count(1)


class Act(Struct, frozen=True, gc=False):
    """Who does something, and when: `actor_id` is None for the configured admin token, the command line and the server
    itself. `unique` makes the entry's id unique, and orders those of one node and millisecond.
    """

    at_ms: int
    actor_kind: ActorKind
    actor_id: str | None
    actor_name: str
    address: str | None
    request_id: str | None
    unique: str
    reason: str | None = None


def new_unique() -> str:
    """The `unique` of a new act."""
    return f"{next(_numbers) & 0xFFFFFFFF:08x}{secrets.token_hex(4)}"


class AuditEntry(Struct, frozen=True, gc=False):
    """One action. `id` orders entries by time. `target_kind` and `target_name` say what it was about, in words that
    stay true after it is gone; `before` and `after` are its public fields, None if there was nothing.
    """

    id: str
    at_ms: int
    action: str
    actor_kind: str
    actor_id: str | None
    actor_name: str
    address: str | None
    project_id: str | None
    target_kind: str
    target_id: str | None
    target_name: str | None
    before: Facts | None
    after: Facts | None
    reason: str | None
    request_id: str | None


def id_at(at_ms: int) -> str:
    """The id that comes before those of all entries at that instant or later."""
    return f"{at_ms:0{_AT_DIGITS}d}"


def entry_of(
    act: Act,
    action: str,
    target: tuple[str, str | None, str | None],
    *,
    project_id: str | None = None,
    before: Facts | None = None,
    after: Facts | None = None,
    at_ms: int | None = None,
) -> AuditEntry:
    """The entry of this action; `target` is its kind, id and name, `at_ms` the store's instant if it is known."""
    kind, target_id, name = target
    at_ms = act.at_ms if at_ms is None else at_ms
    return AuditEntry(
        id=f"{id_at(at_ms)}-{act.unique}",
        at_ms=at_ms,
        action=action,
        actor_kind=act.actor_kind,
        actor_id=act.actor_id,
        actor_name=act.actor_name,
        address=act.address,
        project_id=project_id,
        target_kind=kind,
        target_id=target_id,
        target_name=name,
        before=before,
        after=after,
        reason=act.reason,
        request_id=act.request_id,
    )
