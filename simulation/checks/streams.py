"""Checks event streams: events of a lock come in order, each end once, and a `reset` covers every gap.

Whenever a lease begins or ends in the store, each stream that is open owes its reader an event about that or a later
state of the lock, or a `reset`, within LATE_SECONDS of running time; within DEAD_SECONDS if the node died after it.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from volcano_locks_server.events import LockEvent, NumberedEvent
from volcano_locks_server.ports.lock_store import RecordKey

from ..world import World, shown_token

LATE_SECONDS: Final = 14.0  # a lost session is noticed, and a reset follows at most 10 seconds after another one

DEAD_SECONDS: Final = 55.0  # peers notice within 40 seconds that a node is gone

Rank = tuple[int, int, int]  # of a state of a lock: fencing token, whether the lease has ended, instant of a renewal


@dataclass(slots=True, eq=False)
class Stream:
    """One subscription, as its reader sees it."""

    name: str
    node: str
    project_id: str
    opened_at: float
    seen: dict[RecordKey, Rank] = field(default_factory=dict)
    reset_at: float = -1.0
    is_open: bool = True


class _Owed(NamedTuple):
    """What a stream owes its reader: an event about the state of that rank, which `node` committed at `at`, or a later
    one, or a reset.
    """

    at: float
    stream: Stream
    key: RecordKey
    rank: Rank
    node: str


class Streams:
    def __init__(self, world: World) -> None:
        self.open: Final[dict[Stream, None]] = {}
        self._world: Final = world
        self._owed: Final[deque[_Owed]] = deque()
        self._owed_by_dead: Final[deque[_Owed]] = deque()
        self._ended_at: Final[dict[str, float]] = {}

    def lease_changed(self, node: str, key: RecordKey, rank: Rank) -> None:
        """A lease began or ended in the store."""
        for stream in self.open:
            if stream.project_id == key.project_id:
                self._owed.append(_Owed(self._world.now, stream, key, rank, node))

    def process_ended(self, node: str) -> None:
        """What it has committed may not be published: its peers learn of that when it is back, or miss it."""
        self._ended_at[node] = self._world.now

    def opened(self, stream: Stream) -> None:
        self.open[stream] = None

    def closed(self, stream: Stream) -> None:
        stream.is_open = False
        self.open.pop(stream, None)

    def read(self, stream: Stream, numbered: NumberedEvent) -> None:
        event = numbered.event
        if event is None:
            self._world.note(stream.name, f"reads reset ({numbered.why})")
            stream.reset_at = self._world.now
            return
        if event.fencing_token is None:
            return
        self._world.note(
            stream.name, f"reads {event.kind} ({event.why}), {shown_token(event.fencing_token)}", event.lock.key
        )
        rank, seen = _rank(event), stream.seen.get(event.lock, (-1, 0, 0))
        if rank < seen or (rank == seen and event.kind not in ("renewed", "acquired")):
            self._fail(
                "event_order",
                event.lock,
                f"{stream.name} at {stream.node} read {event.kind}, {shown_token(event.fencing_token)}, after a later "
                f"event of {event.lock.key} ({shown_token(seen[0])}{', ended' if seen[1] else ''})",
            )
        stream.seen[event.lock] = rank

    def check(self, excused: "dict[str, float]") -> None:
        """Whether what is owed for LATE_SECONDS was read. `excused` by node: true time until which it may be late, or
        lose what it committed.
        """
        for queue, seconds in ((self._owed, LATE_SECONDS), (self._owed_by_dead, DEAD_SECONDS)):
            while queue and queue[0].at <= self._world.now - seconds:
                self._check_one(queue.popleft(), excused)

    def _check_one(self, owed: _Owed, excused: "dict[str, float]") -> None:
        at, stream, key, rank, node = owed
        is_late = max(excused.get(stream.node, 0.0), excused.get(node, 0.0)) >= at
        if not stream.is_open or is_late or stream.reset_at >= at or stream.seen.get(key, (-1, 0, 0)) >= rank:
            return
        if at <= self._ended_at.get(node, -1.0) <= at + LATE_SECONDS and self._world.now < at + DEAD_SECONDS:
            self._owed_by_dead.append(owed)
            return
        what = "end" if rank[1] else "beginning"
        self._fail(
            "event_missing",
            key,
            f"{stream.name} at {stream.node} has read no event about the {what} of the lease with "
            f"{shown_token(rank[0])} of {key.key}, which {node} committed at {at:.3f}, and no reset",
            since=at,
        )

    def _fail(self, kind: str, key: RecordKey, message: str, since: float | None = None) -> None:
        self._world.violate(kind, message, key.key, since=since)


def _rank(event: LockEvent) -> Rank:
    assert event.fencing_token is not None
    if event.expires_at_ms is None:
        return event.fencing_token, 1, 0
    return event.fencing_token, 0, event.at_ms
