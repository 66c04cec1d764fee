"""Leases that are watched, by when they are over: so that their end is told in time, and once.

Nothing is asked of the store when a lease runs out: what is known comes from its events, and from a list when the
watching begins. One timer of the clock stands for all. An instant of the store's clock is turned into one of this
node's by what is left of the lease at the event, so that the two need not agree.

Events of other nodes may come late. `note` says of each whether it is news: one that a newer one of the same lock has
overtaken is not, and an end is told once, whoever finds it first. At most LEASES_MAX leases are kept; of one beyond
them the end is told when the lock is taken over.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Final

from ..ports.clock import Clock, Timer
from ..ports.lock_store import RecordKey
from ..rules.lease import GRACE_MS, Held
from .event import Happening, expired

LEASES_MAX: Final = 100_000
ENDED_MAX: Final = 10_000
STALE_MAX: Final = 1_000


@dataclass(slots=True)
class _Lease:
    """`over_at_ms` is when its grace ends, on this node's clock; `queued_at_ms` is where it stands in the queue."""

    fencing_token: int
    holder: str | None
    expires_at_ms: int
    noted_at_ms: int
    over_at_ms: int = 0
    queued_at_ms: int = -1


class Expiries:
    """The watched leases. `over` is called with the event of each that ran out."""

    def __init__(self, clock: Clock, over: Callable[[Happening], None]) -> None:
        self._clock: Final = clock
        self._over: Final = over
        self._leases: Final[dict[RecordKey, _Lease]] = {}
        self._ended: Final[OrderedDict[RecordKey, int]] = OrderedDict()
        self._queue: list[tuple[int, RecordKey]] = []
        self._timer: Timer | None = None
        self._timer_at_ms = 0

    def __len__(self) -> int:
        return len(self._leases)

    def note(self, told: Happening, *, watched_since_ms: int) -> bool:
        """Take an event in; whether it is news to those who watch its lock since that instant of the store."""
        token = told.fencing_token
        if token is None:
            return True
        lease = self._leases.get(told.lock)
        newest = max(self._ended.get(told.lock, -1), -1 if lease is None else lease.fencing_token - 1)
        if token <= newest:
            return False
        if told.expires_at_ms is not None:
            if lease is not None and lease.fencing_token == token and told.at_ms < lease.noted_at_ms:
                return False
            self._keep(told.lock, _Lease(token, told.holder, told.expires_at_ms, told.at_ms))
            return True
        self._end(told.lock, token)
        known = lease is not None and lease.fencing_token == token
        return known or told.kind != "expired" or told.at_ms >= watched_since_ms

    def listed(self, lock: RecordKey, held: Held, now_ms: int) -> None:
        """Take in a lease as it was in the store at its `now_ms`, unless events said more."""
        lease = self._leases.get(lock)
        newest = self._ended.get(lock, -1) if lease is None else lease.fencing_token
        if held.fencing_token > newest or (lease is not None and lease.noted_at_ms < held.renewed_at_ms):
            self._keep(lock, _Lease(held.fencing_token, held.holder, held.expires_at_ms, now_ms))

    def forget(self, project_id: str) -> None:
        """Nobody watches that project any more."""
        for one in (self._leases, self._ended):
            for lock in [lock for lock in one if lock.project_id == project_id]:
                del one[lock]
        self._arm()

    def close(self) -> None:
        """Forget everything."""
        self._leases.clear()
        self._ended.clear()
        self._queue.clear()
        self._arm()

    def _keep(self, lock: RecordKey, new: _Lease) -> None:
        lease = self._leases.get(lock)
        if lease is None and len(self._leases) >= LEASES_MAX:
            return
        new.over_at_ms = self._clock.now_ms() + max(0, new.expires_at_ms + GRACE_MS - new.noted_at_ms)
        new.queued_at_ms = -1 if lease is None else lease.queued_at_ms
        self._leases[lock] = new
        if new.queued_at_ms == -1 or new.over_at_ms < new.queued_at_ms:
            new.queued_at_ms = new.over_at_ms
            self._enqueue(new.over_at_ms, lock)

    def _end(self, lock: RecordKey, token: int) -> None:
        self._leases.pop(lock, None)
        self._ended[lock] = token
        self._ended.move_to_end(lock)
        if len(self._ended) > ENDED_MAX:
            self._ended.popitem(last=False)

    def _enqueue(self, at_ms: int, lock: RecordKey) -> None:
        if len(self._queue) > 2 * len(self._leases) + STALE_MAX:  # leases that ended long before their expiry
            self._queue = [(lease.queued_at_ms, known) for known, lease in self._leases.items()]
            heapify(self._queue)
        else:
            heappush(self._queue, (at_ms, lock))
        self._arm()

    def _arm(self) -> None:
        """Let the one timer stand at the first of the queue."""
        if not self._leases:
            self._queue.clear()
        if self._timer is not None:
            if self._queue and self._queue[0][0] >= self._timer_at_ms:
                return  # it wakes too early at worst, and is set anew then
            self._timer.cancel()
            self._timer = None
        if self._queue:
            self._timer_at_ms = self._queue[0][0]
            self._timer = self._clock.call_in(self._timer_at_ms - self._clock.now_ms(), self._due)

    def _due(self) -> None:
        self._timer = None
        now_ms = self._clock.now_ms()
        while self._queue and self._queue[0][0] <= now_ms:
            queued_at_ms, lock = heappop(self._queue)
            lease = self._leases.get(lock)
            if lease is None or lease.queued_at_ms != queued_at_ms:
                continue
            if lease.over_at_ms > now_ms:  # renewed since
                lease.queued_at_ms = lease.over_at_ms
                heappush(self._queue, (lease.over_at_ms, lock))
                continue
            self._end(lock, lease.fencing_token)
            self._over(expired(lock, lease.fencing_token, lease.holder, lease.expires_at_ms))
        self._arm()
