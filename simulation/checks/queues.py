"""Checks what becomes of waiters: none is overtaken within its node, starves across nodes or is left at a free lock.

A waiter is in the queue from the call that enqueued it until its result is known. When a lease begins, every waiter of
that lock is compared with the request that got it.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from volcano_locks_server.ports.lock_store import RecordKey
from volcano_locks_server.queue.waiter import Waiter
from volcano_locks_server.rules.lease import Held

from ..world import World

OVERTAKEN_MAX: Final = 60
DISCONNECT_SECONDS: Final = 6.0  # a batch that was in flight at the disconnect has ended
UNSERVED_SECONDS: Final = 4.5  # two polls: after this, an undisturbed node has given a free lock to a waiter
TURN_SECONDS: Final = 2.6  # for as long a lock is left to a node that is listed in its record, but is gone
LISTED_SECONDS: Final = 120.0  # for as long a node that is gone may be listed
STARVED_SECONDS: Final = 20.0  # two polls, and a turn of each of the other nodes, with failures in between


@dataclass(slots=True, eq=False)
class _Waiting:
    node: str
    waiter: Waiter
    digest: bytes
    joined_at: float
    result: object
    overtaken: int = 0
    overtaken_since: float = 0.0
    is_served_elsewhere: bool = False

    @property
    def is_over(self) -> bool:
        return self.waiter.result is not self.result or self.waiter.result is None or self.waiter.result.done()


class Queues:
    def __init__(self, world: World) -> None:
        self._world: Final = world
        self._waiting: Final[dict[RecordKey, list[_Waiting]]] = {}
        self._arrived: Final[dict[tuple[str, RecordKey, bytes], float]] = {}
        self._disconnected: Final[dict[tuple[str, RecordKey, bytes], float]] = {}
        self._ended_at: Final[deque[float]] = deque()  # of processes, in the last LISTED_SECONDS

    def arrived(self, node: str, key: RecordKey, digest: bytes) -> None:
        """An acquire of that token reached the node."""
        self._arrived.setdefault((node, key, digest), self._world.now)
        self._disconnected.pop((node, key, digest), None)

    def disconnected(self, node: str, key: RecordKey, digest: bytes) -> None:
        """The node learned that the client of that acquire is gone."""
        self._disconnected[node, key, digest] = self._world.now

    def joined(self, node: str, key: RecordKey, waiter: Waiter) -> None:
        waiting = self._waiting.setdefault(key, [])
        digest = waiter.acquire.owner_digest
        waiting.append(_Waiting(node, waiter, digest, self._world.now, waiter.result))

    def process_ended(self, node: str) -> None:
        self._ended_at.append(self._world.now)
        for key, waiting in self._waiting.items():
            self._waiting[key] = [one for one in waiting if one.node != node]
        for by_request in (self._arrived, self._disconnected):
            for known in [known for known in by_request if known[0] == node]:
                del by_request[known]

    def check(
        self,
        held_by: dict[RecordKey, tuple[bytes, float]],
        calm_since: dict[str, float],
        free_for: Callable[[RecordKey], float],
    ) -> None:
        """Whether a waiter is left behind. `held_by`: owner and begin of a lease; `calm_since`: true time since which a
        node serves undisturbed; `free_for`: seconds for which a lock has been free.
        """
        now = self._world.now
        while self._ended_at and self._ended_at[0] <= now - LISTED_SECONDS:
            self._ended_at.popleft()
        unserved_seconds = UNSERVED_SECONDS + len(self._ended_at) * TURN_SECONDS
        for key, waiting in self._waiting.items():
            for one in waiting:
                calm = calm_since.get(one.node)
                if one.is_over or calm is None:
                    continue
                since = max(one.joined_at, calm)
                if min(now - since, free_for(key)) > unserved_seconds:
                    self._fail(
                        "unserved", key, f"{one.waiter.acquire.holder} waits at {one.node} for {key.key}, which is free"
                    )
                owner, held_at = held_by.get(key, (b"", now))
                if owner == one.digest and now - max(since, held_at) > unserved_seconds:
                    self._fail(
                        "own_lease",
                        key,
                        f"{one.waiter.acquire.holder} waits at {one.node} for {key.key}, which its own token holds",
                    )

    def lease_began(
        self,
        node: str,
        key: RecordKey,
        lease: Held,
        is_retired: Callable[[bytes], bool],
        takes_turns_since: dict[str, float],
    ) -> None:
        """The lock was granted by that node. `is_retired`: whether a token gets no lease any more (LEASE-11).

        `takes_turns_since`, by node: the end of its latest pause, or of its latest cut from the store. Until then it
        cannot grant a lock. Fairness is not checked for waiters of nodes that are not listed.
        """
        gone_at = self._disconnected.get((node, key, lease.owner_digest))
        if gone_at is not None and self._world.now - gone_at > DISCONNECT_SECONDS:
            self._fail(
                "granted_after_disconnect",
                key,
                f"{node} granted {key.key} to {lease.holder}, who disconnected at {gone_at:.3f}",
            )
        waiting = self._waiting.get(key)
        if not waiting:
            return
        waiting = self._waiting[key] = [one for one in waiting if not one.is_over]
        arrived_at = self._arrived.get((node, key, lease.owner_digest))
        if arrived_at is None:
            return
        for one in waiting:
            if one.digest == lease.owner_digest:
                one.is_served_elsewhere = one.node != node
                continue
            if one.joined_at >= arrived_at or one.is_served_elsewhere or is_retired(one.digest):
                continue
            if one.node == node:
                self._fail(
                    "overtaken",
                    key,
                    f"{node} granted {key.key} to {lease.holder}, whose request arrived at {arrived_at:.3f}, although "
                    f"{one.waiter.acquire.holder} has waited there since {one.joined_at:.3f}",
                    since=one.joined_at,
                )
            since = max(one.joined_at, takes_turns_since.get(one.node, self._world.now))
            if since > one.overtaken_since:
                one.overtaken, one.overtaken_since = 0, since
            one.overtaken += 1
            waited = self._world.now - since
            if one.overtaken > OVERTAKEN_MAX and waited > STARVED_SECONDS:
                self._fail(
                    "starved",
                    key,
                    f"{one.waiter.acquire.holder} has waited at {one.node} for {waited:.1f} s, while {key.key} was "
                    f"granted {one.overtaken} times to later requests at other nodes",
                    since=since,
                )

    def _fail(self, kind: str, key: RecordKey, message: str, since: float | None = None) -> None:
        self._world.violate(kind, message, key.key, since=since)
