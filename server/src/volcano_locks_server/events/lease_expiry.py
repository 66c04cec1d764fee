"""Publishes the end of each lease that subscribers follow, in time and only once (EVENT-3).

An expiry needs no query: leases are known from their events, and from a list when a feed begins. One timer serves
all of them. The expiry on this node's clock is computed from the time that the lease had left at its event, so the
clocks of node and store need not agree.

Events of peers may arrive late. `note` returns whether an event is news: no newer event of the same lock
arrived before it. An end is published once, when the first event reports it. At most LEASES_MAX leases are kept; the
end of a lease beyond them is published when the lock is taken over.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Final

from ..ports.clock import Clock, Timer
from ..ports.lock_store import RecordKey
from ..rules.lease import GRACE_MS, Held
from .event import LockEvent, expired_event

LEASES_MAX: Final = 100_000
ENDED_MAX: Final = 10_000
STALE_MAX: Final = 1_000


@dataclass(slots=True)
class _Lease:
    """`over_at_ms` is when its grace ends, on this node's clock; `queued_at_ms` is its current entry in the heap."""

    fencing_token: int
    holder: str | None
    expires_at_ms: int
    noted_at_ms: int
    over_at_ms: int = 0
    queued_at_ms: int = -1


class LeaseExpiries:
    """`on_expired` is called with the event of each lease that ended."""

    def __init__(self, clock: Clock, on_expired: Callable[[LockEvent], None]) -> None:
        self._clock: Final = clock
        self._on_expired: Final = on_expired
        self._leases: Final[dict[RecordKey, _Lease]] = {}
        self._ended: Final[OrderedDict[RecordKey, int]] = OrderedDict()
        self._heap: list[tuple[int, RecordKey]] = []
        self._timer: Timer | None = None
        self._timer_at_ms = 0

    def __len__(self) -> int:
        return len(self._leases)

    def note(self, event: LockEvent, *, since_ms: int) -> bool:
        """Record an event. Returns whether it is news to a feed that began at `since_ms` by the store's clock."""
        token = event.fencing_token
        if token is None:
            return True
        lease = self._leases.get(event.lock)
        newest = max(self._ended.get(event.lock, -1), -1 if lease is None else lease.fencing_token - 1)
        if token <= newest:
            return False
        if event.expires_at_ms is not None:
            if lease is not None and lease.fencing_token == token and event.at_ms < lease.noted_at_ms:
                return False
            self._keep(event.lock, _Lease(token, event.holder, event.expires_at_ms, event.at_ms))
            return True
        self._end(event.lock, token)
        known = lease is not None and lease.fencing_token == token
        return known or event.kind != "expired" or event.at_ms >= since_ms

    def note_listed(self, lock: RecordKey, held: Held, now_ms: int) -> None:
        """Record a lease as the store listed it at `now_ms`, unless an event is newer."""
        lease = self._leases.get(lock)
        newest = self._ended.get(lock, -1) if lease is None else lease.fencing_token
        if held.fencing_token > newest or (lease is not None and lease.noted_at_ms < held.renewed_at_ms):
            self._keep(lock, _Lease(held.fencing_token, held.holder, held.expires_at_ms, now_ms))

    def forget(self, project_id: str) -> None:
        """The feed of that project ended."""
        for by_lock in (self._leases, self._ended):
            for lock in [lock for lock in by_lock if lock.project_id == project_id]:
                del by_lock[lock]
        self._set_timer()

    def close(self) -> None:
        self._leases.clear()
        self._ended.clear()
        self._heap.clear()
        self._set_timer()

    def _keep(self, lock: RecordKey, new: _Lease) -> None:
        lease = self._leases.get(lock)
        if lease is None and len(self._leases) >= LEASES_MAX:
            return
        new.over_at_ms = self._clock.now_ms() + max(0, new.expires_at_ms + GRACE_MS - new.noted_at_ms)
        new.queued_at_ms = -1 if lease is None else lease.queued_at_ms
        self._leases[lock] = new
        if new.queued_at_ms == -1 or new.over_at_ms < new.queued_at_ms:
            new.queued_at_ms = new.over_at_ms
            self._push(new.over_at_ms, lock)

    def _end(self, lock: RecordKey, token: int) -> None:
        self._leases.pop(lock, None)
        self._ended[lock] = token
        self._ended.move_to_end(lock)
        if len(self._ended) > ENDED_MAX:
            self._ended.popitem(last=False)

    def _push(self, at_ms: int, lock: RecordKey) -> None:
        if len(self._heap) > 2 * len(self._leases) + STALE_MAX:  # entries of leases that ended before their expiry
            self._heap = [(lease.queued_at_ms, known) for known, lease in self._leases.items()]
            heapify(self._heap)
        else:
            heappush(self._heap, (at_ms, lock))
        self._set_timer()

    def _set_timer(self) -> None:
        """Set the one timer to the first entry of the heap."""
        if not self._leases:
            self._heap.clear()
        if self._timer is not None:
            if self._heap and self._heap[0][0] >= self._timer_at_ms:
                return  # at worst it fires too early, and is then set again
            self._timer.cancel()
            self._timer = None
        if self._heap:
            self._timer_at_ms = self._heap[0][0]
            self._timer = self._clock.call_in(self._timer_at_ms - self._clock.now_ms(), self._fire)

    def _fire(self) -> None:
        self._timer = None
        now_ms = self._clock.now_ms()
        while self._heap and self._heap[0][0] <= now_ms:
            queued_at_ms, lock = heappop(self._heap)
            lease = self._leases.get(lock)
            if lease is None or lease.queued_at_ms != queued_at_ms:
                continue
            if lease.over_at_ms > now_ms:  # renewed since
                lease.queued_at_ms = lease.over_at_ms
                heappush(self._heap, (lease.over_at_ms, lock))
                continue
            self._end(lock, lease.fencing_token)
            self._on_expired(expired_event(lock, lease.fencing_token, lease.holder, lease.expires_at_ms))
        self._set_timer()
