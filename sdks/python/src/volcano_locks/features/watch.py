"""Follows who holds a lock: reads its event stream, and views the lock whenever the stream may have a gap (SDK-14).

Views and events overlap: a view is taken after its stream began, and a resumed stream first repeats the missed events.
`LeadershipTracker` orders both by the fencing token, which rises with each new holder.

Not promised: every change. Changes while the client is disconnected may appear as one, or not at all. The latest
state is correct.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from volcano_locks.clock import Clock
from volcano_locks.errors import VolcanoError
from volcano_locks.http.event_stream import parse_event_data, read_events
from volcano_locks.http.transport import Transport, perform
from volcano_locks.protocol.arguments import checked_fencing_token, new_uuid, parse_date
from volcano_locks.protocol.backoff import Backoff, is_transient
from volcano_locks.protocol.checked_operations import CheckedOperations
from volcano_locks.protocol.effects import Request, lock_path
from volcano_locks.protocol.lock_view import LockView

STABLE_SECONDS = 10.0

_BEGINS = frozenset({"acquired", "renewed"})
_ENDS = frozenset({"released", "expired", "force_released"})


@dataclass(frozen=True, slots=True)
class Leadership:
    """Who holds a lock. Two are equal if both are free, or both are held with the same fencing token.

    `since` is when the lease was acquired, or when the lock became free, if known.
    """

    held: bool
    holder: str | None = field(default=None, compare=False)
    fencing_token: int | None = None
    since: datetime | None = field(default=None, compare=False)


class LeadershipTracker:
    """The current leadership of one lock, from views and events in any order."""

    def __init__(self) -> None:
        self.latest: Leadership | None = None
        self._newest = 0
        self._ended = 0

    def apply_view(self, view: LockView) -> None:
        """Apply a view, unless its lease is known to have ended since."""
        token = view.fencing_token or self._newest
        if view.held and token > self._ended:
            self._newest = token
            self.latest = Leadership(True, view.holder, token, view.acquired_at)
        else:
            self._end(max(token, self._ended), None)

    def apply_event(self, kind: str, body: dict[str, Any]) -> None:
        """Apply an event, unless a newer state is known. Ignore other events."""
        try:
            token, at = checked_fencing_token(body.get("fencing_token")), parse_date(body["at"])
        except (KeyError, TypeError, ValueError):
            return
        if kind in _BEGINS and token > self._newest:
            holder = body.get("holder")
            self._newest = token
            since = at if kind == "acquired" else None
            self.latest = Leadership(True, holder if isinstance(holder, str) else None, token, since)
        elif kind in _ENDS and token >= self._newest:
            self._end(token, at)

    def _end(self, token: int, at: datetime | None) -> None:
        self._newest = self._ended = token
        if self.latest is None or self.latest.held:
            self.latest = Leadership(False, since=at)


class Watch:
    """One watch of one lock, over as many connections as needed."""

    def __init__(self, key: str, operations: CheckedOperations, transport: Transport, clock: Clock) -> None:
        self._key = key
        self._operations = operations
        self._transport = transport
        self._clock = clock
        self._tracker = LeadershipTracker()
        self._last_event_id: str | None = None

    async def changes(self) -> AsyncGenerator[Leadership, None]:
        """Yield the current leadership, then each change. Raises errors that a retry cannot resolve."""
        previous: Leadership | None = None
        backoff = Backoff()
        while True:
            began_at = self._clock.now()
            try:
                async with aclosing(self._follow_stream()) as leaderships:
                    async for latest in leaderships:
                        if latest is not None and latest != previous:
                            previous = latest
                            yield latest
            except VolcanoError as error:
                if not is_transient(error):
                    raise
                if self._clock.now() - began_at >= STABLE_SECONDS:
                    backoff.reset()
                delay = backoff.next_delay(error)
            if delay:
                await self._clock.wait(self._clock.now() + delay)

    async def _follow_stream(self) -> AsyncGenerator[Leadership | None, None]:
        """Yield the leadership after each event of one stream; always ends with an error."""
        path = f"{lock_path(self._key)}/events"
        request = Request(
            "GET", path, new_uuid(), self._operations.timeout_seconds, streams=True, last_event_id=self._last_event_id
        )
        view_needed = True
        async with aclosing(read_events(request, self._transport, self._clock)) as events:
            async for event in events:
                view_needed = view_needed or event.kind == "reset"
                if view_needed:
                    self._tracker.apply_view(await self._fetch_view())
                    view_needed = False
                self._tracker.apply_event(event.kind, parse_event_data(event))
                self._last_event_id = event.id or self._last_event_id
                yield self._tracker.latest

    async def _fetch_view(self) -> LockView:
        return await perform(self._operations.view(self._key, None), self._transport, self._clock)
