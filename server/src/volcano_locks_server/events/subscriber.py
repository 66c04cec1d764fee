"""One watcher's side of the events: what it asked for, and a bounded queue of what it was not yet given.

The hub puts events in and never waits; the watcher's own task takes them out. A watcher that is too slow for its
queue is ended, and may resume from the id it saw last (EVENT-5).
"""

import asyncio
from collections import deque
from typing import Final

from .event import Happening

QUEUE_MAX: Final = 4_096
TAKE_MAX: Final = 128  # what is taken is written out for its stream alone; what waits is shared by all


class Told:
    """An event as watchers are given it, with its id. None happened where some may be missing: a reset."""

    __slots__ = ("at_ms", "happening", "id", "shown", "why")

    def __init__(self, id_: str, happening: Happening | None, at_ms: int, why: str) -> None:
        self.id: Final = id_
        self.happening: Final = happening
        self.at_ms: Final = at_ms
        self.why: Final = why
        self.shown: bytes | None = None  # as it goes over the wire: made once for all watchers, by the door


class Watcher:
    """Watches one lock of a project (`key`), or all whose keys begin with `prefix`.

    `began_at` is the id from which a watcher that was given nothing else can resume.
    """

    def __init__(self, project_id: str, *, key: str | None = None, prefix: str = "") -> None:
        self.project_id: Final = project_id
        self.key: Final = key
        self.prefix: Final = prefix
        self.began_at = ""
        self._queue: Final[deque[Told]] = deque()
        self._awake: Final = asyncio.Event()
        self.ended = False

    def wants(self, happening: Happening) -> bool:
        """Whether it is of what this watches, in the watcher's project."""
        key = happening.lock.key
        return key == self.key if self.key is not None else key.startswith(self.prefix)

    def has_room_for(self, count: int) -> bool:
        """Whether it may be given so many events now."""
        return len(self._queue) + count <= QUEUE_MAX

    def give(self, told: Told) -> None:
        """Put an event in the queue; one too many ends the watcher."""
        if not self.has_room_for(1):
            self.end()
        elif not self.ended:
            self._queue.append(told)
            self._awake.set()

    def poke(self) -> None:
        """Wake `take`, with nothing where there is nothing."""
        self._awake.set()

    def end(self) -> None:
        """No more events; those not yet taken are dropped, so that ids stay without a gap."""
        self.ended = True
        self._queue.clear()
        self._awake.set()

    async def take(self) -> list[Told]:
        """What is there, as soon as there is something, TAKE_MAX at the most; nothing when poked, or at the end
        (`ended`).
        """
        await self._awake.wait()
        taken = [self._queue.popleft() for _ in range(min(len(self._queue), TAKE_MAX))]
        if not self._queue:
            self._awake.clear()
        return taken
