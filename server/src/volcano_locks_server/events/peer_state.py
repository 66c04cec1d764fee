"""What the peers want to receive and how many requests wait there. An entry expires unless its peer repeats it."""

from typing import Final, NamedTuple

from ..ports.clock import Clock
from ..ports.lock_store import RecordKey
from .peer_messages import Interest, QueueLength, lock_of

INTEREST_VALID_MS: Final = 30_000
QUEUE_LENGTH_VALID_MS: Final = 12_000
PEERS_MAX: Final = 1_000
PEER_QUEUES_MAX: Final = 100_000


class Wanted(NamedTuple):
    """Whether events, and freed locks, are wanted."""

    events: bool = False
    freed: bool = False


class _PeerInterest(NamedTuple):
    wanted: Wanted
    until_ms: int


class _PeerQueue(NamedTuple):
    waiters: int
    until_ms: int


class PeerState:
    """At most PEERS_MAX interests and the queues of PEER_QUEUES_MAX locks."""

    def __init__(self, clock: Clock) -> None:
        self._clock: Final = clock
        self._interests: Final[dict[str, _PeerInterest]] = {}
        self._queues: Final[dict[RecordKey, dict[str, _PeerQueue]]] = {}

    def __bool__(self) -> bool:
        """Whether anything is known."""
        return bool(self._interests or self._queues)

    def wanted(self) -> Wanted:
        """What any of the peers wants."""
        interests = self._interests.values()
        return Wanted(any(one.wanted.events for one in interests), any(one.wanted.freed for one in interests))

    def waiters(self, lock: RecordKey) -> int:
        """How many requests wait for that lock on other nodes, by their latest messages."""
        queues = self._queues.get(lock)
        if queues is None:
            return 0
        now_ms = self._clock.now_ms()
        return sum(queue.waiters for queue in queues.values() if now_ms < queue.until_ms)

    def note_interest(self, message: Interest) -> Wanted:
        """Record an interest. Returns what is new in it."""
        known = self._interests.get(message.node)
        if message.events or message.freed:
            if known is not None or len(self._interests) < PEERS_MAX:
                until_ms = self._clock.now_ms() + INTEREST_VALID_MS
                self._interests[message.node] = _PeerInterest(Wanted(message.events, message.freed), until_ms)
        else:
            self._interests.pop(message.node, None)
        before = Wanted() if known is None else known.wanted
        return Wanted(message.events and not before.events, message.freed and not before.freed)

    def note_queue_length(self, message: QueueLength) -> None:
        lock = lock_of(message)
        if lock is None:
            return
        queues = self._queues.get(lock)
        if message.waiters <= 0:
            if queues is not None:
                queues.pop(message.node, None)
                if not queues:
                    del self._queues[lock]
            return
        if queues is None:
            if len(self._queues) >= PEER_QUEUES_MAX:
                return
            queues = self._queues[lock] = {}
        queues[message.node] = _PeerQueue(message.waiters, self._clock.now_ms() + QUEUE_LENGTH_VALID_MS)

    def forget_expired(self) -> None:
        now_ms = self._clock.now_ms()
        for node in [node for node, interest in self._interests.items() if now_ms >= interest.until_ms]:
            del self._interests[node]
        for lock, queues in list(self._queues.items()):
            for node in [node for node, queue in queues.items() if now_ms >= queue.until_ms]:
                del queues[node]
            if not queues:
                del self._queues[lock]
