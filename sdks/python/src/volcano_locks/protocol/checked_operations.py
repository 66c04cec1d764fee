"""The operations that a client offers. Bad arguments raise in the caller's own frame, before anything is sent."""

from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING

from volcano_locks.protocol import operations
from volcano_locks.protocol.arguments import (
    Uuid,
    checked_fencing_token,
    checked_key,
    checked_reason,
    checked_seconds,
    checked_ttl,
    checked_uuid,
    new_uuid,
)
from volcano_locks.protocol.effects import Operation, TimeBudget
from volcano_locks.protocol.lease import Lease, LockState, checked_lease
from volcano_locks.protocol.operations import ATTEMPTS_MAX

if TYPE_CHECKING:
    from datetime import datetime

    from volcano_locks.protocol.lock_view import LockView, StateFilter


class CheckedOperations:
    """Creates operations for one client. `now` reads its clock; `timeout_seconds` limits one request."""

    def __init__(self, now: Callable[[], float], timeout_seconds: float) -> None:
        self._now = now
        self.timeout_seconds = timeout_seconds

    def acquire(
        self,
        key: str,
        ttl: int,
        token: Uuid | None,
        request_id: Uuid | None,
        wait: float | None = None,
        *,
        for_block: bool = False,
    ) -> Operation[Lease]:
        """Acquire (SDK-1, SDK-2), waiting if `wait` is given (SDK-11).

        If the caller passes a `token`, it can repeat a failed acquire (SDK-18). A block (`for_block`) releases instead.
        """
        owner = new_uuid() if token is None else checked_uuid("token", token)
        key, ttl, request_id = checked_key(key), checked_ttl(ttl), _request_id(request_id)
        wait_seconds = checked_seconds("wait", wait)
        if wait_seconds == 0:
            recoverable = token is not None and not for_block
            return operations.acquire(key, owner, ttl, request_id, self._budget(), recoverable=recoverable)
        from volcano_locks.protocol import acquire_wait  # noqa: PLC0415 - rarely needed

        return acquire_wait.acquire(acquire_wait.AcquireWait(key, owner, ttl, request_id, wait_seconds), self._budget())

    def renew(self, key: str, lease: Lease, ttl: int | None, request_id: Uuid | None) -> Operation[Lease]:
        """If `ttl` is None, keep the lease's own."""
        lease = checked_lease(key, lease)
        ttl_seconds = lease.ttl_seconds if ttl is None else checked_ttl(ttl)
        # Until the lease's deadline; after it only the server can decide.
        until = lease.deadline if lease.deadline is not None and lease.deadline > self._now() else inf
        return operations.renew(lease, ttl_seconds, _request_id(request_id), self._budget(until=until), ATTEMPTS_MAX)

    def renew_once(self, lease: Lease, timeout_seconds: float) -> Operation[Lease]:
        """One renewal attempt of the renewer, which plans its retries itself."""
        return operations.renew(lease, lease.ttl_seconds, new_uuid(), TimeBudget(self._now, timeout_seconds), 1)

    def release(self, key: str, lease: Lease, request_id: Uuid | None) -> Operation[None]:
        """Release by key and token alone, so any `Lease` of the acquisition works."""
        lease = checked_lease(key, lease)
        return operations.release(lease.key, lease.token, _request_id(request_id), self._budget(), ATTEMPTS_MAX)

    def release_after_interrupt(self, key: str, lease: Lease, request_id: Uuid | None) -> Operation[None]:
        """Complete a `release` call that was interrupted: the same checks, but one attempt with a short time limit."""
        _request_id(request_id)
        return self.undo_acquire(checked_lease(key, lease))

    def release_at_end(self, lease: Lease, until: float) -> Operation[None]:
        """The release at the end of a block."""
        return operations.release(lease.key, lease.token, new_uuid(), self._budget(until=until), ATTEMPTS_MAX)

    def renew_at_end(self, lease: Lease, ttl_seconds: int, until: float) -> Operation[Lease]:
        """The renewal at the end of a block with `hold_at_least`."""
        return operations.renew(lease, ttl_seconds, new_uuid(), self._budget(until=until), ATTEMPTS_MAX)

    def undo_acquire(self, lease: Lease) -> Operation[None]:
        """Release a lease whose caller was interrupted before it got the lease."""
        budget = TimeBudget(self._now, min(self.timeout_seconds, operations.BEST_EFFORT_RELEASE_SECONDS_MAX))
        return operations.release(lease.key, lease.token, new_uuid(), budget, 1)

    def get(self, key: str, request_id: Uuid | None) -> Operation[LockState]:
        """Read the lock's state."""
        return operations.get(checked_key(key), _request_id(request_id), self._budget())

    def view(self, key: str, request_id: Uuid | None) -> "Operation[LockView]":
        """Read every field of the lock (SDK-15)."""
        from volcano_locks.protocol import lock_view  # noqa: PLC0415 - rarely needed

        return lock_view.view(checked_key(key), _request_id(request_id), self._budget())

    def list(self, prefix: str, state: "StateFilter") -> Operation[None]:
        """Emit each `LockView`, page by page (SDK-15)."""
        from volcano_locks.protocol import lock_view  # noqa: PLC0415 - rarely needed

        return lock_view.list_all(lock_view.checked_prefix(prefix), lock_view.checked_state(state), self._budget())

    def history(
        self,
        key: str | None,
        prefix: str,
        at: "datetime | None",
        since: "datetime | None",
        before: "datetime | None",
    ) -> Operation[None]:
        """Emit each `HoldEntry`, page by page (SDK-28)."""
        from volcano_locks.protocol import hold_entry, lock_view  # noqa: PLC0415 - rarely needed

        bounds: dict[hold_entry.Bound, object] = {"at": at, "since": since, "before": before}
        period = {name: hold_entry.checked_instant(name, one) for name, one in bounds.items() if one is not None}
        if key is not None:
            key = checked_key(key)
        return hold_entry.read_all(key, lock_view.checked_prefix(prefix), period, self._budget())

    def force_release(
        self, key: str, fencing_token: int | None, reason: str | None, request_id: Uuid | None
    ) -> Operation[None]:
        """Free the lock, regardless of its holder (SDK-27)."""
        expected = None if fencing_token is None else checked_fencing_token(fencing_token)
        return operations.force_release(
            checked_key(key), expected, checked_reason(reason), _request_id(request_id), self._budget()
        )

    def _budget(self, *, until: float = inf) -> TimeBudget:
        return TimeBudget(self._now, self.timeout_seconds, until)


def _request_id(request_id: Uuid | None) -> str:
    return new_uuid() if request_id is None else checked_uuid("request_id", request_id)
