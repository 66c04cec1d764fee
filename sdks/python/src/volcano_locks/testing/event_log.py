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
    """The recent events, and the wake-ups of the open streams. Guarded by the fake's mutex."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._epoch = 1
        self._number = 0
        self._events: deque[LoggedEvent] = deque(maxlen=EVENTS_KEPT_MAX)
        self._streams: dict[object, Wakeup] = {}

    def publish(self, key: str, kind: str, body: dict[str, Any]) -> None:
        """Log the event and wake the streams."""
        self._number += 1
        self._events.append(LoggedEvent(self._number, key, kind, body))
        self._wake_streams()

    def restart(self) -> None:
        """End all streams and forget all events, so that earlier ids are unknown."""
        self._epoch += 1
        self._events.clear()
        self._wake_streams()

    def stream(
        self, wanted: Callable[[str], bool], after: str | None, due: Callable[[], float], new_wakeup: NewWakeup
    ) -> StreamedReply:
        """Stream the events of the keys that are `wanted`, from now on or after the id `after`.

        `due` processes what is due and returns the next instant at which something is.
        """
        epoch, _, number = (after or "").partition("-")
        known = epoch == str(self._epoch) and number.isdigit()
        begin = [f": hello\nid: {self._id(int(number) if known else self._number)}\nretry: 1000\n\n".encode()]
        if after is not None and not known:
            date = self._clock.utc_now().isoformat(timespec="milliseconds").replace("+00:00", "Z")
            begin.append(self._encode(self._number, "reset", {"at": date, "why": "unknown_id"}))
        chunks = self._chunks(begin, wanted, int(number) if known else self._number, self._epoch, due, new_wakeup)
        return StreamedReply(200, {"content-type": "text/event-stream"}, chunks)

    def _chunks(  # noqa: PLR0917 - the state of one stream
        self,
        begin: list[bytes],
        wanted: Callable[[str], bool],
        number: int,
        epoch: int,
        due: Callable[[], float],
        new_wakeup: NewWakeup,
    ) -> Chunks:
        """The body of the response, until a restart or until its reader disconnects."""
        stream = object()
        self._streams[stream] = new_wakeup()
        try:
            yield from begin
            comment_at = self._clock.now() + COMMENT_SECONDS
            while self._epoch == epoch:
                self._streams[stream] = wakeup = new_wakeup()
                due_at = due()
                for event in self._since(number):
                    number = event.number
                    if wanted(event.key):
                        yield self._encode(event.number, event.kind, event.body)
                if self._clock.now() >= comment_at:
                    comment_at += COMMENT_SECONDS
                    yield b": still here\n\n"
                elif not self._since(number) and self._epoch == epoch:
                    yield Pause(min(comment_at, due_at), wakeup)
        finally:
            self._streams.pop(stream, None)

    def _wake_streams(self) -> None:
        for wakeup in list(self._streams.values()):
            wakeup.set()

    def _since(self, number: int) -> list[LoggedEvent]:
        return [event for event in list(self._events) if event.number > number]

    def _encode(self, number: int, kind: str, body: dict[str, Any]) -> bytes:
        return f"id: {self._id(number)}\nevent: {kind}\ndata: {json.dumps(body)}\n\n".encode()

    def _id(self, number: int) -> str:
        return f"{self._epoch}-{number}"
