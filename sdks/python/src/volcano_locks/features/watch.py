"""Follows who holds a lock: reads its event stream, and views the lock whenever the stream may have a gap (SDK-14).

Views and events overlap: a view is taken after its stream began, and a resumed stream first repeats the missed events.
`LeadershipTracker` orders both by the fencing token, which rises with each new holder.

Limit: changes while the client is disconnected may appear as one, or not at all. The latest state is correct.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from volcano_locks.errors import VolcanoError
from volcano_locks.http.event_stream import EventStream, parse_event_data
from volcano_locks.protocol.arguments import checked_fencing_token, new_uuid, parse_date
from volcano_locks.protocol.backoff import Backoff, is_transient
from volcano_locks.protocol.checked_operations import CheckedOperations
from volcano_locks.protocol.effects import Emit, Operation, Request, Sleep, lock_path
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

    def apply_event(self, kind: str, body: dict[str, Any]) -> bool:
        """Apply an event, unless a newer state is known. Return False if it is unusable, so that a view is needed."""
        if kind not in _BEGINS | _ENDS:
            return True
        try:
            token, at = checked_fencing_token(body.get("fencing_token")), parse_date(body["at"])
        except (KeyError, TypeError, ValueError):
            return False
        if kind in _BEGINS and token > self._newest:
            holder = body.get("holder")
            self._newest = token
            since = at if kind == "acquired" else None
            self.latest = Leadership(True, holder if isinstance(holder, str) else None, token, since)
        elif kind in _ENDS and token >= self._newest:
            self._end(token, at)
        return True

    def _end(self, token: int, at: datetime | None) -> None:
        self._newest = self._ended = token
        if self.latest is None or self.latest.held:
            self.latest = Leadership(False, since=at)


class Watch:
    """One watch of one lock, over as many connections as needed."""

    def __init__(self, key: str, operations: CheckedOperations, now: Callable[[], float]) -> None:
        self._key = key
        self._operations = operations
        self._now = now
        self._tracker = LeadershipTracker()
        self._last_event_id: str | None = None
        self._previous: Leadership | None = None

    def changes(self) -> Operation[None]:
        """Emit the current leadership, then each change. Raises errors that a retry cannot resolve."""
        backoff = Backoff()
        while True:
            began_at = self._now()
            try:
                yield from self._follow_stream()
            except VolcanoError as error:
                if not is_transient(error):
                    raise
                if self._now() - began_at >= STABLE_SECONDS:
                    backoff.reset()
                delay = backoff.next_delay(error)
            if delay:
                yield Sleep(delay, in_wait=True)

    def _follow_stream(self) -> Operation[None]:
        """Emit the leadership after each event of one stream, if it changed; always ends with an error."""
        path = f"{lock_path(self._key)}/events"
        stream = EventStream(
            Request(
                "GET",
                path,
                new_uuid(),
                self._operations.timeout_seconds,
                streams=True,
                last_event_id=self._last_event_id,
            )
        )
        yield from stream.open()
        view_needed = True
        while True:
            for event in (yield from stream.read()):
                usable = self._tracker.apply_event(event.kind, parse_event_data(event))
                if view_needed or not usable or event.kind == "reset":
                    self._tracker.apply_view((yield from self._operations.view(self._key, None)))
                    view_needed = False
                self._last_event_id = event.id or self._last_event_id
                latest = self._tracker.latest
                if latest is not None and latest != self._previous:
                    self._previous = latest
                    yield Emit(latest)
