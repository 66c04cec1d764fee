"""Reads one event stream of the service until it ends, which always raises an error (EVENT-1, EVENT-7).

The caller then reconnects. The service sends something every 15 seconds, so a stream that is silent for three times as
long counts as broken.
"""

import json
from typing import Any

from volcano_locks.errors import TransportError
from volcano_locks.protocol.effects import Operation, ReadStream, Request
from volcano_locks.protocol.messages import malformed_response, media_type
from volcano_locks.protocol.operations import expect_status
from volcano_locks.protocol.sse import EventTooLongError, SseEvent, SseParser

SILENCE_SECONDS_MAX = 45.0


class EventStream:
    """The stream that `request` opens. Its operations raise VolcanoError."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._parser = SseParser()

    def open(self) -> Operation[None]:
        """Return when the stream began; raise the error of any other response."""
        response = expect_status(self._request, (yield self._request), 200)
        if media_type(response.headers) != "text/event-stream":
            raise malformed_response(response, "it is not an event stream", self._request.request_id)

    def read(self) -> Operation[list[SseEvent]]:
        """Return the events that arrived next, if any."""
        reason = "the event stream ended"
        try:
            data = yield ReadStream(self._request, SILENCE_SECONDS_MAX)
            if data:
                assert isinstance(data, bytes)
                return self._parser.feed(data)
        except EventTooLongError as error:
            reason = str(error)
        request = self._request
        raise TransportError(f"{request.method} {request.path}: {reason}", request_id=request.request_id)


def parse_event_data(event: SseEvent) -> dict[str, Any]:
    """Parse the event's data as an object; return an empty one if it is none."""
    try:
        body = json.loads(event.data or "{}")
    except (ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}
