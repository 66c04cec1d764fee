"""The events of one watched project: those of late, by their ids, and who watches.

An id is `<epoch>-<number>`. The epoch is new with each channel, so an id of another node, of before a restart or of
before a pause in the watching is known as such; and one project's ids say nothing of another's.
"""

import re
import secrets
from collections import deque
from typing import Final

from .events import Happening
from .watchers import Told, Watcher

TOO_OLD: Final = "too_old"
UNKNOWN_ID: Final = "unknown_id"

_ID: Final = re.compile(r"([0-9a-f]{12})-(\d{1,16})", re.ASCII)


class Channel:
    """One project's. `since_ms` is when its watching began, `left_at_ms` when its last watcher left."""

    def __init__(self, now_ms: int) -> None:
        self.since_ms: Final = now_ms
        self.left_at_ms: int | None = None
        self.watchers: Final[set[Watcher]] = set()
        self._epoch: Final = secrets.token_hex(6)
        self._number = 0
        self._ring: Final[deque[Told]] = deque()
        self._gone = 0  # of those told, how many a reset forgot before there was no room

    @property
    def last_id(self) -> str:
        return f"{self._epoch}-{self._number}"

    def tell(self, happening: Happening) -> None:
        """Keep it, and give it to those who want it."""
        self._number += 1
        told = Told(self.last_id, happening, happening.at_ms, happening.why)
        self._ring.append(told)
        for watcher in self.watchers:
            if watcher.wants(happening):
                watcher.give(told)

    def reset(self, now_ms: int, why: str) -> None:
        """Some events may be missing: tell everybody, and keep none of those before."""
        self._number += 1
        self._gone += len(self._ring)
        self._ring.clear()
        told = Told(self.last_id, None, now_ms, why)
        for watcher in self.watchers:
            watcher.give(told)

    def drop_oldest(self) -> None:
        """Make room for one event, in the order in which they were told."""
        if self._gone:
            self._gone -= 1
        else:
            self._ring.popleft()

    def begin(self, watcher: Watcher, after: str | None, now_ms: int) -> None:
        """Let it watch from now on; with `after`, first what came since that id, or a reset where that is not known."""
        self.watchers.add(watcher)
        self.left_at_ms = None
        watcher.began_at = self.last_id
        if after is None:
            return
        found = _ID.fullmatch(after)
        if found is None or found[1] != self._epoch or int(found[2]) > self._number:
            watcher.give(Told(self.last_id, None, now_ms, UNKNOWN_ID))
            return
        missing = self._number - int(found[2])
        if missing > len(self._ring):
            watcher.give(Told(self.last_id, None, now_ms, TOO_OLD))
            return
        watcher.began_at = after
        for told in list(self._ring)[len(self._ring) - missing :]:
            if told.happening is not None and watcher.wants(told.happening):
                watcher.give(told)
