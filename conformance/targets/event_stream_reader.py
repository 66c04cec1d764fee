"""Reads an event stream as any HTTP client does, and checks each event against spec/watching.md."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import datetime, timedelta
from typing import Final

import httpx2

ARRIVAL_SECONDS_MAX: Final = 10.0
INSTANT: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
EPOCH: Final = datetime.fromisoformat("1970-01-01T00:00:00Z")
LEASE_EVENTS: Final = ("acquired", "renewed")
WAITER_EVENTS: Final = ("waiting", "gave_up")
FIELDS: Final = {"key", "fencing_token", "holder", "at", "why"}


class EventStreamReader:
    """One stream, read by a task until `end`. Created and used in one event loop."""

    def __init__(self, response: httpx2.Response) -> None:
        assert response.headers["content-type"].startswith("text/event-stream")
        self.last_id = ""
        self._response: Final = response
        self._events: Final[list[dict[str, object]]] = []
        self._changed: Final = asyncio.Condition()
        self._began = False
        self._reading: Final = asyncio.create_task(self._read())

    async def begun(self) -> None:
        """Return when the stream has sent its first block."""
        await self._wait_until(lambda: self._began)
        assert self._began, "a stream must send its first block at once"

    async def take(self, count: int) -> list[dict[str, object]]:
        """The events since the last call. Waits some real seconds for `count` of them."""
        await self._wait_until(lambda: len(self._events) >= count)
        if self._reading.done() and not self._reading.cancelled():
            self._reading.result()
        taken, self._events[:] = list(self._events), []
        return taken

    async def end(self) -> None:
        """Disconnect."""
        self._reading.cancel()
        await asyncio.wait([self._reading])
        await self._response.aclose()

    async def _wait_until(self, condition: Callable[[], bool]) -> None:
        try:
            async with asyncio.timeout(ARRIVAL_SECONDS_MAX), self._changed:
                await self._changed.wait_for(lambda: condition() or self._reading.done())
        except TimeoutError:
            return

    async def _read(self) -> None:
        try:
            async for block in _blocks(self._response):
                async with self._changed:
                    self._take(block)
                    self._changed.notify_all()
        except httpx2.TransportError:
            return  # the server closed the stream
        finally:
            async with self._changed:
                self._changed.notify_all()

    def _take(self, block: Mapping[str, str]) -> None:
        self.last_id = block.get("id", self.last_id)
        if "event" in block:
            assert self._began, "the first block must not be an event"
            self._events.append(parse_event(block))
        elif "id" in block:
            assert not self._began, "only one block may mark the start of the stream"
            assert block["retry"] == "1000"
            self._began = True


async def _blocks(response: httpx2.Response) -> AsyncIterator[dict[str, str]]:
    block: dict[str, str] = {}
    async for line in response.aiter_lines():
        name, _, value = line.partition(":")
        if line == "":
            yield block
            block = {}
        elif name:
            assert name not in block, f"{name} twice in a block"
            block[name] = value.removeprefix(" ")


def parse_event(block: Mapping[str, str]) -> dict[str, object]:
    """The event in a block, with instants in milliseconds."""
    kind, body = block["event"], json.loads(block["data"])
    assert block["id"], "an event without an id"
    assert set(block) == {"id", "event", "data"}
    if kind == "reset":
        assert set(body) == {"at", "why"}, f"fields of a reset: {sorted(body)}"
        return {"event": kind, "why": body["why"], "at_ms": ms_of(body["at"])}
    fields = FIELDS | ({"expires_at"} if kind in LEASE_EVENTS else set())
    if kind == "force_released" and "reason" in body:
        fields = fields | {"reason"}
    assert set(body) == fields, f"fields of {kind}: {sorted(body)}"
    assert (body["fencing_token"] is None) == (kind in WAITER_EVENTS), f"fencing_token of {kind}"
    event = {"event": kind, **{word: body[word] for word in ("key", "fencing_token", "holder", "why")}}
    event["reason"] = body.get("reason")
    event["at_ms"] = ms_of(body["at"])
    return event | ({"expires_at_ms": ms_of(body["expires_at"])} if kind in LEASE_EVENTS else {})


def ms_of(text: str) -> int:
    """Milliseconds since 1970 of an instant in the API's format."""
    assert INSTANT.fullmatch(text), text
    return (datetime.fromisoformat(text) - EPOCH) // timedelta(milliseconds=1)
