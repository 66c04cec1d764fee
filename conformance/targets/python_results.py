"""Converts the values and errors of the Python clients to results.

A failure has its code and its classes. Codes beyond the service's own: `no_answer` if no response came, `bad_answer` if
it was not from a lock service.
"""

from volcano_locks import AsyncLockGuard, Lease, LockGuard, LockState, VolcanoError
from volcano_locks.errors import LockHeldError, ServerError, TransportError
from volcano_locks.features.watch import Leadership
from volcano_locks.protocol.lock_view import LockView

from .raw_http import ms_of
from .results import class_names, failure
from .target import Result


def lease_result(lease: Lease) -> Result:
    """A lease as a result."""
    return {"expires_at_ms": ms_of(lease.expires_at), "fencing_token": lease.fencing_token}


def guard_result(guard: LockGuard | AsyncLockGuard) -> Result:
    """A guard's state as a result."""
    return {"lost": guard.lost, **lease_result(guard.lease)}


def state_result(state: object) -> Result:
    """The state of a lock as a result."""
    assert isinstance(state, LockState)
    if not state.held:
        return {"held": False}
    assert state.expires_at is not None
    assert state.fencing_token is not None
    return {"held": True, "expires_at_ms": ms_of(state.expires_at), "fencing_token": state.fencing_token}


def view_result(view: object) -> Result:
    """A lock with its holder as a result."""
    assert isinstance(view, LockView)
    fields = {word: getattr(view, word) for word in ("held", "holder", "fencing_token", "ttl_seconds", "waiters")}
    instants = {"acquired": view.acquired_at, "renewed": view.renewed_at, "expires": view.expires_at}
    return fields | {f"{word}_at_ms": ms_of(at) for word, at in instants.items() if at is not None}


def change_result(change: Leadership) -> Result:
    """A change that a watch yielded as a result."""
    fields = {"held": change.held, "holder": change.holder, "fencing_token": change.fencing_token}
    return {**fields, "at_ms": None if change.since is None else ms_of(change.since)}


def failure_result(error: VolcanoError) -> Result:
    """An error of the client as a result."""
    result = {**failure(_code_of(error), error.retry_after), "error_classes": class_names(error)}
    if not isinstance(error, LockHeldError):
        return result
    expires_at_ms = None if error.expires_at is None else ms_of(error.expires_at)
    return {**result, "holder": error.holder, "expires_at_ms": expires_at_ms, "fencing_token": error.fencing_token}


def attached_error(error: BaseException) -> Result:
    """The class of the error that is attached to the body's error."""
    notes = [note.partition(":")[0] for note in getattr(error, "__notes__", [])]
    return {"attached": notes[0]} if notes else {}


def _code_of(error: VolcanoError) -> str:
    if isinstance(error, TransportError):
        return "no_answer"
    if error.code is None and isinstance(error, ServerError):
        return "bad_answer"
    return str(error.code)
