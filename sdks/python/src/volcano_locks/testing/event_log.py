"""The fake's event log: server-sent events with ids, from a bounded buffer (EVENT rules)."""

import json
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from volcano_locks.clock import Wakeup
from volcano_locks.testing.clock import ManualClock
from volcano_locks.testing.in_memory import Chunks, NewWakeup, Pause, StreamedReply

EVENTS_KEPT_MAX = 1_000
COMMENT_SECONDS = 15.0


class LoggedEvent(NamedTuple):
    """One published event."""

    number: int
    key: str
    kind: str
    body: dict[str, Any]


class EventLog:
    """The recent events and the open streams. Guarded by the fake's mutex."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self._epoch = 1
        self._number = 0
        self._events: deque[LoggedEvent] = deque(maxlen=EVENTS_KEPT_MAX)
        self._streams: set[EventStream] = set()

    def publish(self, key: str, kind: str, body: dict[str, Any]) -> None:
        """Log the event and wake the streams."""
        self._number += 1
        self._events.append(LoggedEvent(self._number, key, kind, body))
        for stream in list(self._streams):
            stream.wake()

    def restart(self) -> None:
        """End all streams and forget all events, so that earlier ids are unknown."""
        self._epoch += 1
        self._events.clear()
        for stream in list(self._streams):
            stream.ended = True
            stream.wake()

    def stream(
        self, wanted: Callable[[str], bool], after: str | None, due: Callable[[], float], new_wakeup: NewWakeup
    ) -> StreamedReply:
        """Stream the events of the keys that are `wanted`, from now on or after the id `after`.

        `due` processes what is due and returns the next instant at which something is.
        """
        epoch, _, number = (after or "").partition("-")
        known = epoch == str(self._epoch) and number.isdigit()
        stream = EventStream(self, wanted, int(number) if known else self._number, due)
        stream.reset = after is not None and not known
        self._streams.add(stream)
        return StreamedReply(200, {"content-type": "text/event-stream"}, stream.chunks(new_wakeup))

    def since(self, number: int) -> list[LoggedEvent]:
        """The events after that number."""
        return [event for event in list(self._events) if event.number > number]

    def id_of(self, number: int) -> str:
        """An event's id on the wire."""
        return f"{self._epoch}-{number}"

    def remove(self, stream: "EventStream") -> None:
        """Forget a stream that is no longer read."""
        self._streams.discard(stream)

    def date(self) -> str:
        """The clock's date."""
        return self.clock.utc_now().isoformat(timespec="milliseconds").replace("+00:00", "Z")


class EventStream:
    """One open stream."""

    def __init__(self, log: EventLog, wanted: Callable[[str], bool], number: int, due: Callable[[], float]) -> None:
        self.reset = False
        self.ended = False
        self._log = log
        self._wanted = wanted
        self._number = number
        self._due = due
        self._wakeup: Wakeup | None = None

    def wake(self) -> None:
        """Make the stream look for new events."""
        if self._wakeup is not None:
            self._wakeup.set()

    def chunks(self, new_wakeup: NewWakeup) -> Chunks:
        """The body of the response, until the stream ends or its reader disconnects."""
        try:
            yield f": hello\nid: {self._log.id_of(self._number)}\nretry: 1000\n\n".encode()
            if self.reset:
                yield self._encode(self._number, "reset", {"at": self._log.date(), "why": "unknown_id"})
            comment_at = self._log.clock.now() + COMMENT_SECONDS
            while not self.ended:
                self._wakeup = wakeup = new_wakeup()
                due = self._due()
                for event in self._log.since(self._number):
                    self._number = event.number
                    if self._wanted(event.key):
                        yield self._encode(event.number, event.kind, event.body)
                if self._log.clock.now() >= comment_at:
                    comment_at += COMMENT_SECONDS
                    yield b": still here\n\n"
                elif not self._log.since(self._number) and not self.ended:
                    yield Pause(min(comment_at, due), wakeup)
        finally:
            self._log.remove(self)

    def _encode(self, number: int, kind: str, body: dict[str, Any]) -> bytes:
        return f"id: {self._log.id_of(number)}\nevent: {kind}\ndata: {json.dumps(body)}\n\n".encode()
