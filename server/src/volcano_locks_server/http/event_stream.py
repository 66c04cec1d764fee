"""Streams lock events to a client as server-sent events (EVENT rules in spec/watching.md).

    retry: 1000                      id: 1f0c2b7a9d3e-18
    id: 1f0c2b7a9d3e-17              event: released
    : watching                       data: {"key":"nightly","fencing_token":…,"holder":"host/4121","at":…,"why":…}

A stream is opened like any lock request and then runs apart from it: `App.drain` ends streams and does not wait for
them. Every PING_MS a stream sends a comment, so that proxies keep it open and a broken connection is noticed. It also
authenticates its key again. A revoked key ends its stream within the 15 seconds of EVENT-7, the sum of
PING_MS, CREDENTIAL_SECONDS_MAX of the credential cache, and RECHECK_SECONDS_MAX.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final, Self
from urllib.parse import parse_qsl

import msgspec

from ..events import EventHub, LockEvent, NumberedEvent, Subscriber
from ..ports.clock import Timer
from ..rules.errors import LockError
from .auth import Principal
from .codec import Receive, Send, client_disconnect, instant
from .problems import Headers

PING_MS: Final = 8_000
RECHECK_SECONDS_MAX: Final = 2.0
RETRY_MS: Final = 1_000
PING: Final = b":\n\n"
HEADERS: Final = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # asks nginx not to buffer events
)


_encode: Final = msgspec.json.Encoder().encode


class EventStreamResponse:
    """The response of one stream. Its owner calls either `run` or `close`."""

    def __init__(
        self, hub: EventHub, current_principal: Callable[[], Awaitable[Principal]], subscriber: Subscriber
    ) -> None:
        self.headers: Headers = []
        self._hub: Final = hub
        self._current_principal: Final = current_principal
        self._subscriber: Final = subscriber
        self._ping_due = False
        self._timer: Timer | None = None

    @classmethod
    async def open(
        cls,
        hub: EventHub,
        current_principal: Callable[[], Awaitable[Principal]],
        subscriber: Subscriber,
        after: bytes | None,
    ) -> Self:
        """A stream of what the subscriber follows, resumed after the event with the id `after`.

        `current_principal` authenticates the stream's client again, and raises LockError if it no longer may.
        Raises LockError `lock_service_unavailable` if too many streams are open (EVENT-7).
        """
        stream = cls(hub, current_principal, subscriber)
        try:
            await hub.subscribe(subscriber, after=None if after is None else after.decode("latin-1"))
        except BaseException:
            stream.close()
            raise
        return stream

    def close(self) -> None:
        """Unsubscribe from the hub."""
        self._hub.unsubscribe(self._subscriber)
        if self._timer is not None:
            self._timer.cancel()

    async def run(self, receive: Receive, send: Send) -> None:
        """Send events until the client disconnects, the server stops or the key is no longer valid."""
        disconnect = asyncio.create_task(self._end_on_disconnect(receive), name="stream-disconnect")
        try:
            headers = [*HEADERS, *self.headers]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            part = b"retry: %d\nid: %b\n: watching\n\n" % (RETRY_MS, self._subscriber.began_at.encode())
            self._set_timer()
            while not self._subscriber.ended:
                await send({"type": "http.response.body", "body": part, "more_body": True})
                events = await self._subscriber.take()
                part = b"".join(one.encoded or encode(one) for one in events)
                if self._ping_due:
                    if not await self._is_still_permitted():
                        break
                    part += PING
                    self._set_timer()
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self.close()
            disconnect.cancel()

    def _set_timer(self) -> None:
        self._ping_due = False
        self._timer = self._hub.clock.call_in(PING_MS, self._ping)

    def _ping(self) -> None:
        self._ping_due = True
        self._subscriber.wake()

    async def _is_still_permitted(self) -> bool:
        """Whether the key may still read its project's locks. False if the check fails or takes too long."""
        with contextlib.suppress(LockError, TimeoutError):
            async with asyncio.timeout(RECHECK_SECONDS_MAX):
                principal = await self._current_principal()
            return principal.may_read_locks and principal.project_id == self._subscriber.project_id
        return False

    async def _end_on_disconnect(self, receive: Receive) -> None:
        await client_disconnect(receive)
        self._subscriber.end()


def asks_for_stream(parameters: bytes) -> bool:
    """Whether `GET /locks/events` asks for the events of all locks, and not for the lock of that name (EVENT-1)."""
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
    if event.reason is not None:
        data["reason"] = event.reason
    return data
