"""What the fake tells those who watch: server-sent events with ids, from a bounded buffer (EVENT rules)."""

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

import httpx2

from volcano_locks.testing.clock import ManualClock, done

KEPT_MAX = 1_000
COMMENT_SECONDS = 15.0


class Told(NamedTuple):
    """One event as it was told."""

    number: int
    key: str
    kind: str
    body: dict[str, Any]


class Stories:
    """The events of late, and the streams of those who watch. Guarded by the fake's mutex."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._epoch = 1
        self._number = 0
        self._kept: deque[Told] = deque(maxlen=KEPT_MAX)
        self._streams: set[Stream] = set()

    def tell(self, key: str, kind: str, body: dict[str, Any]) -> None:
        """Keep it, and wake who watches."""
        self._number += 1
        self._kept.append(Told(self._number, key, kind, body))
        for stream in self._streams:
            stream.wake()

    def restart(self) -> None:
        """End all streams and forget everything: ids of before are unknown."""
        self._epoch += 1
        self._kept.clear()
        for stream in self._streams:
            stream.ended = True
            stream.wake()

    def stream(self, wanted: Callable[[str], bool], after: str | None, due: Callable[[], float]) -> httpx2.Response:
        """What is told of keys that are `wanted`, from now on or since the id `after`. `due` does what is due, and says
        when next something is."""
        epoch, _, number = (after or "").partition("-")
        known = epoch == str(self._epoch) and number.isdigit()
        stream = Stream(self, wanted, int(number) if known else self._number, due)
        stream.reset = after is not None and not known
        self._streams.add(stream)
        return httpx2.Response(200, headers={"Content-Type": "text/event-stream"}, stream=stream)

    def since(self, number: int) -> list[Told]:
        """Those told after that one."""
        return [told for told in list(self._kept) if told.number > number]

    def id_of(self, number: int) -> str:
        """How an event is called on the wire."""
        return f"{self._epoch}-{number}"

    def leave(self, stream: "Stream") -> None:
        """It is not read any more."""
        self._streams.discard(stream)

    def now(self) -> float:
        """The clock's instant."""
        return self._clock.now()

    async def rest(self, until: float, signal: "asyncio.Future[None]") -> None:
        """See `Clock.wait`."""
        await self._clock.wait(until, signal)

    def date(self) -> str:
        """The clock's date."""
        return self._clock.utc_now().isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Stream(httpx2.AsyncByteStream):
    """One answer that goes on."""

    def __init__(self, stories: Stories, wanted: Callable[[str], bool], number: int, due: Callable[[], float]) -> None:
        self.reset = False
        self.ended = False
        self._stories = stories
        self._wanted = wanted
        self._number = number
        self._due = due
        self._loop = asyncio.get_running_loop()
        self._woken: asyncio.Future[None] = self._loop.create_future()

    def wake(self) -> None:
        """There is something to tell."""
        with contextlib.suppress(RuntimeError):  # its loop is closed
            self._loop.call_soon_threadsafe(done, self._woken)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield f": hello\nid: {self._stories.id_of(self._number)}\nretry: 1000\n\n".encode()
        if self.reset:
            body = json.dumps({"at": self._stories.date(), "why": "unknown_id"})
            yield f"id: {self._stories.id_of(self._number)}\nevent: reset\ndata: {body}\n\n".encode()
        comment_at = self._stories.now() + COMMENT_SECONDS
        while not self.ended:
            self._woken = self._loop.create_future()
            due = self._due()
            for told in self._stories.since(self._number):
                self._number = told.number
                if self._wanted(told.key):
                    body = json.dumps(told.body)
                    yield f"id: {self._stories.id_of(told.number)}\nevent: {told.kind}\ndata: {body}\n\n".encode()
            if self._stories.now() >= comment_at:
                comment_at += COMMENT_SECONDS
                yield b": still here\n\n"
            elif not self._woken.done() and not self._stories.since(self._number):
                await self._stories.rest(min(comment_at, due), self._woken)

    async def aclose(self) -> None:
        self._stories.leave(self)
