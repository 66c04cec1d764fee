"""One lock of the fake: the LEASE rules and its wait queue (WAIT rules), without HTTP and without a clock."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from volcano_locks.clock import Wakeup
from volcano_locks.errors import LOCK_HELD, LOCK_OWNERSHIP_LOST
from volcano_locks.protocol.arguments import TTL_SECONDS_MAX

MARGIN_SECONDS = 1.0
GRACE_SECONDS = 1.0
WAITER_KEPT_SECONDS = 5.0


class LockEvent(NamedTuple):
    """One change of a lock, as it is published."""

    kind: str
    fencing_token: int | None
    holder: str | None
    why: str
    expires_at: float | None = None
    reason: str | None = None


@dataclass(slots=True)
class FakeHold:
    """One hold of the fake's history. Instants are in seconds; `ended_at` is None while it lasts."""

    fencing_token: int
    holder: str | None
    began: str
    began_at: float
    expires_at: float
    renewals: int = 0
    renewed_at: float | None = None
    ended: str | None = None
    ended_at: float | None = None
    reason: str | None = None


class LeaseRequest(NamedTuple):
    """The token, TTL and holder of an acquire or a renewal."""

    token: str
    ttl_seconds: int
    holder: str | None

    def __repr__(self) -> str:
        return f"LeaseRequest({self.ttl_seconds}, {self.holder!r})"


class Waiter:
    """One queued acquire. `outcome` is the code for its request, or "" for a grant; None while it waits."""

    def __init__(self, request: LeaseRequest) -> None:
        self.request = request
        self.outcome: str | None = None
        self.kept_until: float | None = None
        self.wakeup: Wakeup | None = None

    def settle(self, outcome: str) -> None:
        """Set the outcome and wake the request."""
        self.outcome = outcome
        self.wake()

    def wake(self) -> None:
        """Make the request check its state again."""
        if self.wakeup is not None:
            self.wakeup.set()


@dataclass(slots=True)
class FakeLock:
    """One lock. Each call returns "" for success or the code of its error. Instants are in seconds."""

    key: str
    publish: Callable[[str, LockEvent], None]
    fencing_token: int = 0
    owner: str | None = field(default=None, repr=False)
    holder: str | None = None
    ttl_seconds: int = 0
    acquired_at: float = 0.0
    renewed_at: float = 0.0
    expires_at: float = 0.0
    history: list[FakeHold] = field(default_factory=list)
    _deadline: float = 0.0
    _now: float = 0.0  # of the last `process_due`, which precedes every call
    _lapsed_owner: str | None = field(default=None, repr=False)
    _retired: set[str] = field(default_factory=set, repr=False)
    _queue: list[Waiter] = field(default_factory=list)

    @property
    def waiters(self) -> int:
        """The number of requests that wait."""
        return sum(waiter.kept_until is None for waiter in self._queue)

    def process_due(self, now: float, utc_ms: int) -> None:
        """End a lease whose grace is over, and grant the lock to the next waiter."""
        self._now = now
        if self.owner is not None and now >= self.takeover_at:
            self._lapsed_owner, self.owner = self.owner, None
            self._end_hold("expired", self.takeover_at)
            self.publish(self.key, LockEvent("expired", self.fencing_token, self.holder, "not_renewed"))
        for waiter in [waiter for waiter in self._queue if waiter.kept_until is not None and waiter.kept_until <= now]:
            self._queue.remove(waiter)
            self.publish(self.key, LockEvent("gave_up", None, waiter.request.holder, "left"))
        for waiter in [waiter for waiter in self._queue if waiter.kept_until is None]:
            outcome = self._evaluate(waiter.request, now, utc_ms, "waited")
            if outcome == LOCK_HELD:
                return
            self._queue.remove(waiter)
            waiter.settle(outcome)

    @property
    def takeover_at(self) -> float:
        """When another holder may take over the current lease."""
        return self.expires_at + GRACE_SECONDS

    def acquire(self, request: LeaseRequest, now: float, utc_ms: int) -> str:
        """Acquire without waiting. Call `process_due` first, so that waiters get the lock earlier."""
        return self._evaluate(request, now, utc_ms, "free")

    def enqueue(self, request: LeaseRequest) -> Waiter:
        """Add a waiter at the end of the queue, or replace the one with the same token (WAIT-6)."""
        waiter = Waiter(request)
        for at, other in enumerate(self._queue):
            if other.request.token == request.token:
                other.settle(LOCK_HELD)
                self._queue[at] = waiter
                return waiter
        self._queue.append(waiter)
        self.publish(self.key, LockEvent("waiting", None, request.holder, "held"))
        return waiter

    def end_wait(self, waiter: Waiter, now: float) -> None:
        """The wait timed out: keep the waiter for a while."""
        waiter.kept_until = now + WAITER_KEPT_SECONDS

    def disconnect(self, waiter: Waiter) -> None:
        """The request was disconnected: remove its waiter, or revoke its grant (WAIT-5)."""
        if waiter in self._queue:
            self._queue.remove(waiter)
            self.publish(self.key, LockEvent("gave_up", None, waiter.request.holder, "left"))
        elif waiter.outcome == "" and self.owner == waiter.request.token:
            self.publish(self.key, LockEvent("released", self.fencing_token, self.holder, "given_back"))
            self._end_hold("released", self._now)
            self.owner = None  # the token is not retired: its owner may use it again

    def renew(self, request: LeaseRequest, now: float) -> str:
        """Renew the lease. Only its owner can, and only before the margin."""
        if self.owner != request.token or now >= self.expires_at - MARGIN_SECONDS:
            return LOCK_OWNERSHIP_LOST
        self._extend(request, now)
        hold = self.history[-1]
        hold.renewals, hold.renewed_at = hold.renewals + 1, now
        for waiter in self._queue:
            waiter.wake()  # the lease may end earlier now
        self.publish(self.key, LockEvent("renewed", self.fencing_token, self.holder, "renewed", self.expires_at))
        return ""

    def release(self, token: str) -> str:
        """Release the lock if this token owns it or it is free. Remove a waiter with this token (WAIT-5)."""
        for waiter in [waiter for waiter in self._queue if waiter.request.token == token]:
            self._queue.remove(waiter)
            waiter.settle(LOCK_OWNERSHIP_LOST)
            self.publish(self.key, LockEvent("gave_up", None, waiter.request.holder, "left"))
        if self.owner not in (None, token):
            return LOCK_OWNERSHIP_LOST
        self.free("released", token)
        return ""

    def free(self, why: str, retired: str | None, reason: str | None = None) -> None:
        """Free the lock, regardless of its holder, and retire the token."""
        retired = retired or self.owner or self._lapsed_owner
        if self.owner is not None:
            kind = "force_released" if why == "forced" else "released"
            self.publish(self.key, LockEvent(kind, self.fencing_token, self.holder, why, reason=reason))
            self._end_hold("forced" if why == "forced" else "released", self._now, reason)
        self.owner = None
        if retired is not None:
            self._retired.add(retired)

    def cancel_waiters(self) -> None:
        """Make all waiters retry elsewhere (WAIT-8)."""
        for waiter in self._queue:
            waiter.settle("lock_service_unavailable")
        self._queue.clear()

    def _evaluate(self, request: LeaseRequest, now: float, utc_ms: int, why: str) -> str:
        if self.owner == request.token:
            return self.renew(request, now)
        if self.owner is not None:
            return LOCK_HELD
        if request.token in self._retired:
            return LOCK_OWNERSHIP_LOST
        if why == "free" and self._lapsed_owner is not None:
            why = "taken_over"
        self.owner, self._lapsed_owner, self._retired = request.token, None, set()
        self.acquired_at, self._deadline = now, now + TTL_SECONDS_MAX
        self.fencing_token = max(self.fencing_token + 1, utc_ms)
        self._extend(request, now)
        self.history.append(FakeHold(self.fencing_token, self.holder, why, now, self.expires_at))
        self.publish(self.key, LockEvent("acquired", self.fencing_token, self.holder, why, self.expires_at))
        return ""

    def _extend(self, request: LeaseRequest, now: float) -> None:
        self.renewed_at, self.ttl_seconds, self.holder = now, request.ttl_seconds, request.holder
        self.expires_at = min(now + request.ttl_seconds, self._deadline)
        if self.history:
            self.history[-1].expires_at = self.expires_at

    def _end_hold(self, ended: str, at: float, reason: str | None = None) -> None:
        hold = self.history[-1]
        hold.ended, hold.ended_at, hold.reason = ended, at, reason
