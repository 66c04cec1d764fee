"""What happens to locks, as server-sent events (EVENT rules in spec/watching.md).

    retry: 1000                      id: 1f0c2b7a9d3e-18
    id: 1f0c2b7a9d3e-17              event: released
    : watching                       data: {"key":"nightly","fencing_token":…,"holder":"host/4121","at":…,"why":…}

A stream is begun like any lock request and then goes on by itself: a stop ends it and waits for nothing of it. Every
PING_MS it says something, so that proxies keep it and a connection that broke is noticed, and looks whether its key is
still good; with what `Access` believes meanwhile and RECHECK_SECONDS_MAX that makes the 15 seconds of EVENT-7.
"""

import asyncio
import contextlib
from typing import Final
from urllib.parse import parse_qsl

import msgspec

from ..events import EventHub, LockEvent, NumberedEvent, Subscriber
from ..ports.clock import Timer
from ..rules.errors import LockError
from ..rules.values import LockKey
from .auth import Access, Caller
from .codec import LAST_EVENT_ID, Receive, Scope, Send, instant
from .problems import Headers

PING_MS: Final = 8_000
RECHECK_SECONDS_MAX: Final = 2.0
RETRY_MS: Final = 1_000
PING: Final = b":\n\n"
HEADERS: Final = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # a proxy that gathered events would keep them from whoever waits for them
)


_encode: Final = msgspec.json.Encoder().encode


class Stream:
    """One stream that may begin. Whoever has it either runs it or leaves it."""

    def __init__(self, hub: EventHub, access: Access, watcher: Subscriber, authorization: bytes | None) -> None:
        self.headers: Headers = []
        self._hub: Final = hub
        self._access: Final = access
        self._watcher: Final = watcher
        self._authorization: Final = authorization
        self._ping_due = False
        self._timer: Timer | None = None

    def leave(self) -> None:
        """End it."""
        self._hub.unsubscribe(self._watcher)
        if self._timer is not None:
            self._timer.cancel()

    async def run(self, receive: Receive, send: Send) -> None:
        """Tell until the client, the server or the key's validity ends it."""
        listening = asyncio.create_task(self._end_when_gone(receive), name="stream-hang-up")
        try:
            headers = [*HEADERS, *self.headers]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            first = b"retry: %d\nid: %b\n: watching\n\n" % (RETRY_MS, self._watcher.began_at.encode())
            self._set_timer()
            while not self._watcher.ended:
                await send({"type": "http.response.body", "body": first, "more_body": True})
                told = await self._watcher.take()
                first = b"".join(one.encoded or encode(one) for one in told)
                if self._ping_due:
                    if not await self._is_good_still():
                        break
                    first += PING
                    self._set_timer()
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self.leave()
            listening.cancel()

    def _set_timer(self) -> None:
        self._ping_due = False
        self._timer = self._hub.clock.call_in(PING_MS, self._ping)

    def _ping(self) -> None:
        self._ping_due = True
        self._watcher.wake()

    async def _is_good_still(self) -> bool:
        """Whether the key still opens what it opened. What cannot be found out is not good."""
        with contextlib.suppress(LockError, TimeoutError):
            async with asyncio.timeout(RECHECK_SECONDS_MAX):
                caller = await self._access.caller(self._authorization)
            return caller.may_read_locks and caller.project_id == self._watcher.project_id
        return False

    async def _end_when_gone(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._watcher.end()


class Streams:
    """Begins streams."""

    def __init__(self, hub: EventHub, access: Access) -> None:
        self._hub: Final = hub
        self._access: Final = access

    async def begin(
        self, caller: Caller, scope: Scope, authorization: bytes | None, *, key: LockKey | None, prefix: str
    ) -> Stream:
        """A stream of one lock's events, or of those of all locks with that prefix.

        Raises LockError `lock_service_unavailable` where there is no room for it (EVENT-7).
        """
        watcher = Subscriber(caller.project_id, key=key, prefix=prefix)
        stream = Stream(self._hub, self._access, watcher, authorization)
        after = next((value for name, value in scope["headers"] if name == LAST_EVENT_ID and value), None)
        try:
            await self._hub.subscribe(watcher, after=None if after is None else after.decode("latin-1"))
        except BaseException:
            stream.leave()
            raise
        return stream


def asks_for_stream(parameters: bytes) -> bool:
    """Whether `GET /locks/events` means the events of all locks, and not the lock of that name (EVENT-1)."""
    return any(name == "prefix" for name, _ in parse_qsl(parameters.decode("latin-1"), keep_blank_values=True))


def encode(numbered: NumberedEvent) -> bytes:
    """An event in its HTTP form, encoded once for all streams."""
    event = numbered.event
    kind = "reset" if event is None else event.kind
    data = {"at": instant(numbered.at_ms), "why": numbered.why} if event is None else _data(event)
    numbered.encoded = b"id: %b\nevent: %b\ndata: %b\n\n" % (numbered.id.encode(), kind.encode(), _encode(data))
    return numbered.encoded


def _data(event: LockEvent) -> dict[str, str | int | None]:
    data = {
        "key": str(event.lock.key),
        "fencing_token": event.fencing_token,
        "holder": event.holder,
        "at": instant(event.at_ms),
        "why": event.why,
    }
    if event.expires_at_ms is not None:
        data["expires_at"] = instant(event.expires_at_ms)
    return data
