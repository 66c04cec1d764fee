"""An event stream over as many connections as it takes, for `watch` (CLI-30).

The first connection has to come about: a wrong address or key is told at once. From then on it goes on, like the
client's own watch, from the last event that came (EVENT-5).
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final
from urllib.parse import quote

from volcano_locks.clock import Clock
from volcano_locks.config import TIMEOUT_SECONDS
from volcano_locks.errors import VolcanoError
from volcano_locks.http.event_stream import read_events
from volcano_locks.http.transport import Transport
from volcano_locks.protocol.arguments import checked_key, new_uuid
from volcano_locks.protocol.backoff import Backoff, is_transient
from volcano_locks.protocol.effects import Request, lock_path
from volcano_locks.protocol.lock_view import checked_prefix
from volcano_locks.protocol.sse import SseEvent

STEADY_SECONDS: Final = 10.0


def events_path(key: str | None, prefix: str) -> str:
    """Where the events of `key` are told, else those of all locks that begin with `prefix`. Raises ValueError."""
    if key is not None:
        return f"{lock_path(checked_key(key))}/events"
    return f"/locks/events?prefix={quote(checked_prefix(prefix), safe='')}"


async def followed(path: str, sender: Transport, clock: Clock) -> AsyncGenerator[SseEvent | VolcanoError, None]:
    """The events, the first of each connection being one that tells only an id; and what broke a connection off.
    Raises what does not pass by waiting, and whatever keeps the first connection from coming about."""
    rests = Backoff()
    last_id: str | None = None
    begun = False
    while True:
        request = Request("GET", path, new_uuid(), TIMEOUT_SECONDS, streams=True, last_event_id=last_id)
        since = clock.now()
        try:
            async with aclosing(read_events(request, sender, clock)) as events:
                async for event in events:
                    begun = True
                    last_id = event.id or last_id
                    yield event
        except VolcanoError as error:
            if not begun or not is_transient(error):
                raise
            failure = error
        yield failure
        if clock.now() - since >= STEADY_SECONDS:
            rests.reset()
        await clock.wait(clock.now() + rests.next_delay(failure))
