"""An event stream for `watch` that reconnects (CLI-30).

The first connection must succeed, so that a wrong address or key ends the command at once. Later connections resume
from the last event received, as in the client's own watch (EVENT-5).
"""

from collections.abc import Callable
from typing import Final
from urllib.parse import quote

from volcano_locks.config import TIMEOUT_SECONDS
from volcano_locks.errors import VolcanoError
from volcano_locks.http.event_stream import EventStream
from volcano_locks.protocol.arguments import checked_key, new_uuid
from volcano_locks.protocol.backoff import Backoff, is_transient
from volcano_locks.protocol.effects import Emit, Operation, Request, Sleep, lock_path
from volcano_locks.protocol.lock_view import checked_prefix

STEADY_SECONDS: Final = 10.0


def events_path(key: str | None, prefix: str) -> str:
    """The path of the events of `key`, else of all locks that begin with `prefix`. Raises ValueError."""
    if key is not None:
        return f"{lock_path(checked_key(key))}/events"
    return f"/locks/events?prefix={quote(checked_prefix(prefix), safe='')}"


def reconnecting_events(path: str, now: Callable[[], float]) -> Operation[None]:
    """Emits the events, and the error that ended each connection. A connection's first event has only an id.

    Raises an error that a retry cannot fix, and any error before the first connection succeeded.
    """
    backoff = Backoff()
    last_id: str | None = None
    connected = False
    while True:
        stream = EventStream(Request("GET", path, new_uuid(), TIMEOUT_SECONDS, streams=True, last_event_id=last_id))
        since = now()
        try:
            yield from stream.open()
            while True:
                for event in (yield from stream.read()):
                    connected = True
                    last_id = event.id or last_id
                    yield Emit(event)
        except VolcanoError as error:
            if not connected or not is_transient(error):
                raise
            failure = error
        yield Emit(failure)
        if now() - since >= STEADY_SECONDS:
            backoff.reset()
        yield Sleep(backoff.next_delay(failure), in_wait=True)
