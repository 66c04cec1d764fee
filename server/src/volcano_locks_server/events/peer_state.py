"""What the peers want to receive and how many requests wait there. An entry expires unless its peer repeats it."""

from typing import Final, NamedTuple

from ..ports.clock import Clock
from ..ports.lock_store import RecordKey
from .peer_messages import Interest, QueueLength, lock_of

INTEREST_VALID_MS: Final = 30_000
QUEUE_LENGTH_VALID_MS: Final = 12_000
SILENT_MS: Final = 25_000  # two interests without a reply, and some time for the messages
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
    """At most PEERS_MAX interests and PEER_QUEUES_MAX queues; further ones are ignored (EVENT-8)."""

    def __init__(self, clock: Clock) -> None:
        self._clock: Final = clock
        self._interests: Final[dict[str, _PeerInterest]] = {}
        self._queues: Final[dict[RecordKey, dict[str, _PeerQueue]]] = {}
        self._queue_count = 0
        self._replied_at_ms: Final[dict[str, int]] = {}  # of peers that replied to this node's interest

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

    def note_reply(self, node: str) -> None:
        """That peer replied to this node's interest, and will reply to the next one too."""
        if node in self._replied_at_ms or len(self._replied_at_ms) < PEERS_MAX:
            self._replied_at_ms[node] = self._clock.now_ms()

    def note_left(self, node: str) -> None:
        """That peer stopped, or owes no reply any more."""
        self._replied_at_ms.pop(node, None)

    def forget_silent(self) -> bool:
        """Forget the peers that have not replied for SILENT_MS. Returns whether there was one."""
        since_ms = self._clock.now_ms() - SILENT_MS
        silent = [node for node, replied_at_ms in self._replied_at_ms.items() if replied_at_ms < since_ms]
        for node in silent:
            del self._replied_at_ms[node]
        return bool(silent)

    def note_queue_length(self, message: QueueLength) -> None:
        lock = lock_of(message)
        if lock is None:
            return
        if message.waiters == 0:
            self._forget_queue(lock, message.node)
            return
        is_known = message.node in self._queues.get(lock, ())
        if not is_known and self._queue_count >= PEER_QUEUES_MAX:
            return
        self._queue_count += not is_known
        until_ms = self._clock.now_ms() + QUEUE_LENGTH_VALID_MS
        self._queues.setdefault(lock, {})[message.node] = _PeerQueue(message.waiters, until_ms)

    def forget_expired(self) -> None:
        now_ms = self._clock.now_ms()
        for node in [node for node, interest in self._interests.items() if now_ms >= interest.until_ms]:
            del self._interests[node]
        for lock, queues in list(self._queues.items()):
            for node in [node for node, queue in queues.items() if now_ms >= queue.until_ms]:
                self._forget_queue(lock, node)

    def _forget_queue(self, lock: RecordKey, node: str) -> None:
        queues = self._queues.get(lock)
        if queues is not None and queues.pop(node, None) is not None:
            self._queue_count -= 1
            if not queues:
                del self._queues[lock]
