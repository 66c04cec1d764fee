"""Who does what a request asks for, for the audit (AUDIT-1)."""

from ..ports.audit_entry import Act, new_unique
from .audit_log import address_of
from .auth import AdminPrincipal, Principal
from .codec import Scope


def act_of(scope: Scope, now_ms: int, reason: str | None = None) -> Act:
    """The act of a request outside `/locks` whose actor is known."""
    return act_by(scope["volcano.actor"], address_of(scope), scope["volcano.request_id"], now_ms, reason)


def act_by(
    actor: Principal | AdminPrincipal, address: str | None, request_id: str, now_ms: int, reason: str | None = None
) -> Act:
    """The act of this principal."""
    if isinstance(actor, AdminPrincipal):
        return Act(now_ms, "admin_token", actor.token_id, actor.name, address, request_id, new_unique(), reason)
    return Act(now_ms, "service_key", actor.key_id, actor.key_name, address, request_id, new_unique(), reason)
