"""Following who holds a lock: its event stream and, where that may have gaps, a look at the lock itself (SDK-14).

Looks and events overlap and may tell the same twice, or old things late: a look begins after its stream did, and a
stream that was resumed tells first what was missed. `Leadings` puts both in order by the fencing token, which rises
with each change of hands.

Not promised: every change. Two that follow each other while the client is cut off may be seen as one, or not at all;
what is told last is so.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from volcano_locks.clock import Clock
from volcano_locks.errors import VolcanoError
from volcano_locks.http.event_stream import body_of, heard
from volcano_locks.http.transport import Sender, perform
from volcano_locks.protocol.backoff import Rests, passes_by
from volcano_locks.protocol.effects import Request, lock_path
from volcano_locks.protocol.lock_operations import LockFlows
from volcano_locks.protocol.lock_view import LockView
from volcano_locks.protocol.messages import fencing_token_of, new_uuid, parse_date

STEADY_SECONDS = 10.0

_BEGINS = frozenset({"acquired", "renewed"})
_ENDS = frozenset({"released", "expired", "force_released"})


@dataclass(frozen=True, slots=True)
class Leadership:
    """Who holds a lock. Two are equal if both are free, or both held with the same fencing token.

    `since` is when the lease was acquired, or when the lock became free if that is known.
    """

    held: bool
    holder: str | None = field(default=None, compare=False)
    fencing_token: int | None = None
    since: datetime | None = field(default=None, compare=False)


class Leadings:
    """What is known of one lock, from looks and events in whatever order they come."""

    def __init__(self) -> None:
        self.latest: Leadership | None = None
        self._newest = 0
        self._ended = 0

    def looked(self, view: LockView) -> None:
        """What a look at the lock says: so it is, but for a lease that is known to have ended since."""
        token = view.fencing_token or self._newest
        if view.held and token > self._ended:
            self._newest = token
            self.latest = Leadership(True, view.holder, token, view.acquired_at)
        else:
            self._end(max(token, self._ended), None)

    def happened(self, kind: str, body: dict[str, Any]) -> None:
        """What an event says, unless more is known by now. What is no such event says nothing."""
        try:
            token, at = fencing_token_of(body.get("fencing_token")), parse_date(body["at"])
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
    """One watch of one lock, over as many connections as it takes."""

    def __init__(self, key: str, flows: LockFlows, sender: Sender, clock: Clock) -> None:
        self._key = key
        self._flows = flows
        self._sender = sender
        self._clock = clock
        self._leadings = Leadings()
        self._last_id: str | None = None

    async def changes(self) -> AsyncGenerator[Leadership, None]:
        """First how it is, then each change. Raises what does not pass by waiting."""
        shown: Leadership | None = None
        rests = Rests()
        while True:
            began_at = self._clock.now()
            try:
                async with aclosing(self._followed()) as followed:
                    async for latest in followed:
                        if latest is not None and latest != shown:
                            shown = latest
                            yield latest
            except VolcanoError as error:
                if not passes_by(error):
                    raise
                if self._clock.now() - began_at >= STEADY_SECONDS:
                    rests.over()
                rest = rests.seconds(error)
            if rest:
                await self._clock.wait(self._clock.now() + rest)

    async def _followed(self) -> AsyncGenerator[Leadership | None, None]:
        """What is known after each event of one stream; ends with an error."""
        path = f"{lock_path(self._key)}/events"
        request = Request("GET", path, new_uuid(), self._flows.timeout_seconds, listens=True, last_id=self._last_id)
        look = True
        async with aclosing(heard(request, self._sender, self._clock)) as events:
            async for event in events:
                look = look or event.kind == "reset"
                if look:
                    self._leadings.looked(await self._look())
                    look = False
                self._leadings.happened(event.kind, body_of(event))
                self._last_id = event.id or self._last_id
                yield self._leadings.latest

    async def _look(self) -> LockView:
        return await perform(self._flows.view(self._key, None), self._sender, self._clock)
