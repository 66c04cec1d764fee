"""The event feed of one project: its recent events by id, and its subscribers.

An id is `<epoch>-<number>`. Each feed has a new epoch, so it recognizes an id of another node, of the time before a
restart or of an earlier feed. The ids of one project reveal nothing of another.
"""

import re
import secrets
from collections import deque
from typing import Final

from .event import LockEvent
from .subscriber import NumberedEvent, Subscriber

TOO_OLD: Final = "too_old"
UNKNOWN_ID: Final = "unknown_id"

_ID: Final = re.compile(r"([0-9a-f]{12})-(\d{1,16})", re.ASCII)


class ProjectFeed:
    """`since_ms` is when the feed began, `idle_since_ms` when its last subscriber left."""

    def __init__(self, now_ms: int) -> None:
        self.since_ms: Final = now_ms
        self.idle_since_ms: int | None = None
        self.subscribers: Final[dict[Subscriber, None]] = {}  # in order of arrival, as the two below
        self._by_key: Final[dict[str, dict[Subscriber, None]]] = {}
        self._by_prefix: Final[dict[str, dict[Subscriber, None]]] = {}
        self._prefix_lengths: tuple[int, ...] = ()
        self._to_wake: Final[dict[Subscriber, None]] = {}  # those with events that they were not woken for
        self._epoch: Final = secrets.token_hex(6)
        self._number = 0
        self._recent: Final[deque[NumberedEvent]] = deque()

    @property
    def last_id(self) -> str:
        return f"{self._epoch}-{self._number}"

    @property
    def kept_count(self) -> int:
        """How many events are kept."""
        return len(self._recent)

    def publish(self, event: LockEvent, *, in_turns: bool = False) -> None:
        """Keep an event and queue it for its subscribers, which `wake_some` wakes if `in_turns`. Subscribers of other
        locks cost nothing.
        """
        to_wake = self._to_wake if in_turns else None
        self._number += 1
        numbered = NumberedEvent(self.last_id, event, event.at_ms, event.why)
        self._recent.append(numbered)
        key = event.lock.key
        for subscriber in self._by_key.get(key, ()):
            subscriber.put(numbered, to_wake)
        for length in self._prefix_lengths:
            if length <= len(key):
                for subscriber in self._by_prefix.get(key[:length], ()):
                    subscriber.put(numbered, to_wake)

    def wake_some(self, most: int) -> bool:
        """Wake up to `most` subscribers, those that have waited for longest; returns whether others have events."""
        for _ in range(min(most, len(self._to_wake))):
            subscriber = next(iter(self._to_wake))
            del self._to_wake[subscriber]
            subscriber.wake()
        return bool(self._to_wake)

    def reset(self, now_ms: int, why: str) -> None:
        """Events may be missing: notify all subscribers, and drop the events before."""
        self._number += 1
        self._recent.clear()
        numbered = NumberedEvent(self.last_id, None, now_ms, why)
        for subscriber in self.subscribers:
            subscriber.put(numbered)

    def drop_oldest(self) -> None:
        self._recent.popleft()

    def add(self, subscriber: Subscriber, after: str | None, now_ms: int) -> None:
        """Subscribe from now on; with `after`, first queue the events since that id, or a reset if it is unknown."""
        self.subscribers[subscriber] = None
        self._subscribers_like(subscriber)[subscriber] = None
        self._prefix_lengths = tuple({len(prefix) for prefix in self._by_prefix})
        self.idle_since_ms = None
        subscriber.began_at = self.last_id
        if after is None:
            return
        found = _ID.fullmatch(after)
        if found is None or found[1] != self._epoch or int(found[2]) > self._number:
            subscriber.put(NumberedEvent(self.last_id, None, now_ms, UNKNOWN_ID))
            return
        missing = self._number - int(found[2])
        if missing > len(self._recent):
            subscriber.put(NumberedEvent(self.last_id, None, now_ms, TOO_OLD))
            return
        since = list(self._recent)[len(self._recent) - missing :]
        matching = [numbered for numbered in since if numbered.event is not None and subscriber.matches(numbered.event)]
        if not subscriber.can_queue(len(matching)):  # it would be ended as too slow, and resume from the same id
            subscriber.put(NumberedEvent(self.last_id, None, now_ms, TOO_OLD))
            return
        subscriber.began_at = after
        for numbered in matching:
            subscriber.put(numbered)

    def remove(self, subscriber: Subscriber, now_ms: int) -> None:
        del self.subscribers[subscriber]
        self._to_wake.pop(subscriber, None)
        alike = self._subscribers_like(subscriber)
        del alike[subscriber]
        if not alike:
            if subscriber.key is not None:
                del self._by_key[subscriber.key]
            else:
                del self._by_prefix[subscriber.prefix]
                self._prefix_lengths = tuple({len(prefix) for prefix in self._by_prefix})
        if not self.subscribers:
            self.idle_since_ms = now_ms

    def _subscribers_like(self, subscriber: Subscriber) -> dict[Subscriber, None]:
        """Those of the same key or the same prefix."""
        if subscriber.key is not None:
            return self._by_key.setdefault(subscriber.key, {})
        return self._by_prefix.setdefault(subscriber.prefix, {})
