"""One event stream of the service, from its request to its end, which is always an error (EVENT-1, EVENT-7).

Whoever hears it connects again. The service says something every 15 seconds, so a stream that says nothing for three
times as long is taken for dead.
"""

import json
from collections.abc import AsyncGenerator
from typing import Any

from volcano_locks.clock import Clock
from volcano_locks.errors import TransportError
from volcano_locks.http.stream_connection import Stream
from volcano_locks.http.transport import Sender, late
from volcano_locks.protocol.effects import Request
from volcano_locks.protocol.messages import Answer, malformed
from volcano_locks.protocol.operations import expect
from volcano_locks.protocol.sse import Event, EventReader, TooLongError

SILENCE_SECONDS_MAX = 45.0
REFUSAL_BYTES_MAX = 65_536


async def heard(request: Request, sender: Sender, clock: Clock) -> AsyncGenerator[Event, None]:
    """The events of the stream that `request` asks for. Close it: leaving ends its connection. Raises VolcanoError."""
    async with sender.listen(request) as stream:
        await _begun(request, stream, clock)
        reader = EventReader()
        while True:
            for event in await _more(request, stream, reader, clock):
                yield event


def body_of(event: Event) -> dict[str, Any]:
    """Its data; nothing where that is no object."""
    try:
        body = json.loads(event.data or "{}")
    except (ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}


async def _begun(request: Request, stream: Stream, clock: Clock) -> None:
    """Return if an event stream began, else raise what came instead."""
    try:
        answer = await clock.within(clock.now() + request.timeout_seconds, _answer_of(stream))
    except TimeoutError:
        raise late(request) from None
    expect(request, answer, 200)
    if not answer.headers.get("content-type", "").startswith("text/event-stream"):
        raise malformed(answer, "it is no event stream", request.request_id)


async def _more(request: Request, stream: Stream, reader: EventReader, clock: Clock) -> list[Event]:
    try:
        data = await clock.within(clock.now() + SILENCE_SECONDS_MAX, stream.read())
        if data:
            return reader.take(data)
        told = "the event stream ended"
    except TimeoutError:
        told = f"the event stream was silent for {SILENCE_SECONDS_MAX:g} seconds"
    except TooLongError as error:
        told = str(error)
    raise TransportError(f"{request.method} {request.path}: {told}", request_id=request.request_id)


async def _answer_of(stream: Stream) -> Answer:
    """The head; with what is told of it if it is a refusal."""
    status, headers = await stream.head()
    body = b""
    while status != 200 and len(body) < REFUSAL_BYTES_MAX and (more := await stream.read()):
        body += more
    return Answer(status, headers, body)
