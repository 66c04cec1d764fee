"""When a line is looked at again, though no command came for its lock.

Whoever is in line after a batch was judged is there because the lock was held at that instant. From then on it can
become free in four ways: a command of this node frees it (its batch serves the line), its time is over (a timer looks
again), another node frees it (`look` and `look_all`, called by whoever hears of it, and where there are other nodes a
look every `every_ms`), or a batch that failed did it after all (a look soon). To look is to send a command that changes
nothing through the batches.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

from ..ports.clock import Clock, Timer
from ..ports.lock_store import RecordKey
from ..rules.errors import StoreUnavailableError
from ..rules.lease import Outcome, Read
from .handoff import Asked
from .undelivered import RETRY_MS_MAX, Ask
from .waiter import Line

LOOK_SECONDS_MAX: Final = 2


class Looking:
    """The looks at one node's lines. `stop` ends their timers, and no look begins any more.

    `every_ms`: look at every line that often, for the sake of other nodes; None where there are none.
    """

    def __init__(self, clock: Clock, lines: Mapping[RecordKey, Line], *, every_ms: int | None) -> None:
        self._clock: Final = clock
        self._lines: Final = lines
        self._every_ms: Final = every_ms
        self._every: Timer | None = None
        self._stopped = False
        self._ask: Ask

    def begin(self, ask: Ask) -> None:
        """Send commands by `ask` from now on."""
        self._ask = ask

    def stop(self) -> None:
        self._stopped = True
        if self._every is not None:
            self._every.cancel()
        for line in self._lines.values():
            line.cancel_timers()

    def look(self, key: RecordKey) -> None:
        """The lock may have become free: serve its line, if it has one."""
        line = self._lines.get(key)
        if line is None or not line.present or line.looking or self._stopped:
            return
        line.looking = True
        try:
            asked = self._ask(key, Asked(Read()))
        except StoreUnavailableError:
            line.looking = False
            self.soon(key, line)
        else:
            asked.add_done_callback(lambda done: self._looked(key, done))

    def look_all(self) -> None:
        """Any lock may have become free: serve all lines."""
        for key in list(self._lines):
            self.look(key)

    def soon(self, key: RecordKey, line: Line) -> None:
        """Look at a line soon, less soon each time (WAIT-9)."""
        if line.retry is not None or self._stopped:
            return

        def again() -> None:
            line.retry = None
            self.look(key)

        line.retry = self._clock.call_in(line.retry_ms, again)
        line.retry_ms = min(RETRY_MS_MAX, line.retry_ms * 2)

    def at(self, key: RecordKey, line: Line, free_at_ms: int) -> None:
        """Look when the lock's lease and grace are over. A renewal moves only the instant; the timer sees it then."""
        due_before = line.free_at_ms
        line.free_at_ms = free_at_ms
        if self._stopped or (line.timer is not None and due_before <= free_at_ms):
            return
        if line.timer is not None:
            line.timer.cancel()
        line.timer = self._clock.call_in(free_at_ms - self._clock.now_ms(), lambda: self._due(key, line))

    def now_and_then(self) -> None:
        """Look at all lines every now and then, for as long as there are some."""
        if self._every_ms is not None and self._every is None and not self._stopped:
            self._every = self._clock.call_in(self._every_ms, self._again)

    def _again(self) -> None:
        self._every = None
        self.look_all()
        if self._lines:
            self.now_and_then()

    def _looked(self, key: RecordKey, done: "asyncio.Future[Outcome | None]") -> None:
        if done.cancelled() or done.exception() is None:
            return
        line = self._lines.get(key)
        if line is not None:
            line.looking = False
            self.soon(key, line)

    def _due(self, key: RecordKey, line: Line) -> None:
        line.timer = None
        if self._clock.now_ms() >= line.free_at_ms:
            self.look(key)
        else:
            self.at(key, line, line.free_at_ms)
