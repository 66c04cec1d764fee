"""A subscriber: what it subscribes to, and a bounded queue of the events that it has not taken yet.

The hub adds events and never waits; the subscriber's own task takes them. A subscriber that is too slow for its queue
is ended, and may resume from the last id that it saw (EVENT-5).
"""

import asyncio
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from .event import LockEvent

QUEUE_MAX: Final = 4_096
TAKE_MAX: Final = 128  # a stream has a copy of the events it takes; queued ones are shared


@dataclass(slots=True, eq=False)
class NumberedEvent:
    """An event with its id in a project's feed. `event` is None for a reset: events before it may be missing."""

    id: str
    event: LockEvent | None
    at_ms: int
    why: str
    encoded: bytes | None = None  # its HTTP form, made by the first stream that sends it


class Subscriber:
    """Subscribes to one lock of a project (`key`), or to all whose keys begin with `prefix`; to the events of these
    `kinds`, None for all.

    `began_at` is the id to resume from if it took no event.
    """

    def __init__(
        self, project_id: str, *, key: str | None = None, prefix: str = "", kinds: Collection[str] | None = None
    ) -> None:
        self.project_id: Final = project_id
        self.key: Final = key
        self.prefix: Final = prefix
        self.kinds: Final = kinds
        self.began_at = ""
        self._queue: Final[deque[NumberedEvent]] = deque()
        self._awake: Final = asyncio.Event()
        self.ended = False

    def matches(self, event: LockEvent) -> bool:
        """Whether it subscribes to this event, of its own project."""
        if self.kinds is not None and event.kind not in self.kinds:
            return False
        key = event.lock.key
        return key == self.key if self.key is not None else key.startswith(self.prefix)

    def can_queue(self, count: int) -> bool:
        return len(self._queue) + count <= QUEUE_MAX

    def put(self, numbered: NumberedEvent, to_wake: "dict[Subscriber, None] | None" = None) -> None:
        """Queue an event of its lock if it has subscribed to that kind; if the queue is full, end the subscriber.

        With `to_wake`, it is added there, to be woken later.
        """
        if self.kinds is not None and numbered.event is not None and numbered.event.kind not in self.kinds:
            return
        if not self.can_queue(1):
            self.end()
        elif not self.ended:
            self._queue.append(numbered)
            if to_wake is None:
                self._awake.set()
            else:
                to_wake[self] = None

    def wake(self) -> None:
        """Let `take` return, with an empty list if no event is queued."""
        self._awake.set()

    def end(self) -> None:
        """No more events. Events not taken yet are dropped, so the ids that it took have no gap."""
        self.ended = True
        self._queue.clear()
        self._awake.set()

    async def take(self) -> list[NumberedEvent]:
        """Wait for events and return at most TAKE_MAX of them; none after `wake` or `end`."""
        await self._awake.wait()
        taken = [self._queue.popleft() for _ in range(min(len(self._queue), TAKE_MAX))]
        if not self._queue:
            self._awake.clear()
        return taken
