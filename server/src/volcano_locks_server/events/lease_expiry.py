"""Publishes the end of each lease that subscribers follow, in time and only once (EVENT-3).

An expiry needs no query: leases are known from their events, and from a list when a feed begins. One timer serves
all of them. The expiry on this node's clock is computed from the time that the lease had left at its event, so the
clocks of node and store need not agree.

Events of peers may arrive late. `note` returns whether an event is news: no newer event of the same lock
arrived before it. An end is published once, when the first event reports it. The leases that are kept are bounded by a
budget and each project's share of it; the end of another one is published when the lock is taken over (EVENT-9).
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Final

from ..ports.clock import Clock, Timer
from ..ports.lock_store import RecordKey
from ..rules.lease import GRACE_MS, Held, free_in_ms
from ..rules.shares import Budget
from .event import LockEvent, expired_event

STALE_MAX: Final = 1_000


@dataclass(slots=True)
class _Lease:
    """`over_at_ms` is when it stops to block others, on this node's clock; `queued_at_ms` is its entry in the heap."""

    fencing_token: int
    holder: str | None
    expires_at_ms: int
    noted_at_ms: int
    over_at_ms: int = 0
    queued_at_ms: int = -1


class LeaseExpiries:
    """`on_expired` is called with the event of each lease that ended, `on_unwatched` with the project of a lease that
    is not kept. `watched` counts the leases that are kept, `ended` the tokens of those that ended last.
    """

    def __init__(
        self,
        clock: Clock,
        watched: Budget,
        ended: Budget,
        *,
        on_expired: Callable[[LockEvent], None],
        on_unwatched: Callable[[str], None],
    ) -> None:
        self._clock: Final = clock
        self._watched: Final = watched
        self._ended_budget: Final = ended
        self._on_expired: Final = on_expired
        self._on_unwatched: Final = on_unwatched
        self._leases: Final[dict[RecordKey, _Lease]] = {}
        self._ended: Final[dict[str, OrderedDict[RecordKey, int]]] = {}  # by project
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
        newest = max(self._ended_token(event.lock), -1 if lease is None else lease.fencing_token - 1)
        if token <= newest:
            return False
        if event.expires_at_ms is not None:
            if lease is not None and lease.fencing_token == token and event.at_ms < lease.noted_at_ms:
                return False
            left_ms = event.expires_at_ms + GRACE_MS - event.at_ms
            self._keep(event.lock, _Lease(token, event.holder, event.expires_at_ms, event.at_ms), left_ms)
            return True
        self._end(event.lock, token)
        known = lease is not None and lease.fencing_token == token
        return known or event.kind != "expired" or event.at_ms >= since_ms

    def note_listed(self, lock: RecordKey, held: Held, now_ms: int) -> None:
        """Record a lease as the store listed it at `now_ms`, unless an event is newer."""
        lease = self._leases.get(lock)
        newest = self._ended_token(lock) if lease is None else lease.fencing_token
        if held.fencing_token > newest or (lease is not None and lease.noted_at_ms < held.renewed_at_ms):
            new = _Lease(held.fencing_token, held.holder, held.expires_at_ms, now_ms)
            self._keep(lock, new, free_in_ms(held, now_ms))

    def forget(self, project_id: str) -> None:
        """The feed of that project ended."""
        for lock in [lock for lock in self._leases if lock.project_id == project_id]:
            del self._leases[lock]
        self._watched.give_back(project_id, self._watched.used_by(project_id))
        self._ended_budget.give_back(project_id, len(self._ended.pop(project_id, ())))
        self._set_timer()

    def close(self) -> None:
        self._leases.clear()
        self._ended.clear()
        self._watched.clear()
        self._ended_budget.clear()
        self._heap.clear()
        self._set_timer()

    def _keep(self, lock: RecordKey, new: _Lease, left_ms: int) -> None:
        """Keep a lease that blocks others for `left_ms`."""
        lease = self._leases.get(lock)
        if lease is None and self._watched.take(lock.project_id) is not None:
            self._on_unwatched(lock.project_id)
            return
        new.over_at_ms = self._clock.now_ms() + max(0, left_ms)
        new.queued_at_ms = -1 if lease is None else lease.queued_at_ms
        self._leases[lock] = new
        if new.queued_at_ms == -1 or new.over_at_ms < new.queued_at_ms:
            new.queued_at_ms = new.over_at_ms
            self._push(new.over_at_ms, lock)

    def _end(self, lock: RecordKey, token: int) -> None:
        project_id = lock.project_id
        if self._leases.pop(lock, None) is not None:
            self._watched.give_back(project_id)
        ended = self._ended.setdefault(project_id, OrderedDict())
        if lock in ended:
            ended.move_to_end(lock)
        else:
            while (displaced := self._ended_budget.displaced(project_id)) is not None:
                self._ended[displaced].popitem(last=False)
                self._ended_budget.give_back(displaced)
            self._ended_budget.add(project_id)
        ended[lock] = token

    def _ended_token(self, lock: RecordKey) -> int:
        """The fencing token of the last lease that ended, -1 if unknown."""
        ended = self._ended.get(lock.project_id)
        return -1 if ended is None else ended.get(lock, -1)

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
