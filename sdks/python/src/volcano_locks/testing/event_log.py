"""The fake's event log: server-sent events with ids, from a bounded buffer (EVENT rules)."""

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

import httpx2

from volcano_locks.testing.clock import ManualClock, resolve

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
        for stream in self._streams:
            stream.wake()

    def restart(self) -> None:
        """End all streams and forget all events, so that earlier ids are unknown."""
        self._epoch += 1
        self._events.clear()
        for stream in self._streams:
            stream.ended = True
            stream.wake()

    def stream(self, wanted: Callable[[str], bool], after: str | None, due: Callable[[], float]) -> httpx2.Response:
        """Stream the events of the keys that are `wanted`, from now on or after the id `after`.

        `due` processes what is due and returns the next instant at which something is.
        """
        epoch, _, number = (after or "").partition("-")
        known = epoch == str(self._epoch) and number.isdigit()
        stream = EventStream(self, wanted, int(number) if known else self._number, due)
        stream.reset = after is not None and not known
        self._streams.add(stream)
        return httpx2.Response(200, headers={"Content-Type": "text/event-stream"}, stream=stream)

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


class EventStream(httpx2.AsyncByteStream):
    """The body of one streamed response."""

    def __init__(self, log: EventLog, wanted: Callable[[str], bool], number: int, due: Callable[[], float]) -> None:
        self.reset = False
        self.ended = False
        self._log = log
        self._wanted = wanted
        self._number = number
        self._due = due
        self._loop = asyncio.get_running_loop()
        self._woken: asyncio.Future[None] = self._loop.create_future()

    def wake(self) -> None:
        """Make the stream look for new events."""
        with contextlib.suppress(RuntimeError):  # its loop is closed
            self._loop.call_soon_threadsafe(resolve, self._woken)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield f": hello\nid: {self._log.id_of(self._number)}\nretry: 1000\n\n".encode()
        if self.reset:
            body = json.dumps({"at": self._log.date(), "why": "unknown_id"})
            yield f"id: {self._log.id_of(self._number)}\nevent: reset\ndata: {body}\n\n".encode()
        comment_at = self._log.clock.now() + COMMENT_SECONDS
        while not self.ended:
            self._woken = self._loop.create_future()
            due = self._due()
            for event in self._log.since(self._number):
                self._number = event.number
                if self._wanted(event.key):
                    body = json.dumps(event.body)
                    yield f"id: {self._log.id_of(event.number)}\nevent: {event.kind}\ndata: {body}\n\n".encode()
            if self._log.clock.now() >= comment_at:
                comment_at += COMMENT_SECONDS
                yield b": still here\n\n"
            elif not self._woken.done() and not self._log.since(self._number):
                await self._log.clock.wait(min(comment_at, due), self._woken)

    async def aclose(self) -> None:
        self._log.remove(self)
