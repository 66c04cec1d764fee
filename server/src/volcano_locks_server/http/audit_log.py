"""Which lock events go into the log, and what is said of them. Never a token; keys and holders' labels may.

At `info`: a lease that lapsed (told when it is taken over, and when its owner renews too late), a force release,
a refusal (within the budget of `Log.often`) and a store that cannot answer. At `debug`: everything else.
"""

from ..rules.errors import LockError, StoreUnavailableError
from ..rules.lease import HELD, LAPSED, Granted, Outcome, Refused, Released, State
from ..service.lock_service import Denied
from ..telemetry import Log
from .codec import instant


def worth_telling(operation: str, outcome: Outcome | Denied, *, waited: bool = False) -> bool:
    """Whether `tell` has something to say at level `info`; asked first, so that the daily work builds nothing.

    That a wait ended without the lock is no refusal: whoever waits longer asks again every minute.
    """
    if waited and outcome is HELD:
        return False
    if isinstance(outcome, Granted):
        return outcome.lapsed is not None
    return not isinstance(outcome, State) and (operation == "force_release" or not isinstance(outcome, Released))


def tell(log: Log, operation: str, outcome: Outcome | Denied, about: dict[str, str | None]) -> None:
    """Log what is worth it of one outcome; `about` says whose request it was and which lock's, as far as known."""
    about["operation"] = operation
    if isinstance(outcome, Granted):
        if outcome.lapsed is not None:
            log.event(
                "lease_lapsed",
                **about,
                lapsed_holder=outcome.lapsed.holder,
                lapsed_fencing_token=outcome.lapsed.fencing_token,
                expired_at=instant(outcome.lapsed.expires_at_ms),
                taken_over_with=outcome.fencing_token,
            )
        log.detail("granted", **about, how=outcome.how, fencing_token=outcome.fencing_token)
    elif isinstance(outcome, Released):
        say = log.event if operation == "force_release" else log.detail
        held = outcome.ended
        fencing_token, holder = (None, None) if held is None else (held.fencing_token, held.holder)
        say(
            "force_released" if operation == "force_release" else "released",
            **about,
            holder=holder,
            fencing_token=fencing_token,
        )
    elif isinstance(outcome, Refused):
        if log.often():
            log.event("late_renewal" if outcome is LAPSED else "refused", **about, code=outcome.code)
    elif isinstance(outcome, Denied):
        if not log.often():
            return
        if outcome.code == "lock_service_unavailable":
            log.trouble("store_unavailable", **about, cause=outcome.cause_code, message=outcome.message)
            if outcome.cause is not None:
                log.bug("store_failed", outcome.cause, **about)
        else:
            log.event("refused", **about, code=outcome.code)


def tell_failure(log: Log, error: LockError, request_id: str, project_id: str | None) -> None:
    """Log a request that was refused before it came to a lease. Ask `Log.often` first."""
    if isinstance(error, StoreUnavailableError):
        about = {"request_id": request_id, "project_id": project_id}
        log.trouble("store_unavailable", cause=error.cause_code, message=error.message, **about)
    else:
        log.event("refused", code=error.code, request_id=request_id, project_id=project_id)
