"""The log lines about lock requests. They never hold a token; keys and holder labels may appear.

Level `info`: an expired lease (when it is taken over, or when its owner renews too late), a force release, a refusal
(within the rate of `Log.within_rate`) and a store that cannot answer. Level `debug`: everything else (OPS-6).
"""

from ..rules.errors import LockError, StoreUnavailableError
from ..rules.lease import LAPSED, Granted, Outcome, Refused, Released, State
from ..telemetry import Log
from .codec import instant


def is_logged_at_info(operation: str, outcome: Outcome | LockError, *, waited: bool = False) -> bool:
    """Whether `log_outcome` writes at level `info`. Ask first, so that ordinary requests build no log line.

    A wait that ends without the lock is not logged at `info`: a client that waits longer repeats it every minute.
    """
    if waited and isinstance(outcome, Refused) and outcome.code == "lock_held":
        return False
    if isinstance(outcome, Granted):
        return outcome.lapsed is not None
    return not isinstance(outcome, State) and (operation == "force_release" or not isinstance(outcome, Released))


def log_outcome(log: Log, operation: str, outcome: Outcome | LockError, about: dict[str, str | None]) -> None:
    """Log one outcome; `about` names the request, its project and its lock if they are known."""
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
        log.debug("granted", **about, how=outcome.how, fencing_token=outcome.fencing_token)
    elif isinstance(outcome, Released):
        is_forced = operation == "force_release"
        held = outcome.ended
        fencing_token, holder = (None, None) if held is None else (held.fencing_token, held.holder)
        write = log.info if is_forced else log.debug
        write("force_released" if is_forced else "released", **about, holder=holder, fencing_token=fencing_token)
    elif isinstance(outcome, Refused):
        if log.within_rate():
            log.info("late_renewal" if outcome is LAPSED else "refused", **about, code=outcome.code)
    elif isinstance(outcome, LockError) and log_error(log, outcome, about) and outcome.__cause__ is not None:
        log.unexpected_error("store_failed", outcome.__cause__, **about)


def log_error(log: Log, error: LockError, about: dict[str, str | None]) -> bool:
    """Log a request that was not carried out, if the rate allows it; returns whether it did."""
    if not log.within_rate():
        return False
    if isinstance(error, StoreUnavailableError):
        log.warning("store_unavailable", **about, cause=error.cause_code, message=error.message)
    else:
        log.info("refused", **about, code=error.code)
    return True
