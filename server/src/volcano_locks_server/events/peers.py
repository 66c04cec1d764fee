"""The other nodes: what they want to hear, how many wait with them, and what they are told.

A node speaks only of what somebody wants to hear, so that nodes without watchers and lines stay silent. Interest is
said again every HEAR_EVERY_MS and forgotten after HEARD_FOR_MS, lengths of lines every LINES_EVERY_MS and after
LINE_FOR_MS. A node that learns of an interest answers with `Telling`: whoever hears that knows that there was something
before which it was not told, and looks.

What is not promised: that a message arrives. So a line also looks by itself now and then (WAIT-10), and watchers are
told `reset` where events may be missing (EVENT-5).
"""

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from ..ports.clock import Clock, Timer
from ..ports.lock_store import RecordKey
from ..ports.signals import Signals
from .event import Happening
from .peer_messages import Event, Freed, Hear, Line, Telling, encode, event_of, happening_of, lock_of, read

HEAR_EVERY_MS: Final = 10_000
HEARD_FOR_MS: Final = 30_000
LINES_EVERY_MS: Final = 5_000
LINE_FOR_MS: Final = 12_000
LINE_COALESCE_SECONDS: Final = 0.01
WAITS_KEPT_MS: Final = 60_000
NODES_MAX: Final = 1_000
LINES_HEARD_MAX: Final = 100_000
SETTLE_SECONDS: Final = 0.05
ECHO_SECONDS_MAX: Final = 1.0


class Lines(Protocol):
    """The lines of this node."""

    def count(self, lock: RecordKey) -> int:
        """How many wait here for that lock."""
        ...

    def keys(self) -> Iterable[RecordKey]:
        """The locks that somebody waits for here."""
        ...

    def look(self, lock: RecordKey) -> None:
        """That lock may be free: let the first in its line, if there is one, try."""
        ...

    def look_all(self) -> None:
        """Any lock may be free."""
        ...


class Neighbours:
    """The other nodes over the same store, by `signals`.

    `on_event` gets their events, `on_missed` is called where some may be missing, `on_wants` when `wants_events` or
    `wants_freed` changed.
    """

    def __init__(
        self,
        signals: Signals,
        clock: Clock,
        lines: Lines,
        *,
        on_event: Callable[[Happening], None],
        on_missed: Callable[[], None],
        on_wants: Callable[[], None],
    ) -> None:
        self.node: Final = secrets.token_hex(6)
        self.wants_events = False
        self.wants_freed = False
        self._signals: Final = signals
        self._clock: Final = clock
        self._lines: Final = lines
        self._on_event: Final = on_event
        self._on_missed: Final = on_missed
        self._on_wants: Final = on_wants
        self._wants: Final[dict[str, tuple[bool, bool, int]]] = {}
        self._others: Final[dict[RecordKey, dict[str, tuple[int, int]]]] = {}
        self._watches = False
        self._mine: set[RecordKey] = set()
        self._waits_until_ms = 0
        self._changed: Final[set[RecordKey]] = set()
        self._flush: asyncio.TimerHandle | None = None
        self._beat: Timer | None = None
        self._heard_at_ms = 0
        self._settled: Final = asyncio.Event()
        self._settling: asyncio.TimerHandle | None = None
        self._closed = False

    def start(self) -> None:
        self._signals.start(self._heard, self._missed)

    def close(self) -> None:
        """Say goodbye, so that the others need not wait for the silence."""
        if self._closed:
            return
        for lock in self._mine | self._changed:
            self._say(Line(self.node, lock.project_id, str(lock.key), 0))
        if self._watches or self._waits:
            self._say(Hear(self.node, watches=False, waits=False, asks=False))
        self._closed = True
        for timer in (self._flush, self._beat, self._settling):
            if timer is not None:
                timer.cancel()

    # --- what this node wants ---

    def watch(self, watches: bool) -> None:
        """Whether somebody watches on this node."""
        if watches != self._watches:
            self._watches = watches
            self._settled.clear()
            self._say_hear(asks=False)

    async def heard_by_all(self) -> None:
        """Return when the others most probably know what this node wants, or after ECHO_SECONDS_MAX."""
        if self._signals.working and not self._settled.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ECHO_SECONDS_MAX):
                    await self._settled.wait()

    def line_changed(self, lock: RecordKey) -> None:
        """The line of that lock on this node became longer or shorter."""
        waits = self._waits
        if self._lines.count(lock):
            self._mine.add(lock)
        else:
            self._mine.discard(lock)
        self._waits_until_ms = self._clock.now_ms() + WAITS_KEPT_MS
        if not waits:
            self._say_hear(asks=False)
        self._changed.add(lock)
        if self._flush is None and not self._closed:
            self._flush = asyncio.get_running_loop().call_later(LINE_COALESCE_SECONDS, self._say_changed)

    # --- what the others are told ---

    def tell_event(self, told: Happening) -> None:
        self._say(event_of(self.node, told))

    def tell_freed(self, lock: RecordKey) -> None:
        self._say(Freed(self.node, lock.project_id, str(lock.key)))

    # --- what is known of the others ---

    def waiters(self, lock: RecordKey) -> int:
        """How many wait for that lock on other nodes, as far as they said lately."""
        lines = self._others.get(lock)
        if lines is None:
            return 0
        now_ms = self._clock.now_ms()
        return sum(count for count, until_ms in lines.values() if now_ms < until_ms)

    # --- inside ---

    @property
    def _waits(self) -> bool:
        return bool(self._mine) or self._clock.now_ms() < self._waits_until_ms

    def _say(self, message: Hear | Telling | Line | Freed | Event) -> None:
        if not self._closed:
            self._signals.tell(encode(message))

    def _say_hear(self, *, asks: bool) -> None:
        self._heard_at_ms = self._clock.now_ms()
        self._say(Hear(self.node, self._watches, self._waits, asks))
        self._set_beat()

    def _say_changed(self) -> None:
        self._flush = None
        for lock in self._changed:
            self._say(Line(self.node, lock.project_id, str(lock.key), self._lines.count(lock)))
        self._changed.clear()

    def _set_beat(self) -> None:
        """One timer, and only while there is something to say or to forget."""
        if self._beat is None and not self._closed and (self._watches or self._waits or self._wants or self._others):
            self._beat = self._clock.call_in(LINES_EVERY_MS, self._on_beat)

    def _on_beat(self) -> None:
        self._beat = None
        now_ms = self._clock.now_ms()
        if (self._watches or self._waits) and now_ms - self._heard_at_ms >= HEAR_EVERY_MS:
            self._say_hear(asks=False)
        waited_for = set(self._lines.keys())  # also by who came back to a kept place, of which nobody told
        for lock in self._mine | waited_for:
            self._say(Line(self.node, lock.project_id, str(lock.key), self._lines.count(lock)))
        self._mine = waited_for
        for node in [node for node, (_, _, until_ms) in self._wants.items() if now_ms >= until_ms]:
            del self._wants[node]
        for lock, lines in list(self._others.items()):
            for node in [node for node, (_, until_ms) in lines.items() if now_ms >= until_ms]:
                del lines[node]
            if not lines:
                del self._others[lock]
        self._sum_up()
        self._set_beat()

    def _missed(self) -> None:
        """Something may have been lost in either direction: look, ask what the others want, and say what we do."""
        if self._closed:
            return
        self._say_hear(asks=True)
        self._lines.look_all()
        self._on_missed()

    def _heard(self, message: bytes) -> None:
        said = read(message)
        if said is None or self._closed:
            return
        if said.node == self.node:
            if isinstance(said, Hear):
                self._echoed(said)
            return
        match said:
            case Hear():
                self._hear(said)
            case Telling():
                self._told_from_now_on(said)
            case Line():
                self._line(said)
            case Freed():
                lock = lock_of(said)
                if lock is not None and self._lines.count(lock):
                    self._lines.look(lock)
            case Event():
                told = happening_of(said)
                if told is not None and self._watches:
                    self._on_event(told)

    def _echoed(self, said: Hear) -> None:
        """What this node said came back to it, so the others hear it about now."""
        if said.watches == self._watches and not self._settled.is_set() and self._settling is None:
            self._settling = asyncio.get_running_loop().call_later(SETTLE_SECONDS, self._settle)

    def _settle(self) -> None:
        self._settling = None
        self._settled.set()
        self._lines.look_all()

    def _told_from_now_on(self, said: Telling) -> None:
        if said.to == self.node and said.freed:
            self._lines.look_all()
        if said.to == self.node and said.events and self._settled.is_set():
            self._on_missed()

    def _hear(self, said: Hear) -> None:
        watched, waited, _ = self._wants.get(said.node, (False, False, 0))
        if said.watches or said.waits:
            if said.node in self._wants or len(self._wants) < NODES_MAX:
                self._wants[said.node] = said.watches, said.waits, self._clock.now_ms() + HEARD_FOR_MS
        else:
            self._wants.pop(said.node, None)
        self._sum_up()
        events, freed = said.watches and not watched, said.waits and not waited
        if events or freed:
            self._say(Telling(self.node, said.node, events, freed))
        if said.asks and (self._watches or self._waits):
            self._say_hear(asks=False)
        self._set_beat()

    def _line(self, said: Line) -> None:
        lock = lock_of(said)
        if lock is None:
            return
        lines = self._others.get(lock)
        if said.waiters <= 0:
            if lines is not None:
                lines.pop(said.node, None)
                if not lines:
                    del self._others[lock]
            return
        if lines is None:
            if len(self._others) >= LINES_HEARD_MAX:
                return
            lines = self._others[lock] = {}
        lines[said.node] = said.waiters, self._clock.now_ms() + LINE_FOR_MS
        self._set_beat()

    def _sum_up(self) -> None:
        wants_events = any(watches for watches, _, _ in self._wants.values())
        wants_freed = any(waits for _, waits, _ in self._wants.values())
        if (wants_events, wants_freed) != (self.wants_events, self.wants_freed):
            self.wants_events, self.wants_freed = wants_events, wants_freed
            self._on_wants()
