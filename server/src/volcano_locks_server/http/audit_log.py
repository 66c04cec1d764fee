"""The log lines about requests: what happened, and `requester`, the only place that names who asked for it (OPS-14).

They never hold a token or a secret, also if a client sends one in a wrong place, which the reason of a refusal repeats;
lock keys and holder labels may appear.

Level `info`: an expired lease (when it is taken over, or when its owner renews too late), a force release, and (within
the rate of `Log.within_rate`) a refusal except a 409, a damaged record and a store that cannot answer; with
`--log-grants` also grants and releases. Level `debug`: everything else (OPS-6).
"""

import re
from typing import Final

from ..rules.errors import DamagedRecordError, LockError, StoreUnavailableError
from ..rules.lease import LAPSED, Granted, Outcome, Refused, Released, State
from ..telemetry import Log
from .auth import AdminPrincipal, CredentialRefusedError, Principal
from .codec import Scope, instant
from .problems import STATUS_BY_CODE

Fields = dict[str, str | None]

# Service keys, anon keys and admin tokens; UUIDs, which may be owner tokens.
_SECRET: Final = re.compile(r"(?:sk|ak|admin)-[\w-]{8,}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


def address_of(scope: Scope) -> str | None:
    """The client's address, None if it is unknown (HTTP-30)."""
    client = scope.get("client")
    return None if client is None else str(client[0])


def requester(request_id: str, address: str | None, actor: Principal | AdminPrincipal | None) -> Fields:
    """Who made a request: the fields of every line about one. `actor` is None while the credential is not accepted."""
    return {"request_id": request_id, "address": address, **_actor_fields(actor)}


def _actor_fields(actor: Principal | AdminPrincipal | None) -> Fields:
    if isinstance(actor, AdminPrincipal):
        return {"admin_token_id": actor.token_id, "admin_token_name": actor.name}
    if actor is None:
        return {"project_id": None, "key_id": None, "key_name": None}
    return {"project_id": actor.project_id, "key_id": actor.key_id, "key_name": actor.key_name}


def made_by(scope: Scope) -> Fields:
    """The fields that the lines about requests outside `/locks` have in common."""
    return requester(scope["volcano.request_id"], address_of(scope), scope["volcano.actor"])


def is_logged_at_info(operation: str, outcome: Outcome | LockError) -> bool:
    """Whether `log_outcome` writes at level `info`, apart from grants and releases (`Log.grants_enabled`).

    Ask first, so that ordinary requests build no log line.
    """
    if isinstance(outcome, Refused):
        return outcome is LAPSED or outcome.damage is not None
    if isinstance(outcome, Granted):
        return outcome.lapsed is not None
    return not isinstance(outcome, State) and (operation == "force_release" or not isinstance(outcome, Released))


def log_outcome(
    log: Log,
    operation: str,
    outcome: Outcome | LockError,
    about: Fields,
    *,
    holder: str | None = None,
    force_reason: str | None = None,
) -> None:
    """Log one outcome; `about` is `requester` and the lock, if it is known. `holder` is the label in the request, and
    `force_reason` the reason of a force release (HTTP-34).
    """
    about["operation"] = operation
    if isinstance(outcome, Granted):
        if outcome.lapsed is not None:
            log.info(
                "lease_lapsed",
                **about,
                lapsed_holder=outcome.lapsed.holder,
                lapsed_fencing_token=outcome.lapsed.fencing_token,
                expired_at=instant(outcome.lapsed.expires_at_ms),
                taken_over_with=outcome.fencing_token,
            )
        write = log.debug if outcome.how == "renewed" else log.grant
        write("granted", **about, how=outcome.how, holder=holder, fencing_token=outcome.fencing_token)
    elif isinstance(outcome, Released):
        is_forced = operation == "force_release"
        held = outcome.ended
        fencing_token, ended = (None, None) if held is None else (held.fencing_token, held.holder)
        if is_forced:
            log.info("force_released", **about, holder=ended, fencing_token=fencing_token, reason=force_reason)
        else:
            log.grant("released", **about, holder=ended, fencing_token=fencing_token)
    elif isinstance(outcome, Refused) and outcome.damage is not None:
        if log.within_rate(about.get("project_id")):
            log.warning("record_damaged", **about, reason=outcome.damage.reason)
    elif outcome is LAPSED:
        if log.within_rate(about.get("project_id")):
            log.info("late_renewal", **about, code=outcome.code)
    elif isinstance(outcome, Refused):
        log.debug("refused", **about, code=outcome.code, reason=_reason(outcome.message))
    elif isinstance(outcome, LockError) and log_error(log, outcome, about) and outcome.__cause__ is not None:
        log.unexpected_error("store_failed", outcome.__cause__, **about)


def log_error(log: Log, error: LockError, about: Fields) -> bool:
    """Log a request that was not carried out, if the rate allows it; returns whether it did."""
    if STATUS_BY_CODE[error.code] == 409:
        log.debug("refused", **about, code=error.code, reason=_reason(error.message))
        return False
    if not log.within_rate(about.get("project_id")):
        return False
    if isinstance(error, DamagedRecordError):
        log.warning("record_damaged", **about, record=error.record, reason=error.reason)
    elif isinstance(error, StoreUnavailableError):
        log.warning("store_unavailable", **about, cause=error.cause_code, message=error.message)
    else:
        if isinstance(error, CredentialRefusedError) and error.actor is not None:
            about = about | _actor_fields(error.actor)
        log.info("refused", **about, code=error.code, reason=_reason(error.message))
    return True


def _reason(message: str) -> str:
    """The sentence that the client got, without what may be a secret."""
    return _SECRET.sub("[hidden]", message)
