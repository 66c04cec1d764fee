"""The events of one watched project: those of late, by their ids, and who watches.

An id is `<epoch>-<number>`. The epoch is new with each channel, so an id of another node, of before a restart or of
before a pause in the watching is known as such; and one project's ids say nothing of another's.
"""

import re
import secrets
from collections import deque
from typing import Final

from .event import Happening
from .subscriber import Told, Watcher

TOO_OLD: Final = "too_old"
UNKNOWN_ID: Final = "unknown_id"

_ID: Final = re.compile(r"([0-9a-f]{12})-(\d{1,16})", re.ASCII)


class Channel:
    """One project's. `since_ms` is when its watching began, `left_at_ms` when its last watcher left."""

    def __init__(self, now_ms: int) -> None:
        self.since_ms: Final = now_ms
        self.left_at_ms: int | None = None
        self.watchers: Final[set[Watcher]] = set()
        self._by_key: Final[dict[str, set[Watcher]]] = {}
        self._by_prefix: Final[dict[str, set[Watcher]]] = {}
        self._prefix_lengths: tuple[int, ...] = ()
        self._epoch: Final = secrets.token_hex(6)
        self._number = 0
        self._ring: Final[deque[Told]] = deque()
        self._gone = 0  # of those told, how many a reset forgot before there was no room

    @property
    def last_id(self) -> str:
        return f"{self._epoch}-{self._number}"

    def tell(self, happening: Happening) -> None:
        """Keep it, and give it to those who want it; who wants others costs nothing."""
        self._number += 1
        told = Told(self.last_id, happening, happening.at_ms, happening.why)
        self._ring.append(told)
        key = happening.lock.key
        for watcher in self._by_key.get(key, ()):
            watcher.give(told)
        for length in self._prefix_lengths:
            if length <= len(key):
                for watcher in self._by_prefix.get(key[:length], ()):
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
        self._named_alike(watcher).add(watcher)
        self._prefix_lengths = tuple({len(prefix) for prefix in self._by_prefix})
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
        since = list(self._ring)[len(self._ring) - missing :]
        wanted = [told for told in since if told.happening is not None and watcher.wants(told.happening)]
        if not watcher.has_room_for(len(wanted)):  # it would be ended as too slow, and come back to the same
            watcher.give(Told(self.last_id, None, now_ms, TOO_OLD))
            return
        watcher.began_at = after
        for told in wanted:
            watcher.give(told)

    def leave(self, watcher: Watcher, now_ms: int) -> None:
        """It is gone."""
        self.watchers.remove(watcher)
        alike = self._named_alike(watcher)
        alike.remove(watcher)
        if not alike:
            if watcher.key is not None:
                del self._by_key[watcher.key]
            else:
                del self._by_prefix[watcher.prefix]
                self._prefix_lengths = tuple({len(prefix) for prefix in self._by_prefix})
        if not self.watchers:
            self.left_at_ms = now_ms

    def _named_alike(self, watcher: Watcher) -> set[Watcher]:
        if watcher.key is not None:
            return self._by_key.setdefault(watcher.key, set())
        return self._by_prefix.setdefault(watcher.prefix, set())
