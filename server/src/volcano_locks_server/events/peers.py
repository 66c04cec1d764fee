"""Peers: the exchange of events, freed locks and queue lengths with the other nodes over the same store.

A node sends only what a peer wants, so nodes without subscribers and waiters are silent. It repeats its interest every
INTEREST_EVERY_MS and its queue lengths every QUEUE_LENGTHS_EVERY_MS; peers forget them after INTEREST_VALID_MS and
QUEUE_LENGTH_VALID_MS. A node that receives a new interest answers with `InterestAccepted`. The peer sent no events
before that answer, so the node that receives it rechecks its queues and resets its subscribers.

A node that crashes may have committed a change that it has not published. So peers reply to each repeated interest in
events. A peer that falls silent without a farewell is taken for dead, and the subscribers get a reset.

Delivery is best effort. So queues are also rechecked on a timer (WAIT-10), and subscribers get a `reset` when events
may be missing (EVENT-5).
"""

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from ..ports.clock import Clock, Timer
from ..ports.lock_store import RecordKey
from ..ports.signals import Signals
from .event import LockEvent
from .peer_messages import (
    EventMessage,
    Interest,
    InterestAccepted,
    LockFreed,
    Message,
    QueueLength,
    encode,
    event_of,
    lock_of,
    message_of,
    parse,
)
from .peer_state import PeerState, Wanted

INTEREST_EVERY_MS: Final = 10_000
QUEUE_LENGTHS_EVERY_MS: Final = 5_000
QUEUE_LENGTH_COALESCE_SECONDS: Final = 0.01
WAITS_KEPT_MS: Final = 60_000  # the interest in freed locks outlasts the last waiter by this
SETTLE_SECONDS: Final = 0.05
ECHO_SECONDS_MAX: Final = 1.0


class LocalQueues(Protocol):
    """The wait queues of this node."""

    def count(self, lock: RecordKey) -> int:
        """How many requests wait for that lock."""
        ...

    def keys(self) -> Iterable[RecordKey]:
        """The locks that requests wait for."""
        ...

    def recheck(self, lock: RecordKey) -> None:
        """That lock may have become free."""
        ...

    def recheck_all(self) -> None:
        """Any lock may have become free."""
        ...


class Peers:
    """`on_event` gets the events of peers; `on_missed` is called when some may be missing. `wanted` is what any peer
    wants to receive; `on_wanted` is called when it changes.
    """

    def __init__(
        self,
        signals: Signals,
        clock: Clock,
        queues: LocalQueues,
        *,
        on_event: Callable[[LockEvent], None],
        on_missed: Callable[[], None],
        on_wanted: Callable[[], None],
    ) -> None:
        self.node: Final = secrets.token_hex(6)
        self.wanted = Wanted()
        self._signals: Final = signals
        self._clock: Final = clock
        self._queues: Final = queues
        self._on_event: Final = on_event
        self._on_missed: Final = on_missed
        self._on_wanted: Final = on_wanted
        self._state: Final = PeerState(clock)
        self.waiters: Final = self._state.waiters
        self._subscribed = False
        self._waited_for: dict[RecordKey, None] = {}  # ordered, as `_changed`: messages have the order of their causes
        self._waits_until_ms = 0
        self._changed: Final[dict[RecordKey, None]] = {}
        self._flush_timer: asyncio.TimerHandle | None = None
        self._repeat_timer: Timer | None = None
        self._interest_sent_at_ms = 0
        self._settled: Final = asyncio.Event()
        self._settle_timer: asyncio.TimerHandle | None = None
        self._closed = False

    def start(self) -> None:
        self._signals.start(self._receive, self._missed)

    def close(self) -> None:
        """Withdraw what this node sent, so that peers need not wait until it expires."""
        if self._closed:
            return
        for lock in self._waited_for | self._changed:
            self._send(QueueLength(self.node, lock.project_id, str(lock.key), 0))
        if self._subscribed or self._wants_freed_here or self.wanted.events:
            self._send(Interest(self.node, events=False, freed=False, asks=False))
        self._closed = True
        for timer in (self._flush_timer, self._repeat_timer, self._settle_timer):
            if timer is not None:
                timer.cancel()

    # --- what this node wants ---

    def set_subscribed(self, subscribed: bool) -> None:
        """Whether this node has subscribers."""
        if subscribed != self._subscribed:
            self._subscribed = subscribed
            self._settled.clear()
            self._send_interest(asks=False)

    async def interest_settled(self) -> None:
        """Return when the peers most probably know what this node wants, or after ECHO_SECONDS_MAX."""
        if self._signals.working and not self._settled.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ECHO_SECONDS_MAX):
                    await self._settled.wait()

    def queue_changed(self, lock: RecordKey) -> None:
        """The wait queue of that lock on this node grew or shrank."""
        wanted_freed = self._wants_freed_here
        if self._queues.count(lock):
            self._waited_for[lock] = None
        else:
            self._waited_for.pop(lock, None)
        self._waits_until_ms = self._clock.now_ms() + WAITS_KEPT_MS
        if not wanted_freed:
            self._send_interest(asks=False)
        self._changed[lock] = None
        if self._flush_timer is None and not self._closed:
            loop = asyncio.get_running_loop()
            self._flush_timer = loop.call_later(QUEUE_LENGTH_COALESCE_SECONDS, self._send_changed)

    # --- what peers are sent ---

    def send_event(self, event: LockEvent) -> None:
        self._send(message_of(self.node, event))

    def send_freed(self, lock: RecordKey) -> None:
        self._send(LockFreed(self.node, lock.project_id, str(lock.key)))

    # --- sending ---

    @property
    def _wants_freed_here(self) -> bool:
        return bool(self._waited_for) or self._clock.now_ms() < self._waits_until_ms

    def _send(self, message: Message) -> None:
        if not self._closed:
            self._signals.publish(encode(message))

    def _send_interest(self, *, asks: bool) -> None:
        self._interest_sent_at_ms = self._clock.now_ms()
        self._send(Interest(self.node, self._subscribed, self._wants_freed_here, asks))
        self._set_repeat_timer()

    def _send_queue_length(self, lock: RecordKey) -> None:
        self._send(QueueLength(self.node, lock.project_id, str(lock.key), self._queues.count(lock)))

    def _send_changed(self) -> None:
        self._flush_timer = None
        for lock in self._changed:
            self._send_queue_length(lock)
        self._changed.clear()

    def _set_repeat_timer(self) -> None:
        """One timer, and only while there is something to repeat or to forget."""
        is_needed = self._subscribed or self._wants_freed_here or self._state
        if self._repeat_timer is None and not self._closed and is_needed:
            self._repeat_timer = self._clock.call_in(QUEUE_LENGTHS_EVERY_MS, self._repeat)

    def _repeat(self) -> None:
        self._repeat_timer = None
        now_ms = self._clock.now_ms()
        is_interested = self._subscribed or self._wants_freed_here
        if is_interested and now_ms - self._interest_sent_at_ms >= INTEREST_EVERY_MS:
            self._send_interest(asks=False)
        if self._state.forget_silent() and self._subscribed:
            self._on_missed()
        waited_for = dict.fromkeys(self._queues.keys())  # a request that rejoins a kept waiter reports no change
        for lock in self._waited_for | waited_for:
            self._send_queue_length(lock)
        self._waited_for = waited_for
        self._state.forget_expired()
        self._update_wanted()
        self._set_repeat_timer()

    # --- receiving ---

    def _missed(self) -> None:
        """Messages may be lost in either direction: recheck, ask for the peers' interest, and repeat this node's."""
        if self._closed:
            return
        self._send_interest(asks=True)
        self._queues.recheck_all()
        self._on_missed()

    def _receive(self, packed: bytes) -> None:
        message = parse(packed)
        if message is None or self._closed:
            return
        if message.node == self.node:
            if isinstance(message, Interest):
                self._receive_echo(message)
            return
        match message:
            case Interest():
                self._receive_interest(message)
            case InterestAccepted():
                self._receive_accepted(message)
            case QueueLength():
                self._state.note_queue_length(message)
                self._set_repeat_timer()
            case LockFreed():
                lock = lock_of(message)
                if lock is not None and self._queues.count(lock):
                    self._queues.recheck(lock)
            case EventMessage():
                event = event_of(message, self._clock.now_ms())
                if event is not None and self._subscribed:
                    self._on_event(event)

    def _receive_echo(self, sent: Interest) -> None:
        """This node's own interest came back, so its peers receive it about now."""
        if sent.events == self._subscribed and not self._settled.is_set() and self._settle_timer is None:
            self._settle_timer = asyncio.get_running_loop().call_later(SETTLE_SECONDS, self._settle)

    def _settle(self) -> None:
        self._settle_timer = None
        self._settled.set()
        self._queues.recheck_all()

    def _receive_accepted(self, accepted: InterestAccepted) -> None:
        if accepted.to != self.node:
            return
        self._state.note_reply(accepted.node)
        if accepted.freed:
            self._queues.recheck_all()
        if accepted.events and self._settled.is_set():
            self._on_missed()

    def _receive_interest(self, interest: Interest) -> None:
        new = self._state.note_interest(interest)
        self._update_wanted()
        if any(new) or interest.events:
            self._send(InterestAccepted(self.node, interest.node, new.events, new.freed))
        if not (interest.events or interest.freed or interest.asks):
            self._state.note_left(interest.node)
        if interest.asks and (self._subscribed or self._wants_freed_here):
            self._send_interest(asks=False)
        self._set_repeat_timer()

    def _update_wanted(self) -> None:
        wanted = self._state.wanted()
        if wanted != self.wanted:
            self.wanted = wanted
            self._on_wanted()
