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

from ..events import Happening, Hub, Told, Watcher
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


class _Event(msgspec.Struct):
    key: str
    fencing_token: int | None
    holder: str | None
    at: str
    why: str


class _LeaseEvent(_Event):
    expires_at: str


class _Reset(msgspec.Struct):
    at: str
    why: str


_encode: Final = msgspec.json.Encoder().encode


class Stream:
    """One stream that may begin. Whoever has it either runs it or leaves it."""

    def __init__(self, hub: Hub, access: Access, watcher: Watcher, authorization: bytes | None) -> None:
        self.headers: Headers = []
        self._hub: Final = hub
        self._access: Final = access
        self._watcher: Final = watcher
        self._authorization: Final = authorization
        self._ping_due = False
        self._timer: Timer | None = None

    def leave(self) -> None:
        """End it."""
        self._hub.leave(self._watcher)
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
                first = b"".join(one.shown or shown(one) for one in told)
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
        self._watcher.poke()

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

    def __init__(self, hub: Hub, access: Access) -> None:
        self._hub: Final = hub
        self._access: Final = access

    async def begin(
        self, caller: Caller, scope: Scope, authorization: bytes | None, *, key: LockKey | None, prefix: str
    ) -> Stream:
        """A stream of one lock's events, or of those of all locks with that prefix.

        Raises LockError `lock_service_unavailable` where there is no room for it (EVENT-7).
        """
        watcher = Watcher(caller.project_id, key=key, prefix=prefix)
        stream = Stream(self._hub, self._access, watcher, authorization)
        after = next((value for name, value in scope["headers"] if name == LAST_EVENT_ID and value), None)
        try:
            await self._hub.watch(watcher, after=None if after is None else after.decode("latin-1"))
        except BaseException:
            stream.leave()
            raise
        return stream


def asks_for_stream(parameters: bytes) -> bool:
    """Whether `GET /locks/events` means the events of all locks, and not the lock of that name (EVENT-1)."""
    return any(name == "prefix" for name, _ in parse_qsl(parameters.decode("latin-1"), keep_blank_values=True))


def shown(told: Told) -> bytes:
    """An event as it goes over the wire, made once for all who are told it."""
    happening = told.happening
    kind, body = ("reset", _Reset(instant(told.at_ms), told.why)) if happening is None else _named(happening)
    told.shown = b"id: %b\nevent: %b\ndata: %b\n\n" % (told.id.encode(), kind.encode(), _encode(body))
    return told.shown


def _named(happening: Happening) -> tuple[str, _Event]:
    about = str(happening.lock.key), happening.fencing_token, happening.holder, instant(happening.at_ms), happening.why
    if happening.expires_at_ms is None:
        return happening.kind, _Event(*about)
    return happening.kind, _LeaseEvent(*about, expires_at=instant(happening.expires_at_ms))
