"""The verbs with their arguments checked: each gives the flow that carries it out.

Bad arguments are refused here, in the caller's own frame, before anything is sent.
"""

from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING

from volcano_locks.protocol import operations
from volcano_locks.protocol.effects import Flow, Pace
from volcano_locks.protocol.messages import (
    Lease,
    LockState,
    Uuid,
    checked_key,
    checked_seconds,
    checked_ttl,
    checked_uuid,
    new_uuid,
)
from volcano_locks.protocol.operations import ATTEMPTS_MAX

if TYPE_CHECKING:
    from volcano_locks.protocol.lock_view import LockView, Page, State


class LockFlows:
    """Flows for one client: `now` reads its clock, `timeout_seconds` is the most one request may take."""

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
    ) -> Flow[Lease]:
        """SDK-1, SDK-2; with `wait` SDK-11, counted from when the flow begins.

        SDK-18 if the caller gave the token, except `for_block`: the block releases what it may have acquired.
        """
        owner = new_uuid() if token is None else checked_uuid("token", token)
        key, ttl, request_id = checked_key(key), checked_ttl(ttl), _request_id(request_id)
        wait_seconds = checked_seconds("wait", wait)
        if wait_seconds == 0:
            recoverable = token is not None and not for_block
            return operations.acquire(key, owner, ttl, request_id, self._pace(), recoverable=recoverable)
        from volcano_locks.protocol import acquire_wait  # noqa: PLC0415 - seldom needed

        return acquire_wait.acquire(acquire_wait.Wait(key, owner, ttl, request_id, wait_seconds), self._pace())

    def renew(self, key: str, lease: Lease, ttl: int | None, request_id: Uuid | None) -> Flow[Lease]:
        """`ttl` None keeps the lease's own."""
        lease = checked_lease(key, lease)
        ttl_seconds = lease.ttl_seconds if ttl is None else checked_ttl(ttl)
        until = self._end_of(lease)
        return operations.renew(lease, ttl_seconds, _request_id(request_id), self._pace(until=until), ATTEMPTS_MAX)

    def renew_once(self, lease: Lease, timeout_seconds: float) -> Flow[Lease]:
        """The heartbeat's renewal: it plans its own repetitions."""
        return operations.renew(lease, lease.ttl_seconds, new_uuid(), Pace(self._now, timeout_seconds), 1)

    def release(self, key: str, lease: Lease, request_id: Uuid | None) -> Flow[None]:
        """By key and token alone, so that any lease object of the acquisition will do."""
        lease = checked_lease(key, lease)
        return operations.release(lease.key, lease.token, _request_id(request_id), self._pace(), ATTEMPTS_MAX)

    def release_at_end(self, lease: Lease, until: float) -> Flow[None]:
        """The release on leaving a block."""
        return operations.release(lease.key, lease.token, new_uuid(), self._pace(until=until), ATTEMPTS_MAX)

    def renew_at_end(self, lease: Lease, ttl_seconds: int, until: float) -> Flow[Lease]:
        """The renewal on leaving a block whose lease is to be held on."""
        return operations.renew(lease, ttl_seconds, new_uuid(), self._pace(until=until), ATTEMPTS_MAX)

    def give_back(self, lease: Lease) -> Flow[None]:
        """The release of a lease whose caller was interrupted before taking it."""
        pace = Pace(self._now, min(self.timeout_seconds, operations.GIVE_UP_SECONDS_MAX))
        return operations.release(lease.key, lease.token, new_uuid(), pace, 1)

    def get(self, key: str, request_id: Uuid | None) -> Flow[LockState]:
        """The read."""
        return operations.get(checked_key(key), _request_id(request_id), self._pace())

    def view(self, key: str, request_id: Uuid | None) -> "Flow[LockView]":
        """The read that tells everything (SDK-15)."""
        from volcano_locks.protocol import lock_view  # noqa: PLC0415 - seldom needed

        return lock_view.view(checked_key(key), _request_id(request_id), self._pace())

    def pages(self, prefix: str, state: "State") -> "Callable[[str | None], Flow[Page]]":
        """The page that begins at a cursor (SDK-15)."""
        from volcano_locks.protocol import lock_view  # noqa: PLC0415 - seldom needed

        checked = lock_view.checked_prefix(prefix), lock_view.checked_state(state)
        return lambda cursor: lock_view.page(*checked, cursor, self._pace())

    def force_release(self, key: str, request_id: Uuid | None) -> Flow[None]:
        """Whoever holds it."""
        return operations.force_release(checked_key(key), _request_id(request_id), self._pace())

    def _pace(self, *, until: float = inf) -> Pace:
        return Pace(self._now, self.timeout_seconds, until)

    def _end_of(self, lease: Lease) -> float:
        """A renewal is worth waiting for until the lease's deadline; past it only the server can tell."""
        alive = lease.deadline is not None and lease.deadline > self._now()
        return lease.deadline if alive and lease.deadline is not None else inf


def checked_lease(key: object, lease: object) -> Lease:
    """`lease` if it is one of the lock `key`, else `TypeError` or `ValueError` (SDK-17)."""
    key = checked_key(key)
    if not isinstance(lease, Lease):
        raise TypeError(f"lease must be a Lease, which acquire and renew return, got {type(lease).__name__}")
    if lease.key != key:
        raise ValueError(f"lease must be one of the lock {key!r}, got a lease of {lease.key!r}; nothing was sent")
    return lease


def _request_id(request_id: Uuid | None) -> str:
    return new_uuid() if request_id is None else checked_uuid("request_id", request_id)
