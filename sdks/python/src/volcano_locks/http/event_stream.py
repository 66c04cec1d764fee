"""Reads one event stream of the service until it ends, which always raises an error (EVENT-1, EVENT-7).

The caller then reconnects. The service sends something every 15 seconds, so a stream that is silent for three times as
long counts as broken.
"""

import json
from collections.abc import AsyncGenerator
from typing import Any

from volcano_locks.clock import Clock
from volcano_locks.errors import TransportError
from volcano_locks.http.stream_connection import ResponseStream
from volcano_locks.http.transport import Transport, timeout_error
from volcano_locks.protocol.effects import Request
from volcano_locks.protocol.messages import Response, malformed_response
from volcano_locks.protocol.operations import expect_status
from volcano_locks.protocol.sse import EventTooLongError, SseEvent, SseParser

SILENCE_SECONDS_MAX = 45.0
REFUSAL_BYTES_MAX = 65_536


async def read_events(request: Request, transport: Transport, clock: Clock) -> AsyncGenerator[SseEvent, None]:
    """Yield the events of the stream that `request` opens, until it is closed. Raises VolcanoError."""
    async with transport.open_stream(request) as stream:
        await _check_stream_began(request, stream, clock)
        parser = SseParser()
        while True:
            for event in await _next_events(request, stream, parser, clock):
                yield event


def parse_event_data(event: SseEvent) -> dict[str, Any]:
    """Parse the event's data as an object; return an empty one if it is none."""
    try:
        body = json.loads(event.data or "{}")
    except (ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}


async def _check_stream_began(request: Request, stream: ResponseStream, clock: Clock) -> None:
    """Return if an event stream began; raise the error of any other response."""
    try:
        response = await clock.within(clock.now() + request.timeout_seconds, _read_response(stream))
    except TimeoutError:
        raise timeout_error(request) from None
    expect_status(request, response, 200)
    if not response.headers.get("content-type", "").startswith("text/event-stream"):
        raise malformed_response(response, "it is not an event stream", request.request_id)


async def _next_events(request: Request, stream: ResponseStream, parser: SseParser, clock: Clock) -> list[SseEvent]:
    try:
        data = await clock.within(clock.now() + SILENCE_SECONDS_MAX, stream.read())
        if data:
            return parser.feed(data)
        reason = "the event stream ended"
    except TimeoutError:
        reason = f"the event stream was silent for {SILENCE_SECONDS_MAX:g} seconds"
    except EventTooLongError as error:
        reason = str(error)
    raise TransportError(f"{request.method} {request.path}: {reason}", request_id=request.request_id)


async def _read_response(stream: ResponseStream) -> Response:
    """Read the head, and the body too if it is not a 200."""
    status, headers = await stream.head()
    body = b""
    while status != 200 and len(body) < REFUSAL_BYTES_MAX and (more := await stream.read()):
        body += more
    return Response(status, headers, body)
